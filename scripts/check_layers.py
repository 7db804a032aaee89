#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the tree over its include lines, and the first line and mode of each file.

    scripts/check_layers.py [ROOT]       prints each violation, ends with status 1 if there is one

The tree is divided into units: the folders of include/slimpack, with planners/ in four of its own, and the
products runtime/ and report/. Each unit names the units that it may include; the graph has no cycle. No unit
includes a header of another's detail/, but planners include what they share in planners/search/detail. What
slimpack.hpp includes needs the standard library alone, and core/parallel_for.hpp is the only header of it that
starts threads. Nothing outside backends/ and the programs names a backend.
"""
import os
import pathlib
import re
import sys

# A unit, and the units that it sees besides itself.
SEES = {
    "core": set(),
    "plan": {"core"},
    "data": {"core", "plan"},
    "cost": {"core", "plan", "data"},
    "schedule": {"core", "plan", "data", "cost"},
    "sim": {"core", "plan", "data", "cost", "schedule"},
    "planners": {"core", "plan", "data", "cost", "schedule", "sim"},
    "planners/slimpack": {"core", "plan", "data", "cost", "schedule", "sim", "planners"},
    "planners/published": {"core", "plan", "data", "cost", "schedule", "sim", "planners"},
    "planners/registry": {"core", "planners", "planners/slimpack", "planners/published"},
    "validate": {"core", "plan"},
    "io": {"core", "plan", "data"},
    "runtime": {"core", "plan", "data", "io"},
    "report": {"core", "plan", "data", "cost", "schedule", "sim", "planners", "io"},
}
BACKEND_SEES = {"core", "plan", "cost", "io", "runtime"}
PRODUCTS = ("include/slimpack", "runtime/include/slimpack", "report/include/slimpack")
# Headers from outside the standard library, and the only places that may include them.
OUTSIDE = {r"nlohmann/.*": r"(io|runtime)/.*", r"Eigen/.*": r"cost/fit\.hpp",
           r"(sys/(mman|stat|types)|fcntl|unistd)\.h": r"(io/file_bytes|runtime/detail/disk)\.hpp",
           r"(pthread|sched)\.h": r"runtime/thread_system\.hpp"}
# Threads start in one header of the planning library, and in the runtime.
THREADS = re.compile(r"thread|mutex|shared_mutex|condition_variable|future|stop_token|semaphore|latch|barrier")
THREADS_IN = re.compile(r"core/parallel_for\.hpp|runtime/.*|report/.*")
BACKEND_NAME = re.compile(r"\b(slimpack_)?(cpu|cuda)(::|/)|\bcuda\w*\.h\b|\bnccl\w*\.h\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SPDX = "SPDX-License-Identifier: Apache-2.0"
MAX_HEADER_LINES = 500
SOURCE_SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".cmake", ".py", ".sh"}
SOURCE_NAMES = {"CMakeLists.txt", ".ci/run", ".clang-tidy", ".clang-format", ".gitignore"}


def includes(path):
    """Yields (line number, '<' or '"', included name)."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def unit_of(name):
    """The unit of a header, by its name from slimpack/ on."""
    if name in ("planners/registry.hpp", "planners/all_planners.hpp"):
        return "planners/registry"
    parts = name.split("/")
    if len(parts) > 2 and parts[0] == "planners" and parts[1] in ("slimpack", "published"):
        return f"planners/{parts[1]}"
    return parts[0]


def has_detail(name):
    return "detail" in name.split("/")


def check_library_header(bases, base, path):
    name = path.relative_to(base).as_posix()
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if "#pragma once" not in lines[:5]:
        yield f"{name}:1: #pragma once is not within the first five lines"
    if len(lines) < 2 or not lines[1].startswith("// "):
        yield f"{name}:2: the second line is not a comment that says what the header is for"
    if len(lines) > MAX_HEADER_LINES:
        yield f"{name}:1: {len(lines)} lines, at most {MAX_HEADER_LINES} are allowed"
    for number, line in enumerate(lines, 1):
        if BACKEND_NAME.search(line.split("//")[0]):
            yield f"{name}:{number}: names a backend"
    unit = unit_of(name)
    if name != "slimpack.hpp" and unit not in SEES:
        yield f"{name}:1: folder {unit}/ has no place in the graph of folders"
        return
    for number, kind, target in includes(path):
        place = f"{name}:{number}"
        if kind == "<":
            if re.fullmatch(r"[a-z_0-9]+", target):
                if THREADS.fullmatch(target) and not THREADS_IN.fullmatch(name):
                    yield f"{place}: <{target}> belongs into core/parallel_for.hpp alone"
                continue
            allowed = [where for outside, where in OUTSIDE.items() if re.fullmatch(outside, target)]
            if not allowed:
                yield f"{place}: <{target}> is not of the C++ standard library"
            elif not any(re.fullmatch(where, name) for where in allowed):
                yield f"{place}: <{target}> may be included only in {allowed[0]}"
            continue
        if not target.startswith("slimpack/"):
            yield f'{place}: "{target}" is not written from slimpack/ on'
            continue
        inner = target[len("slimpack/"):]
        if not any((one / inner).is_file() for one in bases):
            yield f'{place}: "{target}" does not exist'
            continue
        if "/" not in inner:
            yield f'{place}: "{target}" is the umbrella; include what is used'
            continue
        seen = unit_of(inner)
        if name == "slimpack.hpp":
            if has_detail(inner) or seen in ("io", "planners/registry", "planners/published"):
                yield f'{place}: "{target}": the umbrella leaves it to headers of their own'
            continue
        if seen == unit:
            continue
        if seen not in SEES[unit]:
            yield f'{place}: "{target}": {unit}/ sees only {", ".join(sorted(SEES[unit]))}'
        elif has_detail(inner) and not (seen == "planners" and unit.startswith("planners/")):
            yield f'{place}: "{target}" is a detail of {seen}/'


def check_umbrella(bases):
    """The umbrella reaches neither JSON nor files, nor threads but in core/parallel_for.hpp."""
    todo, seen = ["slimpack.hpp"], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        path = next((one / name for one in bases if (one / name).is_file()), None)
        if path is None:
            if name == "slimpack.hpp":
                yield "slimpack.hpp:1: is missing"
            continue
        for number, kind, target in includes(path):
            if kind == '"' and target.startswith("slimpack/"):
                todo.append(target[len("slimpack/"):])
            elif kind == "<" and not re.fullmatch(r"[a-z_0-9]+", target):
                yield f"{name}:{number}: <{target}> is reached from slimpack.hpp"


def check_acyclic():
    done, path = set(), []

    def visit(unit):
        if unit in path:
            return [" -> ".join(path[path.index(unit):] + [unit])]
        if unit in done:
            return []
        path.append(unit)
        found = [cycle for other in sorted(SEES[unit]) for cycle in visit(other)]
        path.pop()
        done.add(unit)
        return found

    for unit in SEES:
        for cycle in visit(unit):
            yield f"the graph of folders has a cycle: {cycle}"


def check_backend_header(root, path):
    name = path.relative_to(root).as_posix()
    for number, kind, target in includes(path):
        if kind == '"' and target.startswith("slimpack/"):
            unit = unit_of(target[len("slimpack/"):])
            if unit not in BACKEND_SEES:
                yield f'{name}:{number}: "{target}": a backend sees only {", ".join(sorted(BACKEND_SEES))}'
            elif has_detail(target):
                yield f'{name}:{number}: "{target}" is a detail of {unit}/'


def check_first_lines(root):
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] in {"build", "out", ".git", ".deps"} or not path.is_file():
            continue
        if path.suffix not in SOURCE_SUFFIXES and name not in SOURCE_NAMES and path.name not in SOURCE_NAMES:
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        first = lines[1:2] if lines and lines[0].startswith("#!") else lines[:1]
        if not first or SPDX not in first[0]:
            yield f"{name}:1: does not begin with {SPDX}"
        if lines and lines[0].startswith("#!") and not os.access(path, os.X_OK):
            yield f"{name}:1: begins with #! and must be executable"


def check(root):
    bases = [root / product for product in PRODUCTS]
    violations = list(check_acyclic())
    for base in bases:
        shown = base.relative_to(root).as_posix()
        for path in sorted(base.rglob("*.hpp")):
            violations += [f"{shown}/{line}" for line in check_library_header(bases, base, path)]
    violations += [f"include/slimpack/{line}" for line in check_umbrella(bases)]
    for path in sorted((root / "backends").rglob("*")):
        if path.suffix in {".hpp", ".cpp", ".cu", ".cuh"} and "test" not in path.parts:
            violations += check_backend_header(root, path)
    return violations + list(check_first_lines(root))


def main(arguments):
    here = pathlib.Path(__file__).resolve().parent.parent
    violations = check(pathlib.Path(arguments[0]) if arguments else here)
    for violation in violations:
        print(violation)
    print(f"layer check: {len(violations)} violations" if violations else "layer check: clean")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
