#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the machine code of every kernel for sm_90a and holds it to what the table of kernels says.

    scripts/check_cuda_code.py BUILD [BUDGETS]     BUDGETS: backends/cuda/budgets.txt
    scripts/check_cuda_code.py BUILD --table       prints the figures of kernels as a Markdown table

A line of BUDGETS may have rules behind the budgets that scripts/check_cuda_budget.py reads:

    PATTERN  REGISTERS  SHARED  RULE...             RULE: WHAT<=N, WHAT>=N or WHAT=N

WHAT is a number of instructions: LDG.128 are those whose operation is LDG with the part 128, LDG.32 those
without a width. `loop:WHAT` counts in the leanest of the kernel's innermost loops with products of a warpgroup
(HGMMA), where no tile is masked; `wait:WHAT` from the last wait for all products of that loop to its end, and
`waits:WHAT` the same of that innermost loop where it is most; both are 0 where no loop waits for all. WHAT may
also be `instructions`, and `stalls`, the cycles for which control codes hold the next instruction back. Every
kernel is held to no access to local memory (LDL, STL). Ends with status 1 if a rule is broken, a rule reads a
kernel that has no such loop, or a kernel has no line; with 2 on bad input, with 77 where cuobjdump or nvdisasm
is missing: both come with the CUDA Toolkit, and scripts/python_packages.sh installs them.
"""
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

import check_cuda_budget as budget

ROOT = pathlib.Path(__file__).resolve().parents[1]
ARCHITECTURE = "sm_90a"
MISSING = 77

FUNCTION = re.compile(r"^\s+Function : (\S+)")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;?\s+/\* 0x([0-9a-f]{16}) \*/")
CONTROL = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/")
BRANCH = re.compile(r"\bBRA\b.*?0x([0-9a-f]+)")
WAIT_FOR_ALL = re.compile(r"^WARPGROUP\.DEPBAR\.LE gsb0, 0x0")
RULE = re.compile(r"^(?:(loop|waits?):)?([A-Za-z][\w.]*)(<=|>=|=)(\d+)$")
WIDTHS = {"8", "U8", "S8", "16", "U16", "S16", "64", "128", "256"}
PLACES = {None: "", "loop": " in its leanest loop", "wait": " behind the last wait of its leanest loop",
          "waits": " behind the last wait of a loop"}
HOLDS = {"<=": lambda found, wanted: found <= wanted, ">=": lambda found, wanted: found >= wanted,
         "=": lambda found, wanted: found == wanted}


@dataclasses.dataclass
class Instruction:
    address: int
    text: str  # without its predicate
    stall: int = 0

    @property
    def parts(self):
        return self.text.split(None, 1)[0].split(".")


@dataclasses.dataclass
class Code:
    symbol: str
    instructions: list
    name: str = ""

    def loops(self):
        """Innermost loops with products. A branch back from behind the end only continues a wait."""
        found = []
        for at, instruction in enumerate(self.instructions):
            branch = BRANCH.search(instruction.text)
            if not branch or int(branch[1], 16) > instruction.address:
                continue
            begin = int(branch[1], 16)
            body = [one for one in self.instructions[:at + 1] if one.address >= begin]
            if any(one.parts[0] == "HGMMA" for one in body) and not any(one.parts[0] == "EXIT" for one in body):
                found.append(body)
        return [body for body in found
                if not any(other is not body and body[0].address <= other[0].address and
                           other[-1].address <= body[-1].address for other in found)]


def behind_wait(loop):
    """What follows the last wait for all products; nothing where there is no such wait."""
    waits = [at for at, one in enumerate(loop) if WAIT_FOR_ALL.match(one.text)]
    return loop[waits[-1] + 1:] if waits else []


def count(instructions, what):
    if what == "instructions":
        return len(instructions)
    if what == "stalls":
        return sum(one.stall for one in instructions)
    operation, *parts = what.split(".")
    narrow = "32" in parts
    parts = [part for part in parts if part != "32"]
    return sum(1 for one in instructions
               if one.parts[0] == operation and all(part in one.parts for part in parts) and
               not (narrow and WIDTHS & set(one.parts)))


def figure(code, scope, what):
    """None where the kernel has no loop that it could be read from."""
    if scope is None:
        return count(code.instructions, what)
    loops = code.loops()
    if not loops:
        return None
    leanest = min(loops, key=len)
    if scope == "loop":
        return count(leanest, what)
    return max(count(behind_wait(loop), what) for loop in (loops if scope == "waits" else [leanest]))


def parse_code(text):
    """Kernels of what `cuobjdump -sass` prints. The stall is bits 105 to 108 of an instruction."""
    codes = []
    for line in text.splitlines():
        if found := FUNCTION.match(line):
            codes.append(Code(found[1], []))
        elif found := INSTRUCTION.match(line):
            codes[-1].instructions.append(Instruction(int(found[1], 16), re.sub(r"^@!?U?P\w+\s+", "", found[2])))
        elif (found := CONTROL.match(line)) and codes and codes[-1].instructions:
            codes[-1].instructions[-1].stall = int(found[1], 16) >> 41 & 15
    return codes


def parse_rules(line, name):
    rules = []
    for word in line.rules:
        found = RULE.match(word)
        if not found:
            raise budget.BadInput(f"{name}:{line.line}: a rule is WHAT<=N, WHAT>=N or WHAT=N, found '{word}'")
        rules.append((found[1], found[2], found[3], int(found[4])))
    return rules


def check(codes, budgets, name):
    """Yields each breach as a sentence."""
    for code in codes:
        line = budget.budget_of(code.name, budgets)
        local = count(code.instructions, "LDL") + count(code.instructions, "STL")
        if local:
            yield f"{code.name}: {local} accesses to local memory"
        if line is None:
            yield f"{code.name}: {name} has no line for it"
            continue
        for scope, what, relation, wanted in parse_rules(line, name):
            found = figure(code, scope, what)
            place = PLACES[scope]
            if found is None:
                yield f"{code.name}: {name}:{line.line} reads a loop with products, and there is none"
            elif not HOLDS[relation](found, wanted):
                yield f"{code.name}: {found} {what}{place}, {name}:{line.line} wants {relation} {wanted}"


def find_tools(build):
    """The folder of cuobjdump and nvdisasm."""
    folders = [pathlib.Path(found).parent for tool in ("cuobjdump", "nvcc") if (found := shutil.which(tool))]
    folders += [pathlib.Path("/usr/local/cuda/bin"), *ROOT.glob("build/python/lib/python3*/site-packages/nvidia/cu*/bin"),
                *build.glob("python/lib/python3*/site-packages/nvidia/cu*/bin")]
    return next((folder for folder in folders if all((folder / tool).exists() for tool in ("cuobjdump", "nvdisasm"))), None)


def read_codes(build, tools):
    """The kernels of all objects of the library, by name."""
    codes = []
    environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    for path in sorted(build.rglob("*.cu.o")):
        if "slimpack_cuda.dir" not in path.parts:
            continue
        done = subprocess.run([tools / "cuobjdump", "-arch", ARCHITECTURE, "-sass", path], text=True, capture_output=True,
                              env=environment)
        if done.returncode != 0:
            raise budget.BadInput(f"cuobjdump cannot read {path}: {done.stderr.strip()}")
        found = parse_code(done.stdout)
        budget.demangle(found, path.name[:-len(".cu.o")])
        codes += found
    return sorted(codes, key=lambda code: code.name)


COLUMNS = (("instructions", None, "instructions"), ("LDG 16 B", None, "LDG.128"), ("LDG 4 B", None, "LDG.32"),
           ("STG 16 B", None, "STG.128"), ("STG 4 B", None, "STG.32"), ("loop", "loop", "instructions"),
           ("its FMNMX", "loop", "FMNMX"), ("its FSEL", "loop", "FSEL"), ("its EX2", "loop", "MUFU.EX2"),
           ("behind the wait", "wait", "instructions"), ("its stalls", "wait", "stalls"), ("its EX2", "wait", "MUFU.EX2"))


def table(codes):
    print("| kernel | " + " | ".join(title for title, _, _ in COLUMNS) + " |\n|---|" + "---:|" * len(COLUMNS))
    for code in codes:
        cells = (figure(code, scope, what) for _, scope, what in COLUMNS)
        print(f"| `{code.name}` | " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |")


def main(arguments):
    words = [word for word in arguments if not word.startswith("--")]
    flags = [word for word in arguments if word.startswith("--")]
    if not 1 <= len(words) <= 2 or not set(flags) <= {"--table"}:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    build = pathlib.Path(words[0])
    budgets_file = pathlib.Path(words[1]) if len(words) == 2 else budget.BUDGETS
    tools = find_tools(build)
    if tools is None:
        print("the machine code of kernels is not read: there are no cuobjdump and nvdisasm")
        return MISSING
    try:
        codes = read_codes(build, tools)
        if "--table" in flags:
            table(codes)
            return 0
        budgets = budget.parse_budgets(budgets_file.read_text(encoding="utf-8"), budgets_file.name)
        breaches = list(check(codes, budgets, budgets_file.name)) if codes else [f"{build}: no object of slimpack_cuda is there"]
    except (budget.BadInput, OSError) as error:
        print(f"check_cuda_code: {error}", file=sys.stderr)
        return 2
    for breach in breaches:
        print(breach)
    print(f"machine code: {len(breaches)} breaches" if breaches else f"machine code: {len(codes)} kernels hold their rules")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
