#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each price of small units costs planners: bench/price_terms.py PROGRAM [--same-plans] [OPTION...]

Plans one step under the preset h100, then again with one price changed, and prints each planner's time over that
under the preset. Options go to `slimpack compare` (lengths and degrees); without them there are two tables of a
small step, without tensor parallelism and with it. Planners plan anew for every row, within the same budget, so a row
holds what their search makes of it; with --same-plans each row simulates the plans of the first one again, and
planners whose answer is no plan are left out.
"""
import json
import os
import subprocess
import sys
import tempfile

STEP = ["examples/data/longsft_mix.lengths", "--context", "32768", "--overlong", "split", "--batch-tokens", "1M"]
DEGREES = (["--dp", "2", "--pp", "4"], ["--dp", "2", "--pp", "2", "--tp", "2"])
PLANNERS = "slimpack,slimpack-symmetric,slimpipe,chunkflow,zeppelin,kk,megatron-interleaved"
# A row's name, and what it changes in the cluster.
ROWS = (
    ("no price of small units", {"matrix_tile_rows": 0, "weight_traffic": 0, "accumulator_traffic": 0, "prefix_traffic": 0,
                                 "tp_overlap": 0, "collective_compute": 0, "shared_links": False}),
    ("no tiles of matrix products", {"matrix_tile_rows": 0}),
    ("weights not read", {"weight_traffic": 0}),
    ("accumulators not read and written", {"accumulator_traffic": 0}),
    ("prefixes not read and written", {"prefix_traffic": 0}),
    ("collectives take no compute", {"collective_compute": 0}),
    ("links not shared", {"shared_links": False}),
    ("no memory traffic hidden", {"memory_overlap": 0}),
    ("all memory traffic hidden", {"memory_overlap": 1}),
    ("no tensor-parallel traffic hidden", {"tp_overlap": 0}),
    ("all tensor-parallel traffic hidden", {"tp_overlap": 1}),
    ("kernels x 0.5", {"kernel_s": 2e-6}),
    ("kernels x 2", {"kernel_s": 8e-6}),
)


def run(command):
    """What a command prints as JSON; no feasible plan is an answer too."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr.strip().splitlines()[-1])
    return done.stdout


def times(program, options, change):
    """Seconds of each planner's step under the changed preset, None where it has no plan."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = os.path.join(folder, "cluster.json")
        with open(cluster, "w", encoding="utf-8") as file:
            json.dump({"base": "h100", **change}, file)
        output = run([program, "compare", *options, "--cluster", cluster, "--planners", PLANNERS, "--json", "-"])
    return {result["planner"]: result["iteration_s"] for result in json.loads(output)["results"]}


def made_plans(program, options, folder):
    """The plan of each planner that has one: name to object."""
    plans = {}
    for name in PLANNERS.split(","):
        path = os.path.join(folder, name + ".json")
        if subprocess.run([program, "plan", *options, "--cluster", "h100", "--planner", name, "-o", path],
                          capture_output=True, check=False).returncode == 0:
            with open(path, encoding="utf-8") as file:
                plans[name] = json.load(file)
    return plans


def simulated(program, plans, change, folder):
    """Seconds of each plan's step under the changed cluster."""
    seconds = {}
    path = os.path.join(folder, "changed.json")
    for name, plan in plans.items():
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**plan, "cluster": {**plan["cluster"], **change}}, file)
        seconds[name] = json.loads(run([program, "simulate", path, "--json"]))["iteration_s"]
    return seconds


def print_table(of_change):
    base = of_change({})
    names = list(base)
    print(f"{'':36}" + "".join(f"{name:>22}" for name in names))
    print(f"{'h100, seconds':36}" + "".join(f"{base[name]:22.3f}" if base[name] else f"{'-':>22}" for name in names))
    for row, change in ROWS:
        now = of_change(change)
        cells = [f"{100 * (now[name] / base[name] - 1):+20.1f} %" if now[name] and base[name] else f"{'-':>22}" for name in names]
        print(f"{row:36}" + "".join(cells), flush=True)


def main(arguments):
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    program, options = arguments[0], arguments[1:]
    same = options[:1] == ["--same-plans"]
    options = options[same:]
    for step in [options] if options else [STEP + degrees for degrees in DEGREES]:
        print(" ".join(step))
        if not same:
            print_table(lambda change, step=step: times(program, step, change))
            continue
        with tempfile.TemporaryDirectory() as folder:
            plans = made_plans(program, step, folder)
            print_table(lambda change, plans=plans, folder=folder: simulated(program, plans, change, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
