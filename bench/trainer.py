#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The mini-trainer's figures as Markdown tables.

    bench/trainer.py BIN [speed|text|calibration|kill|faults|clock ...] [options]

BIN is the folder with the built programs, such as build/release/bin. Parts, all but the last by default:

  speed        planners in turns, `megatron` and `slimpack` by default, on documents of LENGTHS with drawn tokens
  text         the same on this repository's own text
  calibration  the same with a cost that was fitted to a profile of this machine
  kill         runs that are killed and resumed, beside one that nothing stops
  faults       ranks that die: how long the others live on
  clock        every planner that can be executed, each at its own best settings, step by step in turns with a fixed
               reference, with a cost fitted to a profile made just before, in turns with the same reference. Each step's
               time is divided by the mean of the reference's before and behind it. Cores whose ranks wait are loaded at an
               idle policy, as devices do not sleep. There is no figure of degrees whose profiles do not agree to
               --reference-limit, or beside which half the interquartile range of the reference's times is more than
               --reference-spread of their median. Of planners of which after --tries times as many steps as are wanted the
               median of predicted over measured is not known to --reference-limit
               there is no figure but one sentence that says why, and the status is 1

Progress goes to standard error. Times are printed and never judged, but for how well the clock knows them. Ends with
status 1 if planners trained on other documents, a resumed run differs in a byte, a dead rank was not reported as it must
be, the clock knows too little, or a program failed.
"""
import argparse
import contextlib
import ctypes
import datetime
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from statistics import median

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests" / "trainer"), str(ROOT / "tests" / "mpi")]

import faults  # noqa: E402
import reference  # noqa: E402
from small_runs import SmallRuns  # noqa: E402

PLANNERS = ("megatron", "slimpack")
SETTINGS = {"pp 2": ["--pp", "2", "--dp", "1"], "dp 2": ["--dp", "2", "--pp", "1"]}  # unless --degrees says otherwise
CLOCK_SETTINGS = dict(SETTINGS, **{"tp 2": ["--pp", "1", "--dp", "1", "--tp", "2"]})


def degrees_of(text):
    """Runs by name, of PPxDP or PPxDPxTP,..."""
    runs = {}
    for one in text.split(","):
        counts = one.split("x")
        if len(counts) not in (2, 3) or not all(count.isdigit() and int(count) > 0 for count in counts):
            raise argparse.ArgumentTypeError(f"must be PPxDP,... or PPxDPxTP,... like 2x1,1x2,1x1x2, got {text!r}")
        kinds = list(zip(("pp", "dp", "tp"), counts))
        name = " ".join(f"{kind} {count}" for kind, count in kinds if count != "1") or "one rank"
        runs[name] = [word for kind, count in kinds for word in ("--" + kind, count)]
    return runs


class Failure(Exception):
    """A program that did not do its work, or results that had to be equal and are not."""


def tell(text):
    print(text, file=sys.stderr, flush=True)


def call(command):
    """What the program prints."""
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True)
    if done.returncode != 0:
        raise Failure(f"{pathlib.Path(command[0]).name} ended with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def table(head, rows):
    """Columns after the `|` in `head` are right-aligned."""
    left = head.index("|")
    print("| " + " | ".join(head[:left] + head[left + 1:]) + " |")
    print("|" + "---|" * left + "---:|" * (len(head) - left - 1))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


# --- steps of planners in turns ---


def scaled_lengths(path, context, folder):
    """A file of the lengths, all divided by what makes the longest document as long as the context."""
    lengths = [int(line.split()[0]) for line in path.read_text().splitlines() if line.strip() and line[0] != "#"]
    longest = max(lengths)
    scaled = folder / "documents.lengths"
    scaled.write_text("".join(f"{max(2, round(length * context / longest))}\n" for length in lengths))
    return scaled


def train(options, folder, planner, seed, steps, more):
    """The log's steps, those before the measured ones left out."""
    log = folder / "log.jsonl"
    call([options.bin / options.program, *options.more, *more, "--planner", planner, "--model", options.model, "--batch-tokens",
          options.batch_tokens, "--context", options.context, "--seed", seed, "--steps", options.warmup + steps,
          "--log", log])
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if "step" in line][options.warmup:]


def run_rounds(options, folder, part, seed, more, prepare):
    """Steps by setting and planner, one list a round. The planners take turns, so that a machine that becomes
    slower or faster in the meantime favours none; a round has a seed of its own, hence other documents.
    `prepare(degrees)` comes before all of them and returns options of all."""
    runs = {(setting, planner): [] for setting in options.degrees for planner in options.planners}
    steps = -(-options.steps // options.rounds)
    for number in range(options.rounds):
        for setting, ranks in options.degrees.items():
            prepared = prepare(ranks)
            for planner in options.planners if number % 2 == 0 else options.planners[::-1]:
                tell(f"{part}: round {number + 1} of {options.rounds}, {setting}, {planner}")
                runs[setting, planner].append(train(options, folder, planner, seed + number, steps,
                                                      [*ranks, *more, *prepared]))
    return runs


def check_equal(setting, steps_of):
    """Refuses planners that had other documents than the first one."""
    batches = [[[line[key] for key in ("step", "tokens", "targets", "samples")] for line in steps]
               for steps in steps_of.values()]
    if any(batch != batches[0] for batch in batches):
        raise Failure(f"{setting}: the planners had other documents: {batches}")


def check_same_batches(options, runs):
    for setting in options.degrees:
        check_equal(setting, {planner: sum(runs[setting, planner], []) for planner in options.planners})


def total(steps, key):
    return sum(step[key] for step in steps)


def print_runs(options, runs, seed):
    """Every measured step counts, and is printed."""
    rows, ratios, every = [], [], []
    for setting in options.degrees:
        of_planner = {}
        for planner in options.planners:
            steps = of_planner[planner] = [step for run in runs[setting, planner] for step in run]
            seconds = total(steps, "measured_s")
            peak = max((step["peak_bytes"] / step["predicted_peak_bytes"] for step in steps),
                       key=lambda ratio: abs(ratio - 1))
            rows.append([setting, f"`{planner}`", f"{median(step['measured_s'] for step in steps):.3f} s",
                         f"{total(steps, 'tokens') / seconds:,.0f}",
                         f"{100 * sum(step['mfu'] * step['measured_s'] for step in steps) / seconds:.1f} %",
                         f"{median(step['predicted_s'] / step['measured_s'] for step in steps):.3f}", f"{peak:.4f}",
                         f"{1000 * median(step['planning_s'] for step in steps):.1f} ms",
                         f"{100 * total(steps, 'waited_for_plan_s') / seconds:.2f} %"])
            for number, run in enumerate(runs[setting, planner]):
                every.append([setting, f"`{planner}`", seed + number, " ".join(f"{step['measured_s']:.3f}" for step in run)])
        *others, last = of_planner
        for planner in others:
            a, b = of_planner[planner], of_planner[last]
            each = [one["measured_s"] / other["measured_s"] for one, other in zip(a, b)]
            ratios.append([setting, f"`{planner}`", len(each), f"{total(a, 'measured_s') / total(b, 'measured_s'):.3f}",
                           f"{median(each):.3f}", f"{min(each):.3f}", f"{max(each):.3f}",
                           f"{total(a, 'predicted_s') / total(b, 'predicted_s'):.3f}"])
    table(["degrees", "planner", "|", "median step", "tokens/s", "MFU", "predicted / measured, median",
           "peak bytes counted / predicted, worst", "planning, median", "waited for plans"], rows)
    if ratios:
        print(f"Time over that of `{options.planners[-1]}`:\n")
        table(["degrees", "planner", "|", "steps", "of sums", "median", "least", "most", "of predicted sums"], ratios)
    print(f"Seconds of every measured step; {options.warmup} before those of each run are not:\n")
    table(["degrees", "planner", "|", "seed", "steps"], every)


def compare(options, folder, part, seed, more, prepare=lambda degrees: []):
    runs = run_rounds(options, folder, part, seed, more, prepare)
    print_runs(options, runs, seed)
    check_same_batches(options, runs)


def about(options):
    how = f"`{' '.join(options.more)}`" if options.more else "fp32"
    return (f"model `{options.model}`, {how}, {options.batch_tokens:,} tokens a step, context {options.context:,}, "
            f"ranks on threads; the planners take turns in {options.rounds} rounds")


def speed(options, folder):
    print(f"### Steps on lengths\n\n{options.lengths.name}, scaled so that the longest document is the context, drawn "
          f"tokens; {about(options)}.\n")
    lengths = scaled_lengths(options.lengths, options.context, folder)
    compare(options, folder, "speed", options.seed, ["--data", lengths])


def text(options, folder):
    print(f"### Steps on text\n\nThis repository's own text; {about(options)}.\n")
    compare(options, folder, "text", options.seed, [])


def calibrate(options, profile):
    """A cost fitted to a profile."""
    cost = profile.with_name("cost.json")
    call([options.bin / "slimpack", "calibrate", profile, "-o", cost])
    return cost


def fit(options, folder, degrees):
    """A cost by a profile of so many loaded ranks."""
    tell("profile")
    profile = folder / "profile.csv"
    call([options.bin / options.program, *options.more, "--model", options.model, *degrees,
          "--context", options.context, "--profile", profile])
    return calibrate(options, profile)


def calibration(options, folder):
    """Goes through the commands that users have, and judges steps of the trainer, which plans the next one while
    one runs. bench_calibration fits and runs in one process, without the trainer, and looks at single units."""
    print(f"### Steps with a fitted cost\n\nBy `mini_trainer --profile` and `slimpack calibrate` before the planners' runs of a "
          f"round, which see none of the documents; then as under *Steps on lengths*, with documents drawn by other seeds; "
          f"{about(options)}.\n")
    lengths = scaled_lengths(options.lengths, options.context, folder)
    compare(options, folder, "calibration", options.seed + options.rounds, ["--data", lengths],
            lambda degrees: ["--cost", fit(options, folder, degrees)])


# --- single steps in turns with a fixed reference ---


class Turns:
    """A trainer, or a profile of it, that begins each of its parts when it is told to: `ready` says that the next one is
    prepared and nothing runs."""

    def __init__(self, options, folder, name, *more):
        self.name, self.log = name, folder / f"{name}.jsonl"
        self.errors = open(folder / f"{name}.txt", "w+", encoding="utf-8")
        command = [options.bin / options.program, *options.more, "--model", options.model, "--seed", options.seed,
                   "--turns", "--log", self.log, *more]
        self.run = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                    stderr=self.errors, text=True)
        self.partition = ""

    def ready(self):
        """What is, such as "step 3"; nothing where it has ended."""
        for line in self.run.stdout:
            found = re.search(r"chunks (\d+), head on (.*?)\), planner", line)
            if found:
                self.partition = f"{found[1]}, {found[2].removeprefix('the ').removesuffix(' stage').removesuffix(' stages')}"
            if line.startswith("ready for "):
                return line.removeprefix("ready for ").strip()
        self.run.wait()
        return ""

    def go(self):
        self.run.stdin.write("\n")
        self.run.stdin.flush()

    def steps(self):
        return [line for line in map(json.loads, self.log.read_text().splitlines()) if "step" in line]

    def why(self):
        """What it said of its end; nothing where it was a good one."""
        self.errors.seek(0)
        said = self.errors.read().strip()
        return (said or f"status {self.run.returncode}") if self.run.returncode else ""

    def end(self):
        self.run.kill()
        self.run.wait()
        self.errors.close()
        self.run.stdin.close()
        self.run.stdout.close()


def reference_steps(options, folder, ranks):
    """Number and length of a step's documents, and what a trainer is told to run such steps."""
    length = max(2, options.context // 4)
    documents = ranks * max(1, round(options.batch_tokens / 3 / ranks / length))
    lengths = folder / f"reference-{ranks}.lengths"
    lengths.write_text(f"{length}\n" * documents)
    return documents, length, ["--data", lengths, "--planner", "megatron", "--dp", ranks, "--pp", 1, "--context", length,
                               "--batch-tokens", documents * length, "--steps", 1_000_000]


@contextlib.contextmanager
def loaded_cores(options, folder, ranks):
    """Within the block each core trains whenever no other thread wants it, at the idle policy, which gives way at once: a
    device is ready when a message comes, and a core that sleeps is woken late. Nothing where ranks are not on all cores of
    this machine and on no other device, or the system has no idle policy. Gives what runs; raises Failure where one of it
    has ended before the block."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "SCHED_IDLE") else []
    running = []

    def idle_on(core):
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: also where this process is killed

    try:
        if ranks >= len(cores) and not any("cuda" in word for word in options.more):
            words = reference_steps(options, folder, 1)[2]
            command = [str(word) for word in [options.bin / options.program, *options.more, "--model", options.model, *words]]
            for core in cores:
                running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                                stderr=subprocess.DEVNULL, preexec_fn=lambda core=core: idle_on(core)))
        yield running
        if any(one.poll() is not None for one in running):
            raise Failure("cores were not loaded all the time: a trainer at the idle policy has ended")
    finally:
        for one in running:
            one.kill()
            one.wait()


class Reference:
    """Steps that are all alike: documents of one length, one data-parallel rank a core."""

    def __init__(self, options, folder, ranks):
        documents, length, words = reference_steps(options, folder, ranks)
        self.turns = Turns(options, folder, "reference", *words)
        self.told = 0
        self.work = f"{documents} documents of {length:,} tokens on {ranks} data-parallel ranks"

    def turn(self):
        """Runs it once, and gives the number of its time in `seconds`."""
        if self.told == 0 and not self.turns.ready():
            raise Failure(f"reference: {self.turns.why()}")
        self.turns.go()
        self.told += 1
        if not self.turns.ready():
            raise Failure(f"reference: {self.turns.why()}")
        return self.told - 1

    def seconds(self):
        return [step["measured_s"] for step in self.turns.steps()]


REFERENCE_WARMUP = 3  # turns that touch memory for the first time


REFERENCE_TURNS = 3  # before each plan of a profile: a turn takes a tenth of the plan's time, and varies more


def row_medians(profiles):
    """The lines of one profile whose seconds are medians of those of several, alike in all else."""
    rows = []
    for alike in zip(*profiles, strict=True):
        if alike[0].startswith("#"):
            rows.append(alike[0])
        elif alike[0].startswith("kind,"):
            place = alike[0].rstrip().split(",").index("seconds")
            rows.append(alike[0])
        else:
            fields = [line.rstrip().split(",") for line in alike]
            seconds = f"{median(float(one[place]) for one in fields):.9g}"
            apart = {",".join(one[:place] + [seconds] + one[place + 1:]) for one in fields}
            if len(apart) > 1:
                raise Failure(f"profiles differ in a row: {' / '.join(sorted(apart))}")
            rows.append(apart.pop() + "\n")
    return rows


UNIT_KINDS = ("layer", "apart", "weight", "tp", "cp", "light")  # of rows, whose seconds steps are of


def agreement(profiles, beside):
    """By kind of units, what the rows of each profile take over those of all: the median over rows of their seconds over the
    reference's beside their profile, over the median of that of all profiles. `beside` has the reference's times by profile;
    without times of one profile its seconds alone are compared."""
    speeds = [median(seconds) if seconds else 1 for seconds in beside]
    found = {}
    for alike in zip(*profiles, strict=True):
        fields = [line.rstrip().split(",") for line in alike]
        if fields[0][0] == "kind":
            place, layers = fields[0].index("seconds"), fields[0].index("layers")
        elif fields[0][0] in UNIT_KINDS and int(fields[0][layers]) > 0:  # not a collective by itself
            taken = [float(one[place]) / speed for one, speed in zip(fields, speeds)]
            found.setdefault(fields[0][0], []).append([each / median(taken) for each in taken])
    return {kind: [median(each) for each in zip(*rows)] for kind, rows in found.items()}


def at_one_speed(profiles, beside):
    """Lines of profiles with their seconds as if the reference beside each had taken the median of all its times. `beside` is
    as in `agreement`; without times of one profile all stay as they are."""
    if not all(beside):
        return profiles
    usual = median(sum(beside, []))
    made = []
    for lines, seconds in zip(profiles, beside, strict=True):
        factor, place = usual / median(seconds), None
        made.append([])
        for line in lines:
            fields = line.rstrip().split(",")
            if fields[0] == "kind":
                place = fields.index("seconds")
            elif place is not None and not line.startswith("#"):
                fields[place] = f"{float(fields[place]) * factor:.9g}"
            made[-1].append(line if line.startswith("#") else ",".join(fields) + "\n")
    return made


def disagreement(agreed, limit):
    """A sentence on the kind of units of which profiles differ most, where no more than half of them are so close to each
    other that the middle of their range is known to the limit. `agreed` is what `agreement` gives."""
    def apart(each):
        ordered, most = sorted(each), len(each) // 2
        return min(high - low for low, high in zip(ordered, ordered[most:])) / 2

    off, kind = max(((apart(each), kind) for kind, each in agreed.items()), default=(0, ""))
    return None if off <= limit else (
        f"rows {kind} of {len(agreed[kind])} profiles are {', '.join(f'{one:.3f}' for one in agreed[kind])} of their median, "
        f"times taken over the reference's beside them; more than half should be within {100 * limit:g} % of a value, so "
        "prices are not known and nothing is reported")


def fit_in_turns(options, folder, degrees, fixed):
    """A cost by medians of several profiles of so many loaded ranks, at one speed of the machine, the median of the
    reference's times beside them, and how the profiles agree: the reference runs before each plan of a profile, whose rows are medians too."""
    profiles, beside = [], []
    for number in range(options.profiles):
        profile = folder / f"profile-{number}.csv"
        measured = Turns(options, folder, f"profile-{number}", *degrees, "--context", options.context, "--profile", profile)
        beside.append([])
        try:
            while what := measured.ready():
                before = [fixed.turn() for _ in range(REFERENCE_TURNS)]
                if not what.startswith("round 0 "):  # which counts for nothing
                    beside[-1] += before
                measured.go()
            if measured.why():
                raise Failure(f"profile: {measured.why()}")
        finally:
            measured.end()
        profiles.append(profile.read_text().splitlines(keepends=True))
    profile = folder / "profile.csv"
    seconds = fixed.seconds()
    times = [[seconds[place] for place in places] for places in beside]
    profile.write_text("".join(row_medians(at_one_speed(profiles, times))))
    return calibrate(options, profile), median(sum(times, [])), agreement(profiles, times)


def over_reference(step):
    """Of a measured step."""
    return step["measured_s"] / step["reference_s"]


def fidelity(step):
    """How long it is predicted to take over how long it takes, up to a factor that all steps beside one profile share."""
    return step["predicted_s"] / over_reference(step)


def ranks_of(degrees):
    """How many devices they are."""
    return math.prod(map(int, degrees[1::2]))


def clock_of(options, folder, ranks, lengths):
    """Steps by planner, each with `reference_s`, the mean of the turns before and behind it; the reference's times, their
    median beside the profiles, how these agree, and prices; and why a planner is not among them. Each goes on until it is known well enough how long
    its steps take, `slimpack` until all have ended."""
    running, left_out = [], {}
    fixed = Reference(options, folder, ranks_of(ranks))
    try:
        for _ in range(REFERENCE_WARMUP):
            fixed.turn()
        tell("profile")
        cost, beside_profile, agreed = fit_in_turns(options, folder, ranks, fixed)
        prices = json.loads(cost.read_text())
        steps = options.warmup + options.tries * options.steps
        for planner in options.planners:
            running.append(Turns(options, folder, planner, "--planner", planner, *ranks, "--data", lengths, "--cost", cost,
                                 "--effort", options.effort, "--batch-tokens", options.batch_tokens, "--context",
                                 options.context, "--steps", steps))
        for one in running:
            if not one.ready():
                left_out[one.name] = one.why()
        neighbours = {one.name: [] for one in running}

        def measured(one, seconds):
            """Its steps but those that warm it up."""
            lines = one.steps()[options.warmup:]
            for line, (before, after) in zip(lines, neighbours[one.name][options.warmup:]):
                line.update(reference_s=(seconds[before] + seconds[after]) / 2, partition=one.partition)
            return lines

        for step in range(steps):
            seconds = fixed.seconds()
            going = [one for one in running if one.name not in left_out
                     and not reference.known([fidelity(line) for line in measured(one, seconds)], options.steps,
                                             options.reference_limit / 100)]
            if not going:
                break
            going += [one for one in running if one.name == "slimpack" and one not in going and one.name not in left_out]
            tell(f"clock: step {step + 1} of {steps} at most, {len(going)} of {len(running)} planners go on")
            before = fixed.turn()
            for one in going[step % len(going):] + going[:step % len(going)]:
                one.go()
                ended = not one.ready()
                after = fixed.turn()
                if ended and step + 1 < steps:
                    left_out[one.name] = one.why()
                neighbours[one.name].append((before, after))
                before = after
        seconds = fixed.seconds()
        found = {one.name: measured(one, seconds) for one in running if one.name not in left_out}
    finally:
        for one in [*running, fixed.turns]:
            one.end()
    return {"steps": found, "left_out": left_out, "work": fixed.work, "reference": seconds[REFERENCE_WARMUP:],
            "beside_profile": beside_profile, "profiles": agreed, "prices": prices}


def clock_rows(setting, found):
    """A row a planner, and how far its prediction is off."""
    last = found["steps"].get("slimpack")
    rows, off = [], []
    form = "{:.3f}".format
    for planner, steps in found["steps"].items():
        true = [fidelity(step) / found["beside_profile"] for step in steps]
        off.append((abs(median(true) - 1), planner, setting))
        exact = sum(step["peak_bytes"] == step["predicted_peak_bytes"] for step in steps)
        worst = max((step["peak_bytes"] / step["predicted_peak_bytes"] for step in steps), key=lambda one: abs(one - 1))
        over, predicted = "-", "-"
        if last:  # of the same documents, step by step
            over = reference.of_interval([over_reference(step) / over_reference(other) for step, other in zip(steps, last)],
                                         form)
            predicted = form(median(step["predicted_s"] / other["predicted_s"] for step, other in zip(steps, last)))
        rows.append([setting, f"`{planner}`", steps[0]["partition"], len(steps),
                     reference.of_ranges([step["measured_s"] for step in steps], form), over, predicted,
                     form(median(step["predicted_s"] / step["measured_s"] for step in steps)),
                     reference.of_interval(true, form),
                     "exact" if exact == len(steps) else f"{worst:.4f} at worst, {exact} of {len(steps)} exact"])
    return rows, off


KEPT = ("measured_s", "predicted_s", "reference_s", "peak_bytes", "predicted_peak_bytes")  # of a step


class Measured:
    """What the clock has measured, by degrees, in the file of --measured where there is one."""

    def __init__(self, options):
        self.path = options.measured
        asked = {name: str(getattr(options, name)) for name in ("model", "batch_tokens", "context", "seed", "effort", "warmup")}
        asked.update(lengths=options.lengths.name, more=" ".join(options.more), program=options.program)
        self.held = {"asked": asked, "degrees": {}}
        if self.path and not os.access(self.path if self.path.exists() else self.path.parent, os.W_OK):
            raise Failure(f"{self.path}: cannot be written")
        if self.path and self.path.exists():
            try:
                self.held = json.loads(self.path.read_text())
                self.held["asked"], self.held["degrees"]
            except (ValueError, TypeError, KeyError):
                raise Failure(f"{self.path}: is not what the clock keeps") from None
            other = [name for name, value in asked.items() if self.held["asked"].get(name) != value]
            if other:
                raise Failure(f"{self.path}: was measured with {other[0]} {self.held['asked'].get(other[0])!r}, got "
                              f"{asked[other[0]]!r}")

    def has(self, setting):
        return setting in self.held["degrees"]

    def get(self, setting):
        """As `clock_of` gives it."""
        found = dict(self.held["degrees"][setting])
        found["steps"] = {planner: [dict(zip(KEPT, step), partition=kept["partition"]) for step in zip(*(kept[key] for key in KEPT))]
                          for planner, kept in found["steps"].items()}
        return found

    def add(self, setting, found):
        """`found` is what `clock_of` gives."""
        kept = dict(found, machine=machine(), steps={})
        for planner, steps in found["steps"].items():
            kept["steps"][planner] = {key: [float(f"{step[key]:.6g}") if isinstance(step[key], float) else step[key]
                                            for step in steps] for key in KEPT}
            kept["steps"][planner]["partition"] = steps[0]["partition"]
        kept["reference"] = [float(f"{seconds:.4g}") for seconds in found["reference"]]
        self.held["degrees"][setting] = kept
        if self.path:
            self.path.write_text(json.dumps(self.held) + "\n")


def clock(options, folder):
    print(f"### Steps on the clock\n\n{options.lengths.name}, scaled so that the longest document is the context, drawn "
          f"tokens; model `{options.model}`, {' '.join(options.more) or 'fp32'}, {options.batch_tokens:,} tokens a step, "
          f"context {options.context:,}, ranks on threads; at least {options.steps} steps of each planner in turns, "
          f"{options.warmup} before them not counted; effort {options.effort}; prices by `mini_trainer --profile` and "
          "`slimpack calibrate` just before.\n")
    lengths = scaled_lengths(options.lengths, options.context, folder)
    rows, off, references, left_out, refused = [], [], [], [], []
    measured = Measured(options)
    for setting, ranks in options.degrees.items():
        if not measured.has(setting):
            tell(f"clock: {setting}")
            place = folder / setting
            place.mkdir()
            with loaded_cores(options, place, ranks_of(ranks)) as running:
                found = dict(clock_of(options, place, ranks, lengths), loaded=bool(running))
            common = min(map(len, found["steps"].values()), default=0)
            check_equal(setting, {planner: steps[:common] for planner, steps in found["steps"].items()})
            measured.add(setting, found)
        found = measured.get(setting)
        left_out += [f"{setting}, `{planner}`: {why}" for planner, why in found["left_out"].items()]
        times = {f"`{planner}`": [fidelity(step) for step in steps] for planner, steps in found["steps"].items()}
        few, why = reference.unknown(times, options.steps, options.reference_limit / 100)
        differ = disagreement(found.get("profiles", {}), options.reference_limit / 100)
        vary = reference.unsteady(found["reference"], options.reference_spread / 100)
        refused += [f"{setting}: {one}" for one in (why, differ, vary) if one]
        if differ or vary:
            continue
        found["steps"] = {planner: steps for planner, steps in found["steps"].items() if f"`{planner}`" not in few}
        if not found["steps"]:
            continue
        more, far = clock_rows(setting, found)
        rows += more
        off += far
        references.append([setting, found["machine"], found["work"], len(found["reference"]),
                           reference.of_ranges(found["reference"], "{:.4f}".format),
                           f"{100 * reference.spread(found['reference']):.2f} %"])
    if rows:
        print("Medians. A *step* has its 10th to its 90th percentile beside it, all others the interval that has the median "
              f"in it with a probability of at least {100 - 100 * reference.DOUBT:g} %. A time is divided by the mean of the "
              "reference's before and behind it: *over* compares the same documents under `slimpack`, *by the reference* has "
              "the reference's median beside the profile as the time that predictions are of.\n")
        table(["degrees", "planner", "chunks, head on", "|", "steps", "step, s", "over `slimpack`", "predicted",
               "predicted / measured", "by the reference", "peak bytes counted / predicted"], rows)
        table(["degrees", "measured on", "reference", "|", "turns", "s", "interquartile range over median"], references)
        worst = max(off)
        print(f"Predicted within {100 * AIM:g} % of measured by the reference: {sum(one[0] <= AIM for one in off)} of {len(off)}; "
              f"furthest off {100 * worst[0]:.1f} %, `{worst[1]}` at {worst[2]}.\n")
    if left_out:
        print("Not executed:\n\n" + "\n".join("- " + one for one in left_out) + "\n")
    if refused:
        raise Failure("; ".join(refused))


AIM = 0.03  # how far a prediction should be off at most


# --- runs that end before their time ---


def has_mpi(options):
    """Whether there is an mpirun, and a trainer that was built for it."""
    if not options.mpirun:
        return False
    refused = subprocess.run([options.bin / "mini_trainer", "--transport", "mpi", "--lr", "none"], text=True,
                             capture_output=True).stderr
    return "threads alone" not in refused


def kill(options, folder):
    print(f"### Killed and resumed\n\nA small model, {options.kill_steps} steps, saved after each. Every trial is killed "
          "(`kill -9`) up to three times at random moments and resumed; between processes one rank is, or all of them. "
          "Equal: all saved bytes, and loss and gradient norm of every step, are those of a run on threads that nothing "
          "stopped.\n")
    draw = random.Random(options.seed)
    rows, wrong = [], []
    for ranks in (0, 2) if has_mpi(options) else (0,):
        transport = "processes" if ranks else "threads"
        runs = {}
        for setting, degrees in SETTINGS.items():
            place = folder / f"{transport} {setting}"
            place.mkdir()
            small = SmallRuns(place, options.bin / "mini_trainer", options.mpirun)
            small.whole("whole", options.kill_steps, *degrees)
            pace = small.whole("pace", options.kill_steps, *degrees, ranks=ranks)
            runs[setting] = (small, pace, [], [])
        for trial in range(options.trials):
            setting = list(SETTINGS)[trial % len(SETTINGS)]
            small, pace, kills, equal = runs[setting]
            name = f"trial{trial}"
            made = small.killed(draw, name, options.kill_steps, pace, 1 + draw.randrange(3), *SETTINGS[setting],
                                ranks=ranks)
            different = small.same(name, "whole")
            tell(f"kill: {transport}, {setting}, trial {trial + 1} of {options.trials}: killed after steps {made}: "
                 + ("equal" if not different else f"not equal: {different}"))
            if different:
                wrong.append(f"{transport}, {setting}, trial {trial + 1}, killed after steps {made}: {different}")
            kills += made
            equal.append(not different)
            shutil.rmtree(small.path(name))
        for setting, (_, _, kills, equal) in list(runs.items())[:options.trials]:
            after = ", ".join(f"{step}: {kills.count(step)}" for step in sorted(set(kills)))
            rows.append([transport, setting, after, len(equal), len(kills), f"{sum(equal)} of {len(equal)}"])
    table(["transport", "degrees", "kills after step", "|", "trials", "kills", "equal"], rows)
    if not has_mpi(options):
        print("Not run between processes: there is no MPI here.\n")
    if wrong:
        raise Failure("resumed runs differ: " + "; ".join(wrong))


NAMES = {"kill": "killed", "stop": "stopped", "throw": "throws", "hang": "never answers", "unit-kill": "killed in a unit",
         "unit-stop": "stopped in a unit", "leave": "leaves"}


def dead_ranks(options, folder):
    del folder
    program = options.bin / "mpi_faults"
    if not program.exists():
        print("### Dead ranks\n\nNot run: mpi_faults is not built, for there is no MPI here.\n")
        return
    print("### Dead ranks\n\nOne of two or four ranks fails at a random moment; until all others have ended.\n")
    settings = argparse.Namespace(mpirun=options.mpirun, program=str(program), seed=options.seed)
    rows, wrong = [], []
    for fault in options.faults.split(","):
        if not fault.startswith("threads-") and not options.mpirun:
            print(f"Not run, without an mpirun: {fault}.\n")
            continue
        seconds = []
        for number in range(options.fault_trials):
            _, took, line, breaches = faults.trial(settings, fault, (2, 4)[number % 2], number)
            tell("faults: " + line)
            seconds.append(took)
            # How long it took is in the table.
            wrong += [f"{line}: {breach}" for breach in breaches if breach != faults.TOO_LONG]
        rows.append([NAMES[fault.removeprefix("threads-")], "threads" if fault.startswith("threads-") else "processes",
                     len(seconds), f"{sum(seconds) / len(seconds):.2f} s", f"{max(seconds):.2f} s"])
    table(["a rank", "transport", "|", "trials", "mean", "longest"], rows)
    if wrong:
        raise Failure("dead ranks: " + "; ".join(wrong))


PARTS = {"speed": speed, "text": text, "calibration": calibration, "kill": kill, "faults": dead_ranks, "clock": clock}


def machine():
    """Date, cores and their name."""
    facts = pathlib.Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    names = [line.split(":", 1)[1].strip() for line in facts.splitlines() if line.startswith("model name")]
    return f"{datetime.date.today()}, {len(os.sched_getaffinity(0))} cores ({names[0] if names else 'unknown'})"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path, metavar="BIN")
    parser.add_argument("parts", nargs="*", metavar="PART", help="of " + ", ".join(PARTS) + " [all but clock]")
    parser.add_argument("--lengths", type=pathlib.Path, default=ROOT / "examples/data/longsft_mix.lengths",
                        help="lengths of documents, one a line [examples/data/longsft_mix.lengths]")
    parser.add_argument("--program", default="mini_trainer", help="in BIN, for steps and profiles [mini_trainer]")
    parser.add_argument("--more", type=str.split, default=[], metavar="OPTIONS",
                        help='for steps and profiles, in one word: "--backend cuda" [none]')
    parser.add_argument("--planners", type=lambda names: tuple(names.split(",")), metavar="NAME,...",
                        help="of steps, in turns [megatron,slimpack; of clock all but ablations and those as published]")
    parser.add_argument("--degrees", type=degrees_of, metavar="PPxDP[xTP],...",
                        help="of steps [2x1,1x2; of clock 1x1x2 too]")
    parser.add_argument("--effort", default="normal", help="with which clock plans its steps [normal]")
    parser.add_argument("--reference-limit", type=float, default=100 * reference.LIMIT, metavar="PERCENT",
                        help="of clock: to which the median of predicted over measured has to be known [1]")
    parser.add_argument("--reference-spread", type=float, metavar="PERCENT",
                        help="of clock: half the interquartile range of the reference's times over their median, at most "
                        "[as --reference-limit]")
    parser.add_argument("--measured", type=pathlib.Path, metavar="FILE",
                        help="of clock: keeps what was measured; degrees that it has are not measured again")
    for name, default, text_of in [
            ("model", "tiny", "preset, or a config.json"), ("batch-tokens", 65536, "of a step"),
            ("context", 8192, "longest sample"), ("steps", 12, "measured of each planner, at least"),
            ("tries", reference.TRIES, "of clock: times as many steps before it gives up"),
            ("profiles", 3, "of clock: to the medians of whose rows prices are fitted"),
            ("warmup", 2, "steps of each run that are not measured"), ("rounds", 3, "runs of each planner"),
            ("seed", 1, "of documents, weights and kills"), ("trials", 20, "of kill, for each transport"),
            ("kill-steps", 8, "of a run that is killed"), ("fault-trials", 20, "of each fault"),
            ("faults", "kill,stop,throw,threads-throw", "as tests/mpi/faults.py has them"),
            ("mpirun", shutil.which("mpirun") or "", "program that starts processes")]:
        shown = "that of the PATH" if name == "mpirun" else default
        parser.add_argument("--" + name, type=type(default), default=default, help=f"{text_of} [{shown}]")
    options = parser.parse_args()
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"PART must be one of {', '.join(PARTS)}, got {part}")
    for fault in options.faults.split(","):
        if fault not in faults.FAULTS:
            parser.error(f"--faults: must be of {', '.join(faults.FAULTS)}, got {fault}")
    for name in ("steps", "tries", "profiles", "rounds", "trials", "fault_trials", "kill_steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: must be >= 1")
    if options.reference_spread is None:
        options.reference_spread = options.reference_limit
    for name in ("reference_limit", "reference_spread"):
        if not getattr(options, name) >= 0:
            parser.error(f"--{name.replace('_', '-')}: must be >= 0")
    for program in ("mini_trainer", options.program):
        if not (options.bin / program).exists():
            parser.error(f"{options.bin}: has no {program}")
    return options


def of_part(options, part):
    """The options with the planners and degrees that the part has where none are given."""
    made = argparse.Namespace(**vars(options))
    made.planners = options.planners or (all_planners(options) if part == "clock" else PLANNERS)
    made.degrees = options.degrees or (CLOCK_SETTINGS if part == "clock" else SETTINGS)
    return made


def all_planners(options):
    """Published systems in their strengthened form, and slimpack."""
    listed = json.loads(call([options.bin / "slimpack", "--list-planners", "--json"]))["planners"]
    names = [one["name"] for one in listed]
    return [name for name in names if not name.endswith("-published") and not name.startswith("slimpack-")]


def main():
    options = parse()
    sys.stdout.reconfigure(line_buffering=True)
    failed = False
    if options.parts != ["clock"]:
        print(f"{machine()}, load {os.getloadavg()[0]:.2f} at the beginning.\n")
    for part in options.parts or [part for part in PARTS if part != "clock"]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                PARTS[part](of_part(options, part), pathlib.Path(folder))
            except (Failure, RuntimeError, subprocess.TimeoutExpired) as error:
                failed = True
                print(f"**{part} failed.**\n", flush=True)
                tell(f"trainer.py: {part}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
