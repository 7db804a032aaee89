#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does each public header compile alone?

    scripts/check_headers.py BUILD_FOLDER [--jobs N]

Reads each header that the build folder's verify_interface_header_sets would compile as a file of its own, by libclang 14
with the same arguments. Bodies of functions in files that a header includes are passed over: each of these files is read
for itself, and programs compile them all. This takes half of the compiler's time. What is complained of is read once more
whole, as the compiler does, and that counts. The folder must have been configured with CMAKE_EXPORT_COMPILE_COMMANDS. Prints what the compiler says of each header that does not compile or is warned of, and ends
with status 1 if there is one.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import shlex
import sys

sys.path.append("/usr/lib/python3/dist-packages")  # where Debian's python3-clang-14 is, for any python3
try:
    import clang.cindex
except ImportError:
    raise SystemExit("check_headers.py: libclang's Python module is not there; on Debian install python3-clang-14") from None

SET = "_verify_interface_header_sets"
# Parsed at once with a preamble, in which alone bodies are passed over: values of CXTranslationUnit_Flags.
OPTIONS = 0x4 | 0x40 | 0x100 | 0x800
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
    """Each header with the arguments to read it with."""
    path = folder / "compile_commands.json"
    if not path.is_file():
        raise SystemExit(f"{path}: no such file; configure with -DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
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
        yield found[0], entry["file"], arguments


def read(path, arguments, options):
    """What is said of a file."""
    try:
        unit = clang.cindex.Index.create().parse(path, args=arguments, options=options)
    except clang.cindex.TranslationUnitLoadError:
        return [f"{path}: libclang cannot read it"]
    return [diagnostic.format() for diagnostic in unit.diagnostics if diagnostic.severity >= clang.cindex.Diagnostic.Warning]


def complaints(header):
    """What is said of a header, or rather of the file that includes it, if anything is said."""
    path, includes_it, arguments = header
    return read(path, [*arguments, "-Wno-pragma-once-outside-header"], OPTIONS) and read(includes_it, arguments, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    clang.cindex.Config.set_library_file("/usr/lib/llvm-14/lib/libclang-14.so.1")
    found = list(headers(options.folder))
    bad = 0
    with multiprocessing.Pool(options.jobs, maxtasksperchild=8) as pool:
        for said in pool.imap_unordered(complaints, found):
            bad += bool(said)
            print(*said, sep="\n", end="\n" if said else "", flush=True)
    print(f"{len(found)} headers read alone, {bad} of them with errors or warnings")
    return 1 if bad or not found else 0


if __name__ == "__main__":
    sys.exit(main())
