#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does each public header compile alone?

    scripts/check_headers.py BUILD_FOLDER [--jobs N]

Reads each header that the build folder's verify_interface_header_sets would compile as a file of its own, by libclang 14
with the same arguments. What is complained of is read once more whole, as the compiler does, and that counts. Two things
take two thirds of the compiler's time away:

  - Bodies of functions in files that a header includes are passed over: each of these files is read for itself, and
    programs compile them all.
  - Some headers are read first, alone, and kept precompiled. A header is read on top of the largest of these that it
    includes under no condition: nothing is there which it would not have included.

The folder must have been configured with CMAKE_EXPORT_COMPILE_COMMANDS. Prints what the compiler says of each header that
does not compile or is warned of, and ends with status 1 if there is one.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import re
import shlex
import sys
import tempfile

sys.path.append("/usr/lib/python3/dist-packages")  # where Debian's python3-clang-14 is, for any python3
try:
    import clang.cindex
except ImportError:
    raise SystemExit("check_headers.py: libclang's Python module is not there; on Debian install python3-clang-14") from None

SET = "_verify_interface_header_sets"
# Parsed at once with a preamble, in which alone bodies are passed over: values of CXTranslationUnit_Flags.
OPTIONS = 0x4 | 0x40 | 0x100 | 0x800
# The same for what is precompiled: incomplete, to be saved, without bodies anywhere.
TO_SAVE = 0x2 | 0x10 | 0x40
# About what is read for a system header of which nothing is there yet, in bytes.
SYSTEM_HEADER = 20000
# What a precompiled header costs, in readings of what it saves.
MAKING = 4
WITH_VALUE = ("-o", "-MF", "-MT", "-MQ")


def parse_arguments(command):
    """The arguments that decide how a file is read."""
    kept = []
    words = iter(command[1:])
    for word in words:
        if word in WITH_VALUE:
            next(words)
        elif word not in ("-c", "-fsyntax-only", "-MD", "-MMD") and not word.endswith(".hpp.cxx"):
            kept.append(word)
    return kept


def headers(folder):
    """For each list of arguments the headers to read with it: by name the path, and the file that includes it."""
    path = folder / "compile_commands.json"
    if not path.is_file():
        raise SystemExit(f"{path}: no such file; configure with -DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    groups = {}
    for entry in json.loads(path.read_text(encoding="utf-8")):
        at = entry["file"].find(SET + "/")
        if at < 0:
            continue
        name = entry["file"][at + len(SET) + 1 : -len(".cxx")]
        arguments = parse_arguments(shlex.split(entry["command"]))
        places = (os.path.join(one[2:], name) for one in arguments if one.startswith("-I"))
        found = [place for place in places if os.path.isfile(place)]
        if not found:
            raise SystemExit(f"{path}: {name} is in none of its folders of headers")
        groups.setdefault(tuple(arguments), {})[name] = found[0], entry["file"]
    return groups


def includes(path):
    """What a file includes under no condition, and its size."""
    found = set()
    depth = 0
    text = pathlib.Path(path).read_text(encoding="utf-8")
    for directive, name in re.findall(r'^[ \t]*#[ \t]*(if|endif|include)[^\n"<]*(?:["<]([^">\n]+)[">])?', text, re.MULTILINE):
        depth += (directive == "if") - (directive == "endif")
        if directive == "include" and depth == 0:
            found.add(name)
    return found, len(text)


class Precompiled:
    """Which headers of those with the same arguments to precompile, and on top of which of them each is read."""

    def __init__(self, paths):
        self.paths = paths
        found = {name: includes(path) for name, path in paths.items()}
        self.direct = {name: direct for name, (direct, _) in found.items()}
        self.all = {}
        for name in paths:
            self.reach(name)
        size = {name: size for name, (_, size) in found.items()}
        self.bytes = {name: sum(size.get(one, SYSTEM_HEADER) for one in {name} | self.all[name]) for name in paths}
        self.under = dict.fromkeys(paths)
        self.names = list(self.choose())

    def reach(self, name):
        """All that a header includes, directly or not."""
        if name not in self.all:
            self.all[name] = set()  # of headers that include each other the compiler complains
            self.all[name] = set().union(*({one} | self.reach(one) for one in self.direct.get(name, ())))
        return self.all[name]

    def saves(self, name, user):
        """What a header saves a user of it beyond what is chosen."""
        there = self.under[user]
        return max(0, self.bytes[name] - (self.bytes[there] if there else 0))

    def choose(self):
        """Always the header that saves most, as long as one saves more than it costs."""
        users = {name: [user for user in self.paths if name in self.all[user]] for name in self.paths}
        while True:
            gain = {name: sum(self.saves(name, user) for user in users[name]) - MAKING * self.bytes[name] for name in users}
            best = max(gain, key=gain.get)
            if gain[best] <= 0:
                return
            for user in users[best]:
                if self.saves(best, user):
                    self.under[user] = best
            yield best


def precompile(job):
    """What is wrong with it is said where the header is read for itself; without it all is read."""
    includes_it, arguments, made = job
    try:
        clang.cindex.Index.create().parse(includes_it, args=[*arguments, "-x", "c++-header"], options=TO_SAVE).save(made)
    except (clang.cindex.TranslationUnitLoadError, clang.cindex.TranslationUnitSaveError):
        pass


def read(path, arguments, options):
    """What is said of a file."""
    try:
        unit = clang.cindex.Index.create().parse(path, args=arguments, options=options)
    except clang.cindex.TranslationUnitLoadError:
        return [f"{path}: libclang cannot read it"]
    return [diagnostic.format() for diagnostic in unit.diagnostics if diagnostic.severity >= clang.cindex.Diagnostic.Warning]


def complaints(header):
    """What is said of a header, or rather of the file that includes it, if anything is said."""
    path, includes_it, arguments, under = header
    on_top = ["-include-pch", under] if under and os.path.isfile(under) else []
    return read(path, [*arguments, *on_top, "-Wno-pragma-once-outside-header"], OPTIONS) and read(includes_it, arguments, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    clang.cindex.Config.set_library_file("/usr/lib/llvm-14/lib/libclang-14.so.1")
    to_make = []
    to_read = []
    bad = 0
    with tempfile.TemporaryDirectory() as work, multiprocessing.Pool(options.jobs, maxtasksperchild=8) as pool:
        for arguments, found in headers(options.folder).items():
            precompiled = Precompiled({name: path for name, (path, _) in found.items()})
            made = {name: os.path.join(work, f"{len(to_make) + at}.pch") for at, name in enumerate(precompiled.names)}
            to_make += [(found[name][1], arguments, made[name]) for name in made]
            to_read += [(*found[name], arguments, made.get(precompiled.under[name])) for name in found]
        pool.map(precompile, to_make, chunksize=1)
        for said in pool.imap_unordered(complaints, to_read):
            bad += bool(said)
            print(*said, sep="\n", end="\n" if said else "", flush=True)
    print(f"{len(to_read)} headers read alone, {len(to_make)} of them also precompiled, {bad} with errors or warnings")
    return 1 if bad or not to_read else 0


if __name__ == "__main__":
    sys.exit(main())
