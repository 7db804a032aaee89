#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python adds to planning: python python/bench/overhead.py [PROGRAM]

Prints the least of several runs each: the time of the import; of a call on four lengths; and of planning a million
lengths on one thread, the processor time of the whole call beside that of the C++ in it: the planner, and the
batch that is drawn before. With PROGRAM, the command line built apart, its time on the same lengths in a file is
printed beside that of the call and of writing the plan.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

import slimpack
from slimpack import _core
from slimpack._arguments import words

RUNS = 5
REQUEST = dict(model="llama3-8b", dp=8, pp=4, tp=2, context=131072, effort="fast", threads=1)


def least_s(work, runs=RUNS, clock=time.perf_counter):
    times = []
    for _ in range(runs):
        begin = clock()
        work()
        times.append(clock() - begin)
    return min(times)


def refused(lengths, bad):
    try:
        slimpack.plan(lengths, **{**REQUEST, **bad})
    except slimpack.InvalidInput:
        return
    raise AssertionError(bad)


def main(arguments):
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program", nargs="?", help="the command line, measured too")
    options.add_argument("--lengths", type=int, default=1_000_000, help="of the large call [1000000]")
    asked = options.parse_args(arguments)
    for name in ("numpy", "slimpack"):
        spent = least_s(lambda: subprocess.run([sys.executable, "-c", f"import {name}"], check=True))
        print(f"a process that imports {name}: {1e3 * spent:.1f} ms")

    few = [120, 4096, 7000, 800]
    small = dict(model="tiny", effort="fast", threads=1)
    call = least_s(lambda: slimpack.plan(few, **small), 200)
    core = least_s(lambda: _core.plan(np.array(few), words(small), "slimpack", None), 200)
    print(f"a call on four lengths: {1e6 * call:.0f} us, the compiled call of it {1e6 * core:.0f} us")

    lengths = np.minimum(np.random.default_rng(0).lognormal(7, 1.4, asked.lengths).astype(np.int64) + 1, 131072)
    planner = min(
        slimpack.compare(lengths, ["slimpack"], **REQUEST)[0]["cpu_seconds"] for _ in range(RUNS))
    # The first request is refused before a batch is drawn, the second right after.
    read, drawn = (least_s(lambda bad=bad: refused(lengths, bad), clock=time.process_time)
                   for bad in ({"step": 2**41}, {"chunks": 1000}))
    inside = planner + drawn - read
    print(f"{asked.lengths:,} lengths: C++ plans for {inside:.3f} s of the processor; the array is read in {1e3 * read:.1f} ms")
    for name, given in (("an array", lengths), ("a list", lengths.tolist())):
        spent = least_s(lambda given=given: slimpack.plan(given, **REQUEST), clock=time.process_time)
        print(f"{asked.lengths:,} lengths, a call with {name}: {spent:.3f} s, {spent / inside - 1:+.1%}")
    plan = slimpack.plan(lengths, **REQUEST)
    begin = time.perf_counter()
    packs = plan.micropacks
    print(f"{len(packs)} MicroPacks of {len(plan.samples)} samples as arrays: {time.perf_counter() - begin:.3f} s")
    if asked.program:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "lengths.npy")
            np.save(path, lengths)
            options = [f"--{name}={value}" for name, value in REQUEST.items()]
            command = [asked.program, "plan", path, *options, "-o", os.devnull]
            spent = least_s(lambda: subprocess.run(command, check=True, capture_output=True))
            print(f"the command line on the same lengths, plan written: {spent:.3f} s")
            spent = least_s(lambda: slimpack.plan(path, **REQUEST).save(os.devnull))
            print(f"slimpack.plan of that file, plan written: {spent:.3f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
