#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that texts use the words of docs/glossary.md: scripts/check_words.py [ROOT]

Prints each old word with the word that replaces it, and ends with status 1 if there is one. Code in backticks,
fenced blocks, links' targets and HTML tags of documents are left out: keys of files and options keep their old
names. Of sources only comments are read.
"""
import pathlib
import re
import sys

# Where the words are checked: files, and folders with their documents, headers and sources.
PLACES = ("README.md", "docs", "examples", "bench", "include", "runtime", "report", "backends", "apps", "tests")
# Pages that a program writes.
LEFT_OUT = ("docs/evaluation.md",)
# An old word, and what to write in its place.
WORDS = (
    (r"deal(s|t|ing)?", "assign"),
    (r"meetings?", "collective, or process group"),
    (r"relie(f|ves?|ved|ving)", "fewer layers, or rebalance"),
    (r"islands?", "rank component"),
    (r"breach(es|ed)?", "violation"),
    (r"grains?", "granularity"),
    (r"windows?", "max_in_flight, or what it is"),
    (r"clocks?", "simulator, or wall time"),
    (r"judged?", "scored"),
    (r"(un)?merg(e|es|ed|ing)", "context-parallel group"),
    (r"(the|a|along|of|in|whole) line of (work|stages|samples|packs)", "virtual stages, or queue"),
    (r"(place|order|end|rest) of the line|(along|down|up) the (whole )?line|line order|line index", "virtual stages"),
    (r"(own|its|their|rank's|each) shares?|shares of (a|the) (sample|slice|group|pack)|blocks of sharing", "CP shard"),
    (r"so-manieth", "every k-th"),
    (r"modelled steps?", "simulated only"),
    (r"thread hubs?|plan clocks?|unit tables?", "rendezvous, fast simulator, schedule tables"),
)
# Phrases in which a word means something else.
ALLOWED = (
    "Windows and macOS",  # the systems
    "sliding windows", "sliding-window", "sliding window",  # a kind of attention
    "wall clock", "wall-clock",
    "meetings, papers",  # what documents are about
)
PATTERNS = [(re.compile(rf"(?<![\w-])(?:{word})(?![\w-])", re.IGNORECASE), instead) for word, instead in WORDS]
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|<[^>]*>")
COMMENT = {".hpp": "//", ".cpp": "//", ".cu": "//", ".cuh": "//", ".py": "#", ".sh": "#", ".cmake": "#"}


def text_of(path):
    """Yields (line number, text to check)."""
    lines = path.read_text(encoding="utf-8").splitlines()
    mark = COMMENT.get(path.suffix)
    fenced = False
    for number, line in enumerate(lines, 1):
        if mark:
            before, found, comment = line.partition(mark)
            if found and before.count('"') % 2 == 0:
                yield number, CODE.sub(" ", comment)
        elif line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, CODE.sub(" ", line)


def files(root):
    for place in PLACES:
        path = root / place
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file() and (file.suffix == ".md" or file.suffix in COMMENT):
                if file.relative_to(root).as_posix() not in LEFT_OUT:
                    yield file


def check(root):
    for path in files(root):
        for number, text in text_of(path):
            for phrase in ALLOWED:
                text = re.sub(re.escape(phrase), "", text, flags=re.IGNORECASE)
            for pattern, instead in PATTERNS:
                for match in pattern.finditer(text):
                    yield f"{path.relative_to(root).as_posix()}:{number}: '{match.group(0)}': write {instead}"


def main(arguments):
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parent.parent
    found = list(check(root))
    for one in found:
        print(one)
    print(f"word check: {len(found)} old words" if found else "word check: clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
