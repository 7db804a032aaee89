#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check_words.py finds old words in texts and comments, and leaves code alone."""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_words  # noqa: E402

CASES = [  # file, text, what is found: line and word
    ("README.md", "Ranks of a group take part in a collective.\n", []),
    ("README.md", "A meeting of merged ranks.\n", ["1: 'meeting'", "1: 'merged'"]),
    ("README.md", "The key `meeting`, the option `--merge`, [page](docs/window.md), <b id=\"deal\">.\n", []),
    ("docs/a.md", "```sh\nmerge deal\n```\nA breach.\n", ["4: 'breach'"]),
    ("docs/a.md", "A sliding window; Windows and macOS; the wall clock.\n", []),
    ("docs/a.md", "An idea, an ideal pipeline order, a merger, dealers.\n", []),
    ("docs/evaluation.md", "A deal.\n", []),
    ("examples/a.cpp", "int window = 0;  // the grain\nconst char* text = \"// deal\";\n", ["1: 'grain'"]),
    ("examples/a.py", "deal = 1  # in island 2\n", ["1: 'island'"]),
    ("src/a.cpp", "// a deal\n", []),
]


def main():
    failed = 0
    for name, text, expected in CASES:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            found = list(check_words.check(pathlib.Path(folder)))
        if [one.split(": write")[0] for one in found] != [f"{name}:{one}" for one in expected]:
            failed += 1
            print(f"{name}: expected {expected}, found {found}")
    print(f"{len(CASES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
