#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts public headers and lines of code of each product: scripts/count_code.py [ROOT]

A line of code is one that is neither blank nor comment alone; a header is public unless a folder detail/ or
src/ is on its way. Scripts and style sheets of the report's page count as code of the report.
"""
import pathlib
import re
import sys

# Product: folders from the root, as they are and as they were before the products were divided.
PRODUCTS = {
    "planning": ["include/slimpack/" + name for name in
                 ("core", "plan", "data", "cost", "pack", "schedule", "dag", "sim", "solve", "planners",
                  "validate", "io", "slimpack.hpp")] + ["compiled"],
    "runtime": ["runtime", "include/slimpack/exec"],
    "report": ["report", "include/slimpack/report"],
    "backends": ["backends"],
    "apps": ["apps"],
}
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".js", ".css"}
COMMENT = re.compile(r"/\*.*?\*/", re.S)


def code_lines(text):
    text = COMMENT.sub(lambda found: "\n" * found.group().count("\n"), text)
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))


def count(root, folders):
    public = headers = code = total = 0
    for folder in folders:
        base = root / folder
        for path in [base] if base.is_file() else sorted(base.rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            text = path.read_text(encoding="utf-8")
            code += code_lines(text)
            total += len(text.splitlines())
            if path.suffix == ".hpp":
                headers += 1
                public += not {"detail", "src"} & set(path.relative_to(root).parts)
    return public, headers, code, total


def main(arguments):
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parent.parent
    print(f"{'product':10} {'public headers':>15} {'headers':>8} {'code lines':>11} {'all lines':>10}")
    sums = [0, 0, 0, 0]
    for product, folders in PRODUCTS.items():
        row = count(root, folders)
        sums = [a + b for a, b in zip(sums, row)]
        print(f"{product:10} {row[0]:15,} {row[1]:8,} {row[2]:11,} {row[3]:10,}")
    print(f"{'sum':10} {sums[0]:15,} {sums[1]:8,} {sums[2]:11,} {sums[3]:10,}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
