#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each price of small units costs planners: bench/price_terms.py PROGRAM [OPTION...]

Plans one step under the preset h100, then again with one price changed, and prints each planner's time over that
under the preset. Options go to `slimpack compare` (lengths and degrees; a small step unless given). Planners plan
anew for every row, within the same budget.
"""
import json
import os
import subprocess
import sys
import tempfile

STEP = ["examples/data/longsft_mix.lengths", "--context", "32768", "--overlong", "split", "--batch-tokens", "1M", "--dp", "2",
        "--pp", "4"]
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


def times(program, options, change):
    """Seconds of each planner's step under the changed preset, None where it has no plan."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = os.path.join(folder, "cluster.json")
        with open(cluster, "w", encoding="utf-8") as file:
            json.dump({"base": "h100", **change}, file)
        done = subprocess.run([program, "compare", *options, "--cluster", cluster, "--planners", PLANNERS, "--json", "-"],
                              capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr.strip().splitlines()[-1])
    return {result["planner"]: result["iteration_s"] for result in json.loads(done.stdout)["results"]}


def main(arguments):
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    program, options = arguments[0], arguments[1:] or STEP
    base = times(program, options, {})
    names = list(base)
    print(f"{'':36}" + "".join(f"{name:>22}" for name in names))
    print(f"{'h100, seconds':36}" + "".join(f"{base[name]:22.3f}" if base[name] else f"{'-':>22}" for name in names))
    for row, change in ROWS:
        now = times(program, options, change)
        cells = [f"{100 * (now[name] / base[name] - 1):+20.1f} %" if now[name] and base[name] else f"{'-':>22}" for name in names]
        print(f"{row:36}" + "".join(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
