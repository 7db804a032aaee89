#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What including a header costs: processor time and peak memory of the compiler.

    bench/compile_time.py [--compiler g++] [--root FOLDER] [--only TEXT] [--json FILE]

Compiles an empty program with each public entry header at -O0, and examples/quickstart.cpp at -O2: as headers
alone, and as with slimpack::planners linked. Beside them stand two libraries that everybody knows. A header that
FOLDER, another checkout, does not have is left out.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HEADERS = [  # each where it lies now, then where it lay before
    ("slimpack/slimpack.hpp",),
    ("slimpack/planners/slimpack/slimpack.hpp", "slimpack/planners/slimpack.hpp"),
    ("slimpack/planners/registry.hpp",),
    ("slimpack/planners/planner.hpp",),
    ("slimpack/data/sample.hpp",),
    ("slimpack/plan/plan.hpp",),
    ("slimpack/cost/presets.hpp",),
    ("slimpack/cost/fit.hpp",),
    ("slimpack/sim/simulate_plan.hpp",),
    ("slimpack/validate/validate.hpp",),
    ("slimpack/io/plan_json.hpp",),
    ("slimpack/io/text_lengths.hpp",),
    ("slimpack/runtime/run_step.hpp", "slimpack/exec/run_step.hpp"),
    ("slimpack/runtime/checkpoint.hpp", "slimpack/io/checkpoint.hpp"),
    ("slimpack_cpu/device.hpp",),
    ("slimpack/report/compare.hpp",),
    ("slimpack/report/compare_html.hpp",),
    ("slimpack/report/svg.hpp",),
    ("nlohmann/json.hpp",),
    ("Eigen/Dense",),
]
FOLDERS = ("include", "runtime/include", "report/include", "backends/cpu/include")
COMPILED = "-DSLIMPACK_COMPILED_PLANNERS"


def compile_once(command, source):
    """(seconds of processor time, peak MB), or None if it does not compile."""
    process = subprocess.Popen([*command, "-c", str(source), "-o", os.devnull], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        return None
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def shown(figures):
    return "-" if figures is None else f"{figures[0]:.2f} s, {figures[1]:.0f} MB"


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--json", type=pathlib.Path, help="the figures, for comparing two checkouts")
    options = parser.parse_args(arguments)
    folders = [options.root / folder for folder in FOLDERS]
    base = [options.compiler, "-std=c++20", *(f"-I{folder}" for folder in folders), "-isystem/usr/include/eigen3"]
    rows = {}
    print("| compiled | header-only | slimpack::planners linked |\n| --- | ---: | ---: |")
    with tempfile.TemporaryDirectory() as scratch:
        empty = pathlib.Path(scratch) / "empty.cpp"

        def row(name, source, flags, both):
            if options.only not in name:
                return
            alone = compile_once([*base, *flags], source)
            linked = compile_once([*base, *flags, COMPILED], source) if both else None
            rows[name] = {"header_only": alone, "planners_linked": linked}
            print(f"| {name} | {shown(alone)} | {shown(linked)} |", flush=True)

        for names in HEADERS:
            ours = [name for name in names if any((folder / name).is_file() for folder in folders)]
            if not ours and names[0].startswith("slimpack"):
                continue
            header = ours[0] if ours else names[0]
            empty.write_text(f"#include <{header}>\nint main() {{}}\n", encoding="utf-8")
            row(f"`{header}` at -O0", empty, ["-O0"], header.startswith("slimpack/slimpack.hpp") or "planners/" in header)
        row("`examples/quickstart.cpp` at -O2", options.root / "examples" / "quickstart.cpp", ["-O2"], True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["header_only"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
