#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does slimpack, at degrees that nobody tuned, end behind its own ablations or another planner?

bench/random_settings.py PROGRAM [--seed S ..] [--count N] [--least-tokens T] [--most-tokens T]
                         [--planners ablations|published|A,B] [--one-stage] [--free] [--effort E] [--most R] [--mean R] [--jobs J] [--store FILE]

Draws COUNT settings by each SEED: length set, context, model, cluster, dp x pp x tp, tokens a device of a step, and the
step; with --one-stage of degrees with pp = 1 alone. Runs `slimpack compare` at each for slimpack and the planners named
(its ablations where none are), all at the same degrees and effort; with --free `slimpack tune`, each at its own best
degrees for as many devices. Prints each setting where slimpack takes more than 0.1 % longer than another planner, with
the arguments that run it again, and for each planner, the best of each kind, and the proven lower bound, slimpack's time
over it: geometric mean, median, worst, and in how many settings slimpack is behind; last how far the fullest rank is
above the mean. Draws are SHA-256 of seed, number and name: the same seed draws the same anywhere; a setting that no
planner has a plan for is left out and counted. What the store's file holds is taken from there: an interrupted run goes
on where it ended, another planner is run alone. Run from the root of the repository. Ends with status 1 where slimpack is behind an ablation by a ratio above --most (1.001),
or its mean over the best of them is above --mean (--most), with 2 for options that are wrong.
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
ONE_STAGE = tuple((dp, 1, tp) for dp, tp in ((2, 1), (4, 1), (8, 1), (16, 1), (32, 1), (2, 2), (4, 2), (8, 2), (16, 2), (32, 2), (8, 4), (16, 4), (4, 8), (8, 8)))
TOKENS = (8192, 30000, 120000)  # a device
BEHIND = 1.001
SLIMPACK = "slimpack"
KINDS = ("the best ablation", "the best plan of a published system", "the best that is simulated only")
BOUND = "its lower bound"
ABLATIONS = ("slimpack-symmetric", "slimpack-samples", "slimpack-unmerged", "slimpack-lasthead", "slimpack-fused")


def draw(seed, number, name, values):
    """One of the values, each as likely as the others but for 1 in 2^250."""
    digest = hashlib.sha256(f"{seed}/{number}/{name}".encode()).digest()
    return values[int.from_bytes(digest, "big") % len(values)]


def setting(seed, number, one_stage=False):
    """The arguments of a setting for `slimpack compare`; with degrees of one stage, of models that fit."""
    lengths = draw(seed, number, "set", tuple(SETS))
    model = draw(seed, number, "model", MODELS[:3] if one_stage else MODELS)
    dp, pp, tp = draw(seed, number, "degrees", ONE_STAGE if one_stage else DEGREES[model])
    tokens = max(dp * pp * tp * draw(seed, number, "tokens", TOKENS), 65536)
    return [lengths + ".lengths", "--context", draw(seed, number, "context", SETS[lengths]), "--overlong", "split",
            "--model", model, "--cluster", draw(seed, number, "cluster", CLUSTERS), "--dp", str(dp), "--pp", str(pp),
            "--tp", str(tp), "--batch-tokens", str(tokens), "--seed", str(number)]


class Refused(Exception):
    """A comparison that the program does not make; the message says why."""


def answer(program, arguments):
    """What the program prints as JSON."""
    command = [program, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Refused(f"{program}: {error.strerror}") from error
    if done.returncode not in (0, 1) or not done.stdout:
        raise Refused(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def compare(arguments, program, planners, effort, threads="1"):
    """Results by planner of `slimpack compare` with these arguments."""
    found = answer(program, ["compare", *arguments, "--planners", ",".join(planners), "--effort", effort, "--threads", threads,
                             "--json", "-"])
    return {one["planner"]: one for one in found["results"]}


def tune(arguments, program, planners, effort):
    """The best of each planner by `slimpack tune` on as many devices, in the form of `compare`."""
    degrees = [arguments.index(name) for name in ("--dp", "--pp", "--tp")]
    devices = math.prod(int(arguments[at + 1]) for at in degrees)
    rest = [one for i, one in enumerate(arguments) if not degrees[0] <= i < degrees[0] + 6]
    found = answer(program, ["tune", *rest, "--gpus", str(devices), "--planners", ",".join(planners), "--effort", effort, "--threads", "1",
                             "--json", "-"])
    results = {}
    for one in found["results"]:
        times = [tried["time_s"] for tried in one["tried"] if tried["feasible"] and tried["time_s"]]
        results[one["planner"]] = {"iteration_s": min(times, default=None), "cpu_seconds": one["cpu_seconds"]}
    return results


class Store:
    """Results by setting and planner, a line of JSON a setting, of a file that earlier runs may have begun."""

    KEPT = ("iteration_s", "lower_bound_s", "dp_imbalance", "dp_over_least", "cpu_seconds")  # of a result, what is printed

    def __init__(self, path, kind, program):
        self.kind = kind  # effort and kind of comparison, in which a line must agree
        self.program = program  # version, for who reads the file
        self.known = {}  # by arguments, then by planner
        self.file = None
        if path:
            self.file = open(path, "a+", encoding="utf-8")
            self.file.seek(0)
            for line in self.file:
                try:
                    one = json.loads(line)
                except ValueError:  # an interrupted run may leave half a line
                    continue
                if one.get("kind") == kind:
                    self.known.setdefault(tuple(one["arguments"]), {}).update(one["results"])

    def results(self, arguments, planners, run):
        """What the file holds of these planners; of the others what `run` finds, which is written."""
        known = self.known.setdefault(tuple(arguments), {})
        missing = [planner for planner in planners if planner not in known]
        if missing:
            found = {planner: {name: result.get(name) for name in self.KEPT}
                     for planner, result in run(arguments, planners=missing).items()}
            known.update(found)
            if self.file:
                print(json.dumps({"arguments": arguments, "kind": self.kind, "program": self.program, "results": found}),
                      file=self.file, flush=True)
        return {planner: known[planner] for planner in planners}


class Summary:
    """Ratios of slimpack's time over each planner's, one a setting."""

    def __init__(self, planners, simulated_only):
        self.planners = planners
        self.kind = {planner: KINDS[0] if planner.startswith(SLIMPACK) else KINDS[2 if planner in simulated_only else 1]
                     for planner in planners}
        self.ratios = {row: [] for row in [*planners, *KINDS, BOUND]}
        self.fullest = []  # the fullest rank over the mean
        self.over_least = []  # and over the least that any assignment of the samples has of it
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
        others = {planner: time for planner, time in seconds.items() if planner != SLIMPACK}
        if SLIMPACK not in seconds:
            self.alone += 1
            best = min(others, key=others.get)
            print(f"no plan by slimpack, {others[best]:.3f} s by {best}: {' '.join(arguments)}", flush=True)
            return
        ours = seconds[SLIMPACK]
        if results[SLIMPACK].get("lower_bound_s"):
            self.ratios[BOUND].append(ours / results[SLIMPACK]["lower_bound_s"])
            self.fullest.append(results[SLIMPACK]["dp_imbalance"])
            self.over_least.append(results[SLIMPACK]["dp_over_least"])
        for planner, time in others.items():
            self.ratios[planner].append(ours / time)
        for kind in KINDS:
            best = min((planner for planner in others if self.kind[planner] == kind), key=others.get, default=None)
            if best is None:
                continue
            ratio = ours / others[best]
            self.ratios[kind].append(ratio)
            if ratio > BEHIND:
                print(f"{ratio:.4f} slimpack {ours:.3f} s, {best} {others[best]:.3f} s: {' '.join(arguments)}", flush=True)

    def mean(self, row):
        return math.exp(math.fsum(map(math.log, self.ratios[row])) / len(self.ratios[row]))

    def table(self):
        print("\n| slimpack's time over that of | settings | geometric mean | median | worst | behind by more than 0.1 % |")
        print("|---|---:|---:|---:|---:|---:|")
        for row, ratios in self.ratios.items():
            if not ratios:
                continue
            behind = "" if row == BOUND else sum(ratio > BEHIND for ratio in ratios)
            print(f"| {row} | {len(ratios)} | {self.mean(row):.4f} | {statistics.median(ratios):.4f} | {max(ratios):.4f} | {behind} |")
        if self.fullest:
            for over, ratios in (("the mean rank", self.fullest), ("the least that any assignment allows it", self.over_least)):
                print(f"\nThe fullest rank of slimpack's plans is {statistics.mean(ratios):.4f} of {over} on average, {max(ratios):.4f} at most, "
                      f"above 1.01 in {sum(most > 1.01 for most in ratios)} of {len(ratios)}.")
        print(f"\nNo planner has a plan in {self.none} settings, only others than slimpack in {self.alone}. Processor seconds: " +
              ", ".join(f"{planner} {seconds:.1f}" for planner, seconds in self.seconds.items()) + ".")

    def beyond(self, most, mean):
        """Whether slimpack is behind its ablations by more than these ratios, or has no plan where one of them has."""
        ratios = self.ratios[KINDS[0]]
        return self.alone > 0 or (bool(ratios) and (max(ratios) > most or self.mean(KINDS[0]) > mean))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="of the draws")
    parser.add_argument("--count", type=int, default=40, help="settings drawn by each seed")
    parser.add_argument("--least-tokens", type=int, default=0, help="leave out settings whose step has fewer")
    parser.add_argument("--most-tokens", type=int, help="leave out settings whose step has more, for they take long")
    parser.add_argument("--planners", default="ablations", help="that slimpack is held against: ablations, published, or names, commas between")
    parser.add_argument("--one-stage", action="store_true", help="draw degrees without a pipeline")
    parser.add_argument("--free", action="store_true", help="each planner at its own best degrees")
    parser.add_argument("--most", type=float, default=BEHIND, help="ratio to the best ablation that ends with status 1")
    parser.add_argument("--mean", type=float, help="the same of the geometric mean")
    parser.add_argument("--effort", default="normal", choices=("fast", "normal", "thorough"))
    parser.add_argument("--jobs", type=int, default=1, help="settings at a time")
    parser.add_argument("--store", help="keep arguments and results of each setting here, a line of JSON each, and take from here what it holds")
    given = parser.parse_args()
    if given.count < 1 or given.jobs < 1:
        parser.error("--count and --jobs must be >= 1")
    listed = answer(given.program, ["--list-planners", "--json"])["planners"]
    named = {"ablations": ABLATIONS, "published": [one["name"] for one in listed if not one["name"].startswith(SLIMPACK)]}
    planners = [name for name in named.get(given.planners) or given.planners.split(",") if name and name != SLIMPACK]
    drawn = [setting(seed, number, given.one_stage) for seed in given.seed for number in range(given.count)]
    if given.most_tokens or given.least_tokens:
        all_drawn = len(drawn)
        tokens = range(given.least_tokens, (given.most_tokens or sys.maxsize - 1) + 1)
        drawn = [one for one in drawn if int(one[one.index("--batch-tokens") + 1]) in tokens]
        if not drawn:
            parser.error(f"--least-tokens {given.least_tokens} and --most-tokens {given.most_tokens} leave no setting of {all_drawn}")
        bounds = [f"{word} {bound}" for word, bound in (("at least", given.least_tokens), ("at most", given.most_tokens)) if bound]
        print(f"{len(drawn)} of {all_drawn} settings have {' and '.join(bounds)} tokens a step.", flush=True)
    summary = Summary(planners, {one["name"] for one in listed if one.get("simulated_only")})
    version = subprocess.run([given.program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    store = Store(given.store, f"{given.effort}, {'free' if given.free else 'same'} degrees", version)
    run = functools.partial(tune if given.free else compare, program=given.program, effort=given.effort)
    find = functools.partial(store.results, planners=[SLIMPACK, *planners], run=run)
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for arguments, results in zip(drawn, pool.map(find, drawn)):
            summary.add(arguments, results)
    summary.table()
    return 1 if summary.beyond(given.most, given.mean or given.most) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Refused as refusal:
        print(f"random_settings.py: {refusal}", file=sys.stderr)
        sys.exit(2)
