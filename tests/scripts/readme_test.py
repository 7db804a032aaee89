#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check_readme.py finds each breach it knows, and none in a good document."""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_readme  # noqa: E402

SOURCE = "// SPDX-License-Identifier: Apache-2.0\n// Says what it is.\n#include <cstdio>\nint main() {}\n"
QUOTE = "<!-- from: main.cpp -->\n```cpp\n#include <cstdio>\nint main() {}\n```\n"
CASES = [  # document, what the only breach must say; None where there is none
    (QUOTE + "[source](main.cpp), [part](main.cpp#L3), [web](https://example.org)\n", None),
    (QUOTE.replace("cstdio", "cmath"), "README.md:1: the block differs from main.cpp"),
    (QUOTE.replace("int main() {}\n", ""), "README.md:1: the block differs from main.cpp"),
    ("<!-- from: main.cpp -->\nint main() {}\n", "README.md:1: no fenced block follows"),
    ("<!-- from: main.cpp -->\n```cpp\nint main() {}\n", "README.md:1: no fenced block follows"),
    ("<!-- from: other.cpp -->\n```\n```\n", "README.md:1: other.cpp does not exist"),
    ("a\n[source](other.cpp)\n", "README.md:2: links to other.cpp, which does not exist"),
    ('<img src="docs/a.svg">\n', "README.md:1: links to docs/a.svg, which does not exist"),
]


def main():
    failed = 0
    for document, expected in CASES:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "main.cpp").write_text(SOURCE, encoding="utf-8")
            (root / "README.md").write_text(document, encoding="utf-8")
            found = check_readme.check(root)
        if found != ([] if expected is None else [expected]):
            failed += 1
            print(f"expected {expected}, found {found}")
    print(f"{len(CASES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
