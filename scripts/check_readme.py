#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the documents against the tree: scripts/check_readme.py [ROOT]

A fenced block after a line `<!-- from: PATH -->` is that file, less the comment it begins with. A link
to a file of the repository leads to one. Prints each breach, ends with status 1 if there is one.
"""
import pathlib
import re
import sys

MARK = re.compile(r"<!-- from: (\S+) -->")
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)|\bsrc=\"([^\"]+)\"")


def code_of(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith(("//", "#!", "# "))):
        lines.pop(0)
    return lines


def check_document(root, path):
    name = path.relative_to(root).as_posix()
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        for target in (match.group(1) or match.group(2) for match in LINK.finditer(line)):
            if "://" not in target and not target.startswith("mailto:") and not (path.parent / target).exists():
                yield f"{name}:{number}: links to {target}, which does not exist"
        mark = MARK.fullmatch(line.strip())
        if not mark:
            continue
        source = root / mark.group(1)
        block = lines[number:]
        if not source.is_file():
            yield f"{name}:{number}: {mark.group(1)} does not exist"
        elif not block or not block[0].startswith("```") or "```" not in block[1:]:
            yield f"{name}:{number}: no fenced block follows"
        elif block[1:block.index("```", 1)] != code_of(source):
            yield f"{name}:{number}: the block differs from {mark.group(1)}"


def check(root):
    documents = sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md")) + sorted((root / "examples").rglob("*.md"))
    return [breach for path in documents for breach in check_document(root, path)]


def main(arguments):
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parent.parent
    breaches = check(root)
    for breach in breaches:
        print(breach)
    print(f"document check: {len(breaches)} breaches" if breaches else "document check: clean")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
