#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python adds to planning: python python/bench/overhead.py [PROGRAM]

Prints, as the median of several runs each: the time of the import; of a call on four lengths; of planning a
million lengths, the part of it that C++ does (measured around the compiled call with an array that is ready),
and the difference, with arrays and with lists. With PROGRAM, the command line built apart, its time on the same
lengths in a .npy file is printed beside.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import slimpack
from slimpack import _core
from slimpack._arguments import words

RUNS = 5
REQUEST = dict(model="llama3-8b", dp=8, pp=4, tp=2, context=131072, effort="fast")


def median_s(work, runs=RUNS):
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main(arguments):
    for name in ("numpy", "slimpack"):
        spent = median_s(lambda: subprocess.run([sys.executable, "-c", f"import {name}"], check=True))
        print(f"a process that imports {name}: {1e3 * spent:.1f} ms")

    few = [120, 4096, 7000, 800]
    small = dict(model="tiny", effort="fast", threads=1)
    call = median_s(lambda: slimpack.plan(few, **small), 200)
    core = median_s(lambda: _core.plan(np.array(few), words(small), "slimpack", None), 200)
    print(f"a call on four lengths: {1e6 * call:.0f} us, the compiled call of it {1e6 * core:.0f} us")

    lengths = np.minimum(np.random.default_rng(0).lognormal(7, 1.4, 1_000_000).astype(np.int64) + 1, 131072)
    inside = median_s(lambda: _core.plan(lengths, words(REQUEST), "slimpack", None))
    whole = median_s(lambda: slimpack.plan(lengths, **REQUEST))
    print(f"1,000,000 lengths, array: {whole:.3f} s, the compiled call {inside:.3f} s")
    as_list = lengths.tolist()
    print(f"1,000,000 lengths, list: {median_s(lambda: slimpack.plan(as_list, **REQUEST)):.3f} s")
    plan = slimpack.plan(lengths, **REQUEST)
    begin = time.perf_counter()
    packs = plan.micropacks
    print(f"{len(packs)} MicroPacks of {len(plan.samples)} samples as arrays: {time.perf_counter() - begin:.3f} s")
    if arguments:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "lengths.npy")
            np.save(path, lengths)
            options = [word for name, value in REQUEST.items() for word in (f"--{name}", str(value))]
            command = [arguments[0], "plan", path, *options, "-o", os.devnull]
            spent = median_s(lambda: subprocess.run(command, check=True, capture_output=True))
            print(f"the command line on the same lengths, plan written: {spent:.3f} s")
            spent = median_s(lambda: slimpack.plan(path, **REQUEST).save(os.devnull))
            print(f"slimpack.plan of that file, plan written: {spent:.3f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
