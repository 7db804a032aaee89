#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check_readme.py finds each violation it knows, and none in a good document."""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_readme  # noqa: E402

SOURCE = "// SPDX-License-Identifier: Apache-2.0\n// Says what it is.\n#include <cstdio>\nint main() {}\n"
QUOTE = "<!-- from: main.cpp -->\n```cpp\n#include <cstdio>\nint main() {}\n```\n"
CASES = [  # document, what the only violation must say; None where there is none
    (QUOTE + "[source](main.cpp), [part](main.cpp#L3), [web](https://example.org)\n", None),
    (QUOTE.replace("cstdio", "cmath"), "README.md:1: the block differs from main.cpp"),
    (QUOTE.replace("int main() {}\n", ""), "README.md:1: the block differs from main.cpp"),
    ("<!-- from: main.cpp -->\nint main() {}\n", "README.md:1: no fenced block follows"),
    ("<!-- from: main.cpp -->\n```cpp\nint main() {}\n", "README.md:1: no fenced block follows"),
    ("<!-- from: other.cpp -->\n```\n```\n", "README.md:1: other.cpp does not exist"),
    ("a\n[source](other.cpp)\n", "README.md:2: links to other.cpp, which does not exist"),
    ('<img src="docs/a.svg">\n', "README.md:1: links to docs/a.svg, which does not exist"),
    ("`core/one.hpp` and `one.hpp`\n", None),
    ("`core/two.hpp`\n", "README.md:1: names core/two.hpp, which does not exist"),
]
LIST = '#include "slimpack/planners/published/first.hpp"\n'
FIRST = 'static constexpr std::string_view name = "first-one";\n'
OWN = '    {"slimpack", "all of it", {}},\n    {"slimpack-half",\n'
ROWS = "\n| `first-one` | |\n| `slimpack` | |\n| `slimpack-half` | |\n"
PAGE_CASES = [  # README, planners.md, what the only violation must say
    ("[planners](docs/planners.md)\n", ROWS, None),
    ("`docs/planners.md`\n", ROWS, "README.md:1: does not link docs/planners.md"),
    ("[planners](docs/planners.md)\n", ROWS.replace("| `first-one` | |\n", ""),
     "docs/planners.md:1: has no row for first-one"),
    ("[planners](docs/planners.md)\n", ROWS.replace("| `slimpack-half` | |\n", "`slimpack-half`\n"),
     "docs/planners.md:1: has no row for slimpack-half"),
]


def violations_of(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return check_readme.check(root)


def main():
    failed = 0
    cases = [({"main.cpp": SOURCE, "include/core/one.hpp": "", "README.md": document}, expected)
             for document, expected in CASES]
    cases += [({"README.md": readme, "docs/planners.md": rows, check_readme.PLANNER_LIST: LIST,
                check_readme.OWN_PLANNERS: OWN, "include/slimpack/planners/published/first.hpp": FIRST}, expected)
              for readme, rows, expected in PAGE_CASES]
    for files, expected in cases:
        found = violations_of(files)
        if found != ([] if expected is None else [expected]):
            failed += 1
            print(f"expected {expected}, found {found}")
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
