#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does slimpack, at degrees that nobody tuned, end behind its own ablations or another planner?

bench/random_settings.py PROGRAM [--seed S] [--count N] [--planners A,B] [--effort E] [--jobs J] [--store FILE]

Draws COUNT settings by SEED: length set, context, model, cluster, dp x pp x tp, tokens a device of a step, and the
step. Runs `slimpack compare` at each for slimpack and the planners named (its ablations where none are), all at the same
degrees and effort. Prints each setting where slimpack takes more than 0.1 % longer than another planner, with the
arguments that run it again, and for each planner the geometric mean of slimpack's time over its time, the worst, and in
how many settings slimpack is behind. Draws are SHA-256 of seed, number and name: the same seed draws the same anywhere; a
setting that no planner has a plan for is left out and counted. Run from the root of the repository. Ends with status 1
where slimpack is behind an ablation by more than 0.1 %, with 2 for options that are wrong.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import math
import statistics
import subprocess
import sys

SETS = {  # contexts up to the longest document of each
    "bench/evaluation/data/code": ("32K", "64K", "128K", "256K"),
    "bench/evaluation/data/encyclopedia": ("16K", "32K", "64K"),
    "bench/evaluation/data/web": ("16K", "32K"),
    "examples/data/longsft_mix": ("32K", "64K", "128K", "256K"),
    "examples/data/books": ("32K", "64K", "128K", "256K"),
    "examples/data/webpages": ("16K", "32K"),
}
MODELS = ("llama-7b", "llama3-8b", "llama-13b", "llama-70b")
CLUSTERS = ("h100", "h200", "a100")
DEGREES = {  # dp, pp, tp: of models with so few weights that they fit
    "llama-7b": ((1, 8, 1), (2, 4, 1), (2, 2, 2), (4, 4, 1), (8, 4, 1), (16, 4, 1), (32, 2, 1), (8, 2, 4), (4, 2, 2), (16, 1, 2)),
    "llama3-8b": ((1, 8, 1), (2, 4, 1), (2, 2, 2), (4, 4, 1), (8, 4, 1), (16, 4, 1), (32, 2, 1), (8, 2, 4), (4, 2, 2), (16, 1, 2)),
    "llama-13b": ((1, 8, 1), (2, 8, 1), (4, 4, 2), (8, 4, 1), (16, 4, 1), (16, 8, 1), (32, 2, 1), (8, 2, 4)),
    "llama-70b": ((1, 8, 4), (2, 8, 4), (4, 8, 4), (8, 4, 8), (16, 2, 8), (4, 16, 2)),
}
TOKENS = (8192, 30000, 120000)  # a device
BEHIND = 1.001
SLIMPACK = "slimpack"
BEST = "the best of them"
ABLATIONS = ("slimpack-symmetric", "slimpack-samples", "slimpack-unmerged", "slimpack-lasthead", "slimpack-fused")


def draw(seed, number, name, values):
    """One of the values, each as likely as the others but for 1 in 2^250."""
    digest = hashlib.sha256(f"{seed}/{number}/{name}".encode()).digest()
    return values[int.from_bytes(digest, "big") % len(values)]


def setting(seed, number):
    """The arguments of a setting for `slimpack compare`."""
    lengths = draw(seed, number, "set", tuple(SETS))
    model = draw(seed, number, "model", MODELS)
    dp, pp, tp = draw(seed, number, "degrees", DEGREES[model])
    tokens = max(dp * pp * tp * draw(seed, number, "tokens", TOKENS), 65536)
    return [lengths + ".lengths", "--context", draw(seed, number, "context", SETS[lengths]), "--overlong", "split",
            "--model", model, "--cluster", draw(seed, number, "cluster", CLUSTERS), "--dp", str(dp), "--pp", str(pp),
            "--tp", str(tp), "--batch-tokens", str(tokens), "--seed", str(number)]


class Refused(Exception):
    """A comparison that the program does not make; the message says why."""


def compare(program, arguments, planners, effort):
    """Results by planner of `slimpack compare` with these arguments."""
    command = [program, "compare", *arguments, "--planners", ",".join(planners), "--effort", effort, "--threads", "1", "--json", "-"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Refused(f"{program}: {error.strerror}") from error
    if done.returncode not in (0, 1) or not done.stdout:
        raise Refused(f"{' '.join(command)}: {done.stderr.strip()}")
    return {one["planner"]: one for one in json.loads(done.stdout)["results"]}


class Summary:
    """Ratios of slimpack's time over each planner's, one a setting."""

    def __init__(self, planners):
        self.planners = planners
        self.ratios = {planner: [] for planner in [*planners, BEST]}
        self.none = 0  # settings without any plan
        self.alone = 0  # where only others have a plan
        self.seconds = dict.fromkeys([SLIMPACK, *planners], 0.0)

    def add(self, arguments, results):
        for planner, result in results.items():
            self.seconds[planner] += result["cpu_seconds"] or 0.0
        seconds = {planner: result["iteration_s"] for planner, result in results.items() if result.get("iteration_s")}
        if not seconds:
            self.none += 1
            return
        best = min((planner for planner in seconds if planner != SLIMPACK), key=seconds.get, default=None)
        if SLIMPACK not in seconds:
            self.alone += 1
            print(f"no plan by slimpack, {seconds[best]:.3f} s by {best}: {' '.join(arguments)}", flush=True)
            return
        for planner in self.planners:
            if planner in seconds:
                self.ratios[planner].append(seconds[SLIMPACK] / seconds[planner])
        if best is None:
            return
        ratio = seconds[SLIMPACK] / seconds[best]
        self.ratios[BEST].append(ratio)
        if ratio > BEHIND:
            print(f"{ratio:.4f} slimpack {seconds[SLIMPACK]:.3f} s, {best} {seconds[best]:.3f} s: {' '.join(arguments)}", flush=True)

    def table(self):
        print("\n| slimpack's time over that of | settings | geometric mean | median | worst | behind by more than 0.1 % |")
        print("|---|---:|---:|---:|---:|---:|")
        for planner, ratios in self.ratios.items():
            if not ratios:
                continue
            mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
            behind = sum(ratio > BEHIND for ratio in ratios)
            print(f"| {planner} | {len(ratios)} | {mean:.4f} | {statistics.median(ratios):.4f} | {max(ratios):.4f} | {behind} |")
        print(f"\nNo planner has a plan in {self.none} settings, only others than slimpack in {self.alone}. Processor seconds: " +
              ", ".join(f"{planner} {seconds:.1f}" for planner, seconds in self.seconds.items()) + ".")

    def behind_ablations(self):
        return self.alone > 0 or any(ratio > BEHIND for planner in ABLATIONS for ratio in self.ratios.get(planner, ()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1, help="of the draws")
    parser.add_argument("--count", type=int, default=40, help="settings drawn")
    parser.add_argument("--planners", default=",".join(ABLATIONS), help="that slimpack is held against, commas between")
    parser.add_argument("--effort", default="normal", choices=("fast", "normal", "thorough"))
    parser.add_argument("--jobs", type=int, default=1, help="settings at a time")
    parser.add_argument("--store", help="write arguments and results of each setting here, a line of JSON each")
    given = parser.parse_args()
    planners = [name for name in given.planners.split(",") if name and name != SLIMPACK]
    if given.count < 1 or given.jobs < 1:
        parser.error("--count and --jobs must be >= 1")
    drawn = [setting(given.seed, number) for number in range(given.count)]
    summary = Summary(planners)
    store = open(given.store, "w", encoding="utf-8") if given.store else None
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        run = functools.partial(compare, given.program, planners=[SLIMPACK, *planners], effort=given.effort)
        for arguments, results in zip(drawn, pool.map(run, drawn)):
            summary.add(arguments, results)
            if store:
                print(json.dumps({"arguments": arguments, "results": results}), file=store, flush=True)
    summary.table()
    return 1 if summary.behind_ablations() else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Refused as refusal:
        print(f"random_settings.py: {refusal}", file=sys.stderr)
        sys.exit(2)
