#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists every public name with its header: docs/public_names.txt.

    scripts/public_names.py            writes the file
    scripts/public_names.py --check    ends with status 1, and says what differs, unless the file is up to date

Public are classes, functions, constants, concepts, enumerations with their values, and aliases of namespace
slimpack and those below it outside detail, in the headers of the three products and of slimpack::cpu outside
detail/. Members of classes are not listed. The scanner knows how clang-format writes our headers, not C++.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCTS = ("include", "runtime/include", "report/include", "backends/cpu/include")
LIST = "docs/public_names.txt"
HEAD = "# Every public name with its header, made by scripts/public_names.py.\n"

# Comments and literals, which may hold braces and words that mean something elsewhere.
NOISE = re.compile(r'R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/', re.S)
DIGITS = re.compile(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])")
TOKEN = re.compile(r"[A-Za-z_]\w*|::|->|\[\[|\]\]|[^\sA-Za-z_]")
WORD = re.compile(r"[A-Za-z_]\w*$")
QUALIFIERS = {"inline", "constexpr", "consteval", "constinit", "static", "extern", "const", "explicit", "friend"}


def tokens_of(text):
    text = DIGITS.sub("", text)
    text = NOISE.sub(lambda match: " " if match.group().startswith("/") else ' "" ', text)
    text = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", "", text, flags=re.M)
    return TOKEN.findall(text)


def match_of(tokens, start, left, right):
    """The index behind the bracket that closes the one that opens at `start`."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += (tokens[index] == left) - (tokens[index] == right)
        if depth == 0:
            return index + 1
    return len(tokens)


def behind_angles(tokens, start):
    depth = 0
    index = start
    while index < len(tokens):
        token = tokens[index]
        if token == "(":
            index = match_of(tokens, index, "(", ")")
            continue
        depth += (token == "<") - (token == ">")
        index += 1
        if depth == 0:
            return index
    return index


def is_initialised(head):
    """Whether braces that follow are part of a value, which ends with a semicolon."""
    rest = without_templates(head)
    return "=" in rest and "operator" not in rest and "(" not in rest[:rest.index("=")]


def statements(tokens):
    """Yields (head, body) of each declaration: body holds the tokens between braces, or is None."""
    head = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token == ";":
            if head:
                yield head, None
            head = []
            index += 1
        elif token == "(":
            end = match_of(tokens, index, "(", ")")
            head += tokens[index:end]
            index = end
        elif token == "{":
            end = match_of(tokens, index, "{", "}")
            if not is_initialised(head):
                yield head, tokens[index + 1:end - 1]
                head = []
            index = end
            if not head and tokens[index:index + 1] == [";"]:
                index += 1
        else:
            head.append(token)
            index += 1


def without_templates(head):
    """The declaration without template<...>, requires and attributes in front."""
    index = 0
    while index < len(head):
        if head[index] == "template":
            index = behind_angles(head, index + 1)
        elif head[index] == "[[":
            index = head.index("]]", index) + 1
        elif head[index] == "requires":
            index = behind_requires(head, index + 1)
        elif head[index] in QUALIFIERS or head[index].startswith("SLIMPACK_"):
            index += 1
        else:
            break
    return head[index:]


def behind_requires(head, index):
    """Behind a constraint: names with arguments, or parentheses, joined by && and ||."""
    while index < len(head):
        if head[index] == "(":
            index = match_of(head, index, "(", ")")
        else:
            if head[index] == "!":
                index += 1
            while index < len(head) and (WORD.match(head[index]) or head[index] == "::"):
                index += 1
                if index < len(head) and WORD.match(head[index - 1]) and head[index] == "<":
                    index = behind_angles(head, index)
                if index < len(head) and WORD.match(head[index]) and head[index - 1] != "::":
                    break
        if head[index:index + 2] in (["&", "&"], ["|", "|"]):
            index += 2
        else:
            return index
    return index


def declared(head, body):
    """Yields (kind, name) of one declaration at namespace scope."""
    if "static_assert" in head[:1]:
        return
    if "concept" in head:
        yield "concept", head[head.index("concept") + 1]
        return
    rest = without_templates(head)
    if not rest or rest[0] in ("}", "using") and rest[1:2] == ["namespace"] or rest[0] == "static_assert":
        return
    if rest[0] == "using":
        if "=" in rest:
            yield "alias", rest[1]
        return
    if "typedef" in rest:
        yield "alias", rest[-1]
        return
    if rest[0] == "enum":
        names = [token for token in rest[1:] if WORD.match(token) and token not in ("class", "struct")]
        if names and body is not None:
            yield "enum", names[0]
            for value in values_of(body):
                yield "value", f"{names[0]}::{value}"
        return
    if rest[0] in ("struct", "class", "union"):
        first = rest.index("]]") + 1 if rest[1:2] == ["[["] else 1
        names = [token for token in rest[first:] if WORD.match(token)]
        if names and body is not None and rest[first + 1:first + 2] != ["<"]:
            yield "class", names[0]
        return
    if "operator" in rest:
        return
    if "(" in rest and not ("=" in rest and rest.index("=") < rest.index("(")):
        name = rest[rest.index("(") - 1]
        if WORD.match(name) and rest.index("(") >= 2 and rest[rest.index("(") - 2] != "::":
            yield "function", name
        return
    if rest[0] == "namespace":
        return
    names = rest[:rest.index("=")] if "=" in rest else rest
    if names and names[-1] == "]":
        names = names[:names.index("[")]
    if len(names) >= 2 and WORD.match(names[-1]):
        yield "constant", names[-1]


def values_of(body):
    name = None
    depth = 0
    for token in body:
        depth += (token in "({") - (token in ")}") if token in ("(", ")", "{", "}") else 0
        if name is None and WORD.match(token):
            name = token
            yield name
        elif token == "," and depth == 0:
            name = None


def names_of(tokens, scope=""):
    """Yields (kind, qualified name) of all that namespace slimpack declares."""
    for head, body in statements(tokens):
        if head[:1] == ["namespace"] and body is not None:
            inner = "".join(head[1:])
            if inner and "detail" not in inner.split("::"):
                yield from names_of(body, f"{scope}{inner}::")
        elif scope.startswith("slimpack::"):
            for kind, name in declared(head, body):
                yield kind, scope + name


def public_names(root):
    """Lines `kind name header`, sorted by name; overloads once."""
    lines = set()
    for product in PRODUCTS:
        base = root / product
        for path in base.rglob("*.hpp"):
            header = path.relative_to(base)
            if "detail" not in header.parts:
                for kind, name in names_of(tokens_of(path.read_text(encoding="utf-8"))):
                    lines.add((name, kind, header.as_posix()))
    return HEAD + "".join(f"{name}  {kind}  {header}\n" for name, kind, header in sorted(lines))


def main(arguments):
    listed = ROOT / LIST
    made = public_names(ROOT)
    if arguments != ["--check"]:
        listed.write_text(made, encoding="utf-8")
        print(f"{LIST}: {made.count(chr(10)) - 1} public names")
        return 0
    known = listed.read_text(encoding="utf-8") if listed.exists() else ""
    if known == made:
        print(f"{LIST}: {made.count(chr(10)) - 1} public names, as listed")
        return 0
    before, after = set(known.splitlines()), set(made.splitlines())
    for line in sorted(before - after):
        print(f"- {line}")
    for line in sorted(after - before):
        print(f"+ {line}")
    print(f"public names differ from {LIST}: run scripts/public_names.py, and write into CHANGELOG.md and "
          "docs/migration.md what users must change")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
