#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the degrees that `slimpack tune` finds in rounds the best ones?

bench/tune_rounds.py PROGRAM [--planners A,B] [--limit N] [--samples N]: tunes 20 settings twice, in
rounds as always and with every choice of degrees at full effort (`--finalists all`), and prints both
times, how much better the second is, and the processor time of both. Exits with 1 where that is more
than half a per cent. Run from the root of the repository.
"""
import argparse
import json
import statistics
import subprocess
import sys

OURS = "bench/evaluation/data/"
# Set, model, cluster, GPUs, context.
SETTINGS = [
    (OURS + "code", "llama-7b", "h100", 64, "64K"),
    (OURS + "code", "llama-7b", "h100", 64, "256K"),
    (OURS + "code", "llama-13b", "h100", 64, "128K"),
    (OURS + "code", "llama-70b", "h200", 128, "128K"),
    (OURS + "code", "llama3-8b", "h100", 32, "32K"),
    (OURS + "encyclopedia", "llama-7b", "h100", 64, "64K"),
    (OURS + "encyclopedia", "llama-7b", "h100", 16, "32K"),
    (OURS + "encyclopedia", "llama-70b", "h100", 128, "64K"),
    (OURS + "encyclopedia", "llama-13b", "h100", 32, "64K"),
    (OURS + "encyclopedia", "llama3-8b", "a100", 32, "64K"),
    (OURS + "web", "llama-7b", "h100", 64, "32K"),
    (OURS + "web", "llama-13b", "h100", 32, "64K"),
    (OURS + "web", "llama-70b", "h100", 128, "64K"),
    (OURS + "web", "llama3-8b", "h200", 16, "64K"),
    ("examples/data/longsft_mix", "llama-7b", "h100", 64, "128K"),
    ("examples/data/longsft_mix", "llama-7b", "h100", 64, "256K"),
    ("examples/data/longsft_mix", "llama-13b", "h200", 64, "256K"),
    ("examples/data/longsft_mix", "llama3-8b", "h100", 32, "128K"),
    ("examples/data/books", "llama-7b", "h100", 32, "64K"),
    ("examples/data/webpages", "llama-13b", "h100", 32, "32K"),
]
MOST = 0.005


def tune(program, setting, planners, samples, finalists):
    lengths, model, cluster, gpus, context = setting
    command = [program, "tune", lengths + ".lengths", "--model", model, "--cluster", cluster, "--gpus", str(gpus),
               "--context", context, "--overlong", "split", "--batch-samples", str(samples), "--planners", planners,
               "--finalists", finalists, "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return {result["planner"]: result for result in json.loads(done.stdout)["results"]}


def best(result):
    tried = [one["time_s"] for one in result["tried"] if one["time_s"] is not None]
    return min(tried, default=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--planners", default="slimpack,megatron-interleaved,megatron-cp,wlb-llm,zeppelin,chunkflow,kk")
    parser.add_argument("--samples", type=int, default=256, help="samples a step")
    parser.add_argument("--first", type=int, default=0, help="settings left out")
    parser.add_argument("--limit", type=int, default=len(SETTINGS), help="settings tuned")
    given = parser.parse_args()
    print("| setting | planner | rounds s | all s | better % | rounds CPU s | all CPU s | gains of rounds % |")
    print("|---|---|---:|---:|---:|---:|---:|---|")
    worse, gains, cpu = [], [], [0.0, 0.0]
    for setting in SETTINGS[given.first:given.first + given.limit]:
        rounds = tune(given.program, setting, given.planners, given.samples, "3")
        whole = tune(given.program, setting, given.planners, given.samples, "all")
        name = f"{setting[0].split('/')[-1]} {setting[1]} {setting[3]} {setting[2]} {setting[4]}"
        for planner, result in rounds.items():
            ours, theirs = best(result), best(whole[planner])
            cpu[0] += result["cpu_seconds"]
            cpu[1] += whole[planner]["cpu_seconds"]
            steps = [round_["gain"] for round_ in result["rounds"] if round_["gain"] is not None]
            gains.append(steps)
            more = 0.0 if theirs is None else 1.0 if ours is None else 1 - theirs / ours
            worse.append(more)
            shown = ["-" if time is None else f"{time:.4f}" for time in (ours, theirs)]
            print(f"| {name} | {planner} | {shown[0]} | {shown[1]} | {100 * more:.2f} | {result['cpu_seconds']:.1f} | "
                  f"{whole[planner]['cpu_seconds']:.1f} | {' '.join(f'{100 * gain:.1f}' for gain in steps)} |", flush=True)
    above = sum(more > MOST for more in worse)
    print(f"\nAll degrees at full effort: {100 * max(worse):.2f} % better at most, {100 * statistics.mean(worse):.3f} % on average; "
          f"more than {100 * MOST:g} % in {above} of {len(worse)}. Processor time {cpu[0]:.0f} s in rounds, {cpu[1]:.0f} s for all.")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
