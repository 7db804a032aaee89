#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the tree over its include lines, and the first line of each file.

    scripts/check_layers.py [ROOT]       prints each breach, ends with status 1 if there is one
    scripts/check_layers.py --umbrella   prints the include lines that slimpack.hpp has to have

A header under include/slimpack includes only its own or a lower layer. validate/, io/ and exec/ stand
beside the layers and no layer sees them: they see the plain data of core/ and plan/, io/ besides the
length sets of data/. A backend sees core/, plan/, cost/ and exec/; nothing under include/ names a backend.
"""
import pathlib
import re
import sys

LAYERS = {"core": 0, "plan": 1, "data": 2, "cost": 3, "pack": 4, "schedule": 5, "dag": 6, "sim": 7,
          "solve": 8, "planners": 9, "report": 9}
BESIDE = {"validate": {"core", "plan"}, "io": {"core", "plan", "data"}, "exec": {"core", "plan"}}
BACKEND_SEES = {"core", "plan", "cost", "exec"}
# Headers from outside the standard library, and the only places that may include them.
OUTSIDE = {r"nlohmann/.*": r"io/.*", r"Eigen/.*": r"cost/fit\.hpp",
           r"(sys/(mman|stat|types)|fcntl|unistd)\.h": r"data/.*",
           r"(pthread|sched)\.h": r"exec/thread_system\.hpp"}
OUTSIDE_UMBRELLA = re.compile(r"io/.*|cost/fit\.hpp|slimpack\.hpp|(.*/)?detail/.*")
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


def may_include(folder, target):
    """None if a header of `folder` may include one of `target`, else the rule that forbids it."""
    if folder == target:
        return None
    if folder in BESIDE:
        allowed = BESIDE[folder]
        return None if target in allowed else f"{folder}/ sees only {', '.join(sorted(allowed))}"
    if target in BESIDE:
        return f"{target}/ stands beside the layers: no layer includes it"
    if LAYERS[target] > LAYERS[folder]:
        return f"layer {LAYERS[folder]} must not include layer {LAYERS[target]}"
    return None


def check_library_header(base, path):
    name = path.relative_to(base).as_posix()
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if "#pragma once" not in lines[:4]:
        yield f"{name}:1: #pragma once is not within the first four lines"
    if len(lines) < 2 or not lines[1].startswith("// "):
        yield f"{name}:2: the second line is not a comment that says what the header is for"
    if len(lines) > MAX_HEADER_LINES:
        yield f"{name}:1: {len(lines)} lines, at most {MAX_HEADER_LINES} are allowed"
    for number, line in enumerate(lines, 1):
        if BACKEND_NAME.search(line.split("//")[0]):
            yield f"{name}:{number}: names a backend"
    if name == "slimpack.hpp":
        return
    folder = name.split("/")[0]
    if folder not in LAYERS and folder not in BESIDE:
        yield f"{name}:1: folder {folder}/ has no layer"
        return
    for number, kind, target in includes(path):
        place = f"{name}:{number}"
        if kind == "<":
            if re.fullmatch(r"[a-z_]+", target):
                continue
            allowed = [place for outside, place in OUTSIDE.items() if re.fullmatch(outside, target)]
            if not allowed:
                yield f"{place}: <{target}> is not of the C++ standard library"
            elif not any(re.fullmatch(where, name) for where in allowed):
                yield f"{place}: <{target}> may be included only in {allowed[0]}"
            continue
        if not target.startswith("slimpack/"):
            yield f'{place}: "{target}" is not written from slimpack/ on'
            continue
        inner = target[len("slimpack/"):]
        if not (base / inner).is_file():
            yield f'{place}: "{target}" does not exist'
            continue
        if "/" not in inner:
            yield f'{place}: "{target}" is the umbrella; include what is used'
            continue
        forbidden = may_include(folder, inner.split("/")[0])
        if forbidden:
            yield f'{place}: "{target}": {forbidden}'


def check_backend_header(root, path):
    name = path.relative_to(root).as_posix()
    for number, kind, target in includes(path):
        if kind == '"' and target.startswith("slimpack/"):
            folder = target.split("/")[1]
            if folder not in BACKEND_SEES:
                yield f'{name}:{number}: "{target}": a backend sees only {", ".join(sorted(BACKEND_SEES))}'


def umbrella(base):
    names = sorted(path.relative_to(base).as_posix() for path in base.rglob("*.hpp"))
    return [f'#include "slimpack/{name}"' for name in names if not OUTSIDE_UMBRELLA.fullmatch(name)]


def check_umbrella(base):
    path = base / "slimpack.hpp"
    if not path.is_file():
        yield "slimpack.hpp:1: is missing"
        return
    have = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#include")]
    want = umbrella(base)
    for line in want:
        if line not in have:
            yield f"slimpack.hpp:1: lacks {line}"
    for line in have:
        if line not in want:
            yield f"slimpack.hpp:1: must not have {line}"


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


def check(root):
    base = root / "include" / "slimpack"
    breaches = []
    for path in sorted(base.rglob("*.hpp")):
        breaches += [f"include/slimpack/{line}" for line in check_library_header(base, path)]
    breaches += [f"include/slimpack/{line}" for line in check_umbrella(base)]
    for path in sorted((root / "backends").rglob("*")):
        if path.suffix in {".hpp", ".cpp", ".cu", ".cuh"} and "test" not in path.parts:
            breaches += check_backend_header(root, path)
    return breaches + list(check_first_lines(root))


def main(arguments):
    here = pathlib.Path(__file__).resolve().parent.parent
    if arguments == ["--umbrella"]:
        print("\n".join(umbrella(here / "include" / "slimpack")))
        return 0
    breaches = check(pathlib.Path(arguments[0]) if arguments else here)
    for breach in breaches:
        print(breach)
    print(f"layer check: {len(breaches)} breaches" if breaches else "layer check: clean")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
