#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wraps the paragraphs and lists of Markdown files at 100 columns: scripts/wrap_markdown.py FILE...

Tables, headings, fenced blocks, pictures and HTML stay as they are. A code span is not broken, and no line begins
with what Markdown would take for a list.
"""
import pathlib
import re
import sys
import textwrap

COLUMNS = 100
GLUE = "\x01"  # a blank at which no line ends
ITEM = re.compile(r"(\s*)([-*]|\d+\.) (.*)")
LIKE_A_LIST = re.compile(r" (?=(?:[-+*#]|\d+[.)])(?: |$))")


def wrapped(lines, first, rest):
    text = " ".join(line.strip() for line in lines)
    text = re.sub(r"`[^`]*`", lambda span: span.group(0).replace(" ", GLUE), text)
    text = LIKE_A_LIST.sub(GLUE, text)
    text = textwrap.wrap(text, COLUMNS, initial_indent=first, subsequent_indent=rest,
                         break_long_words=False, break_on_hyphens=False)
    return [line.replace(GLUE, " ") for line in text]


def wrap(text):
    out, paragraph, indents, fenced = [], [], ("", ""), False

    def flush():
        if paragraph:
            out.extend(wrapped(paragraph, *indents))
            paragraph.clear()

    for line in text.splitlines():
        item = ITEM.fullmatch(line)
        if fenced or line.startswith(("```", "|", "#", "<", "![")) or not line.strip():
            flush()
            out.append(line)
            fenced ^= line.startswith("```")
        elif item:
            flush()
            first = f"{item.group(1)}{item.group(2)} "
            indents = (first, " " * len(first))
            paragraph.append(item.group(3))
        else:
            if not paragraph:
                indents = ("", "")
            paragraph.append(line)
    flush()
    return "\n".join(out) + "\n"


def main(arguments):
    for name in arguments:
        path = pathlib.Path(name)
        path.write_text(wrap(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
