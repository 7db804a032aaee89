#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the documents against the tree: scripts/check_readme.py [ROOT]

A fenced block after a line `<!-- from: PATH -->` is that file, less the comment it begins with. A link
to a file of the repository leads to one. A header named in backticks exists. README.md links every page of
docs/, and docs/planners.md has a row for every planner. Prints each violation, ends with status 1 if there is
one.
"""
import pathlib
import re
import sys

MARK = re.compile(r"<!-- from: (\S+) -->")
HEADER = re.compile(r"`([\w/]+\.hpp)`")
HISTORY = "CHANGELOG.md"          # names headers that were
MIGRATION = "docs/migration.md"  # the same, but for the last column of its tables
PLANNER_LIST = "include/slimpack/planners/all_planners.hpp"
OWN_PLANNERS = "include/slimpack/planners/slimpack/slimpack.hpp"
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)|\bsrc=\"([^\"]+)\"")


def code_of(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith(("//", "#!", "# "))):
        lines.pop(0)
    return lines


def headers_of(root):
    """Every header by the endings of its path: b.hpp and a/b.hpp for a/b.hpp."""
    return {"/".join(path.relative_to(root).parts[i:]) for path in root.rglob("*.hpp")
            if "build" not in path.relative_to(root).parts for i in range(len(path.relative_to(root).parts))}


def check_document(root, path, headers):
    name = path.relative_to(root).as_posix()
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        for target in (match.group(1) or match.group(2) for match in LINK.finditer(line)):
            if "://" not in target and not target.startswith("mailto:") and not (path.parent / target).exists():
                yield f"{name}:{number}: links to {target}, which does not exist"
        text = "" if name == HISTORY else line
        if name == MIGRATION:
            text = line.split("|")[-2] if line.startswith("|") else ""
        for header in HEADER.findall(text):
            if header not in headers:
                yield f"{name}:{number}: names {header}, which does not exist"
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


def planners_of(root):
    """Names of all planners, as the list of planners and the rows of our own planner have them."""
    planners = root / PLANNER_LIST
    if not planners.is_file():
        return []
    text = planners.read_text(encoding="utf-8")
    names = []
    for include in re.findall(r'"slimpack/(planners/published/\w+\.hpp)"', text):
        header = (root / "include/slimpack" / include).read_text(encoding="utf-8")
        names += re.findall(r'\b(?:name|kName) = "([\w-]+)"', header) or [f"the planner of {include}"]
    own = (root / OWN_PLANNERS).read_text(encoding="utf-8")
    return names + re.findall(r'\{"(slimpack[\w-]*)"', own)


def check_pages(root):
    readme = (root / "README.md").read_text(encoding="utf-8")
    for page in sorted((root / "docs").glob("*.md")):
        if f"](docs/{page.name})" not in readme:
            yield f"README.md:1: does not link docs/{page.name}"
    planners = planners_of(root)
    if planners:
        page = (root / "docs/planners.md").read_text(encoding="utf-8")
        for name in planners:
            if f"\n| `{name}` |" not in page:
                yield f"docs/planners.md:1: has no row for {name}"


def check(root):
    documents = sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md")) + sorted((root / "examples").rglob("*.md"))
    headers = headers_of(root)
    return [one for path in documents for one in check_document(root, path, headers)] + list(check_pages(root))


def main(arguments):
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parent.parent
    violations = check(root)
    for violation in violations:
        print(violation)
    print(f"document check: {len(violations)} violations" if violations else "document check: clean")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
