#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What units of a step take, beside what their plan says they take.

    bench/trace_units.py BIN TRACE.json ...

TRACE.json is what `mini_trainer --trace` writes; its plan lies beside it. BIN is the folder with the program slimpack,
which predicts the plan. A row for every rank and kind of unit: the sums of measured and predicted milliseconds. A unit
that waits for another rank inside, as O does for the norm of all gradients, takes this wait too. Ends with status 1
where a file is missing or not a trace.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

KINDS = {"forward": "F", "backward": "B", "weight": "W", "head": "H", "optimizer": "O"}


def units_of(path):
    """{(process, thread, name of the unit): (kind, milliseconds)}, names of threads, and the end of the last unit."""
    events = json.loads(path.read_text())["traceEvents"]
    threads = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one.get("name") == "thread_name"}
    units = {(one["pid"], one["tid"], one["name"]): (KINDS[one["cat"]], one["dur"] / 1e3)
             for one in events if one["ph"] == "X" and one.get("cat") in KINDS}
    return units, threads, max(one["ts"] + one["dur"] for one in events if one["ph"] == "X") / 1e3


def rows_of(slimpack, trace):
    """Rows of a trace, and the two ends."""
    measured, threads, end = units_of(trace)
    with tempfile.TemporaryDirectory() as folder:
        simulated = pathlib.Path(folder) / "simulated.json"
        subprocess.run([slimpack, "simulate", trace.with_suffix(".plan.json"), "--trace", simulated], check=True,
                       stdout=subprocess.DEVNULL)
        predicted, _, predicted_end = units_of(simulated)
    sums = {}
    for place, (kind, took) in measured.items():
        row = sums.setdefault((place[0], place[1], kind), [0, 0, 0])
        row[0] += 1
        row[1] += took
        row[2] += predicted[place][1]
    rows = [(f"dp {pid - 1}, {threads[pid, tid].removesuffix(' compute')}", kind, *row)
            for (pid, tid, kind), row in sorted(sums.items(), key=lambda item: (item[0][:2], list(KINDS.values()).index(item[0][2])))]
    return rows, end, predicted_end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path, metavar="BIN")
    parser.add_argument("traces", type=pathlib.Path, nargs="+", metavar="TRACE.json")
    options = parser.parse_args()
    for trace in options.traces:
        try:
            rows, end, predicted_end = rows_of(options.bin / "slimpack", trace)
        except (OSError, ValueError, KeyError, TypeError, subprocess.CalledProcessError) as error:
            print(f"trace_units.py: {trace}: must be a trace of mini_trainer with its plan beside it: {error}", file=sys.stderr)
            return 1
        print(f"{trace.name}: {end:.2f} ms from the beginning to the end of the last unit, predicted {predicted_end:.2f}\n")
        print("| rank | units | number | measured, ms | predicted, ms | predicted / measured |\n|---|---|---:|---:|---:|---:|")
        for place, kind, count, took, said in rows:
            print(f"| {place} | {kind} | {count} | {took:.2f} | {said:.2f} | {said / took:.3f} |")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
