#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what ptxas reports of every kernel with what it may use.

    scripts/check_cuda_budget.py BUILD [BUDGETS]     BUDGETS: backends/cuda/budgets.txt
    scripts/check_cuda_budget.py BUILD --propose     prints a line for each kernel, as it is now
    scripts/check_cuda_budget.py BUILD --table       prints the kernels as a Markdown table

The build of slimpack_cuda leaves a report beside each object (OBJECT.ptxas). A line of BUDGETS is

    PATTERN  REGISTERS  SHARED  RULE...

where PATTERN stands for kernels, with * and ?, by their source and their names without namespaces, spaces and
parameters, such as rope/row_kernel<128,*>; the first line that fits counts. REGISTERS is the most a thread may use, SHARED the
most bytes of static shared memory; rules are for scripts/check_cuda_code.py. Ends with status 1 if a kernel uses more, spills, keeps an array in local
memory, has no line, ptxas warns, a line fits no kernel, or a .cu file has no report; with 2 on bad input.
"""
import dataclasses
import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUDGETS = ROOT / "backends" / "cuda" / "budgets.txt"
SOURCES = ROOT / "backends" / "cuda" / "src"

ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
PROPERTIES = re.compile(r"Function properties for (\S+)")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


class BadInput(Exception):
    pass


@dataclasses.dataclass
class Kernel:
    symbol: str
    target: str
    name: str = ""
    registers: int = 0
    shared: int = 0
    stack: int = 0
    spilled: int = 0


@dataclasses.dataclass
class Budget:
    line: int
    pattern: str
    registers: int
    shared: int
    rules: tuple = ()


def parse_report(text):
    """The kernels of one report and the warnings in it. Functions that are not inlined count as their kernel's."""
    kernels, warnings, kernel = [], [], None
    for line in text.splitlines():
        if found := ENTRY.search(line):
            kernel = Kernel(found[1], found[2])
            kernels.append(kernel)
        elif line.startswith("ptxas") and not line.startswith("ptxas info"):
            warnings.append(line)
        elif "Potential Performance Loss" in line:
            warnings.append(line)
        elif kernel is None:
            continue
        elif found := FRAME.search(line):
            kernel.stack = max(kernel.stack, int(found[1]))
            kernel.spilled += int(found[2]) + int(found[3])
        elif found := USED.search(line):
            kernel.registers = int(found[1])
            shared = SHARED.search(line)
            kernel.shared = int(shared[1]) if shared else 0
    return kernels, warnings


def short_name(name):
    """void a::b::(anonymous namespace)::kernel<(int)4, a::c>(float*) -> kernel<4,c>"""
    name = name.replace("(anonymous namespace)", "")
    name = re.sub(r"\((?:int|bool|unsigned int|unsigned char|long|unsigned long|short|[\w:]+)\)(?=-?\w)", "", name)
    depth, end = 0, len(name)
    for at, letter in enumerate(name):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == "(" and depth == 0:
            end = at
            break
    name = name[:end]
    depth, begin = 0, 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == " " and depth == 0:
            begin = at + 1
    return re.sub(r"\w*::", "", name[begin:]).replace(" ", "")


def demangle(kernels, source):
    if not kernels:
        return
    done = subprocess.run(["c++filt"], input="\n".join(kernel.symbol for kernel in kernels), text=True,
                          capture_output=True, check=True)
    for kernel, name in zip(kernels, done.stdout.splitlines()):
        kernel.name = f"{source}/{short_name(name)}"


def parse_budgets(text, name):
    budgets = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) < 3 or not words[1].isdecimal() or not words[2].isdecimal():
            raise BadInput(f"{name}:{number}: a line is PATTERN REGISTERS SHARED RULE..., found '{line}'")
        budgets.append(Budget(number, words[0], int(words[1]), int(words[2]), tuple(words[3:])))
    return budgets


def budget_of(kernel, budgets):
    """The first line that fits a kernel's name."""
    return next((budget for budget in budgets if fnmatch.fnmatchcase(kernel, budget.pattern)), None)


def check(kernels, budgets, name):
    """Yields each breach as a sentence."""
    used = set()
    for kernel in kernels:
        budget = budget_of(kernel.name, budgets)
        if kernel.spilled:
            yield f"{kernel.name}: spills, {kernel.spilled} bytes stored and loaded"
        elif kernel.stack:
            yield f"{kernel.name}: keeps {kernel.stack} bytes a thread in local memory"
        if budget is None:
            yield f"{kernel.name}: {name} has no line for it"
            continue
        used.add(budget.line)
        if kernel.registers > budget.registers:
            yield f"{kernel.name}: {kernel.registers} registers, {name}:{budget.line} allows {budget.registers}"
        if kernel.shared > budget.shared:
            yield f"{kernel.name}: {kernel.shared} bytes of static shared memory, {name}:{budget.line} allows {budget.shared}"
    for budget in budgets:
        if budget.line not in used:
            yield f"{name}:{budget.line}: {budget.pattern} fits no kernel that no earlier line fits"


def read_reports(build, sources):
    """Kernels and breaches of all .cu files of the library."""
    kernels, breaches = [], []
    reports = {path.name[:-len(".o.ptxas")]: path for path in build.rglob("*.ptxas") if "slimpack_cuda.dir" in path.parts}
    for source in sorted(sources.rglob("*.cu")):
        report = reports.get(source.name)
        if report is None:
            breaches.append(f"{source.name}: no report in {build}: is slimpack_cuda built there?")
            continue
        found, warnings = parse_report(report.read_text(encoding="utf-8"))
        demangle(found, source.stem)
        kernels += found
        breaches += [f"{source.name}: {warning}" for warning in warnings]
    return kernels, breaches


def main(arguments):
    words = [word for word in arguments if not word.startswith("--")]
    flags = [word for word in arguments if word.startswith("--")]
    if not 1 <= len(words) <= 2 or not set(flags) <= {"--propose", "--table"}:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    budgets_file = pathlib.Path(words[1]) if len(words) == 2 else BUDGETS
    try:
        kernels, breaches = read_reports(pathlib.Path(words[0]), SOURCES)
        kernels.sort(key=lambda kernel: kernel.name)
        if "--propose" in flags:
            for kernel in kernels:
                print(f"{kernel.name}  {kernel.registers}  {kernel.shared}")
            return 0
        if "--table" in flags:
            print("| kernel | registers | static shared memory | spilled | stack |\n|---|---:|---:|---:|---:|")
            for kernel in kernels:
                print(f"| `{kernel.name}` | {kernel.registers} | {kernel.shared} | {kernel.spilled} | {kernel.stack} |")
            return 0
        breaches += check(kernels, parse_budgets(budgets_file.read_text(encoding="utf-8"), budgets_file.name),
                          budgets_file.name)
    except (BadInput, OSError) as error:
        print(f"check_cuda_budget: {error}", file=sys.stderr)
        return 2
    for breach in breaches:
        print(breach)
    print(f"kernel budgets: {len(breaches)} breaches" if breaches else f"kernel budgets: {len(kernels)} kernels within them")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
