#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How near does effort `fast` come to `normal`, over many draws of the lengths that the solver is timed on?

bench/efforts.py PROGRAM [--seed S] [--draws N] [--samples 512,4096] [--threads T]

Draws N steps of each number of samples from log-normal(7.0, 1.3), at most 256K tokens, and plans each with both efforts
(llama-7b on h100, dp 8, pp 8). Prints the efficiency of both, their ratio, its geometric mean and the worst. A draw has
its own seed: the same numbers are drawn anywhere. Ends with 2 for options that are wrong, with 1 where the program fails.
"""
import argparse
import json
import math
import pathlib
import random
import subprocess
import sys

LONGEST = 262144
DEGREES = ("--model", "llama-7b", "--cluster", "h100", "--dp", "8", "--pp", "8", "--context", str(LONGEST))


def efficiency(program, lengths, effort, threads):
    done = subprocess.run([program, "plan", "-", *DEGREES, "--effort", effort, "--threads", threads, "-o", "-"],
                          input="\n".join(map(str, lengths)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip())
    prediction = json.loads(done.stdout)["prediction"]
    return prediction["ideal_s"] / prediction["iteration_s"]


def counts(text):
    if not all(part.isdecimal() and int(part) > 0 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"numbers of samples, at least 1, with commas between, not {text!r}")
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--samples", default="512,4096", type=counts)
    parser.add_argument("--threads", default="1")
    options = parser.parse_args()
    if options.draws < 1:
        parser.error(f"--draws must be at least 1, not {options.draws}")
    if not options.program.is_file():
        parser.error(f"{options.program}: no such program")
    print("| samples | draw | longest | `fast` | `normal` | ratio |\n|---|---|---|---|---|---|")
    summary = []
    for samples in options.samples:
        ratios = []
        for draw in range(options.draws):
            source = random.Random(f"{options.seed}/{samples}/{draw}")
            lengths = [min(LONGEST, max(1, round(source.lognormvariate(7.0, 1.3)))) for _ in range(samples)]
            fast, normal = (efficiency(options.program, lengths, effort, options.threads) for effort in ("fast", "normal"))
            ratios.append(fast / normal)
            print(f"| {samples:,} | {draw} | {max(lengths):,} | {fast:.3f} | {normal:.3f} | {ratios[-1]:.3f} |", flush=True)
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        summary.append(f"{samples:,} samples, {len(ratios)} draws: `fast` has {mean:.3f} of the efficiency of `normal` "
                       f"in geometric mean, {min(ratios):.3f} at worst")
    print("\n" + "\n".join(summary))


if __name__ == "__main__":
    main()
