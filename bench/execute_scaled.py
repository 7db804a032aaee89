#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans the settings of an evaluation again, with the degrees that it chose, and executes these
plans scaled down (bench/execute_scaled.cpp): loss and gradients must equal those of the unsliced
oracle. Settings are those of slimpack's results in the store, or of another planner's, with at most so
many devices.

    bench/execute_scaled.py build/release/bin                # all of them, some minutes each on two cores
    bench/execute_scaled.py build/release/bin --degrees-of kk --devices 16 --least-tp 2 --first 5
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def settings(store, planner, devices, least_tp):
    """The results to plan again, each setting with its degrees once, and its tokens."""
    seen = set()
    for line in store.read_text().splitlines():
        result = json.loads(line)
        if result.get("planner") != planner or not result["feasible"]:
            continue
        cell = result["cell"]
        if cell["gpus"] > devices or result["degrees"]["tp"] < least_tp:
            continue
        key = tuple(str(cell.get(name)) for name in ("set", "model", "cluster", "context", "samples", "seed"))
        key += tuple(result["degrees"].values())
        if key not in seen:
            seen.add(key)
            yield cell, result["degrees"], result["tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bin", type=pathlib.Path, help="folder of slimpack and execute_scaled")
    parser.add_argument("--matrix", type=pathlib.Path, default=HERE / "evaluation/full.json")
    parser.add_argument("--store", type=pathlib.Path, default=HERE / "results/evaluation.jsonl")
    parser.add_argument("--planner", default="slimpack")
    parser.add_argument("--degrees-of", metavar="PLANNER", help="at the degrees that the store has of this planner")
    parser.add_argument("--devices", type=int, default=64, help="at most so many")
    parser.add_argument("--least-tp", type=int, default=1, help="tensor-parallel devices at least")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="only these, counted from 0 as they are printed")
    parser.add_argument("--first", type=int, help="only so many settings, those of the fewest tokens")
    arguments = parser.parse_args()
    arguments.bin = arguments.bin.resolve()  # it runs in a folder of its own
    if arguments.first is not None and arguments.first < 1:
        parser.error(f"--first must be at least 1, got {arguments.first}")
    matrix = json.loads(arguments.matrix.read_text())
    found = settings(arguments.store, arguments.degrees_of or arguments.planner, arguments.devices, arguments.least_tp)
    todo = [setting[:2] for setting in sorted(found, key=lambda setting: setting[2])]
    chosen = list(enumerate(todo))[: arguments.first]
    if arguments.only is not None:
        if max(arguments.only) >= len(todo) or min(arguments.only) < 0:
            parser.error(f"--only: the store has the settings 0 to {len(todo) - 1}")
        chosen = [(number, todo[number]) for number in arguments.only]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (cell, degrees) in chosen:
            cluster = cell["cluster"]
            if cluster in matrix["clusters"]:  # an edit of a preset, which decides times alone
                cluster = matrix["clusters"][cluster]["base"]
            lengths = arguments.matrix.parent / matrix["sets"][cell["set"]]["path"]
            plan = pathlib.Path(folder) / f"{number}-{cell['set']}-{cell['model']}-{cell['context']}.json"
            command = [arguments.bin / "slimpack", "plan", lengths, "--planner", arguments.planner,
                       "--model", cell["model"], "--cluster", cluster, "--context", cell["context"],
                       "--overlong", cell["overlong"], "--batch-samples", cell["samples"],
                       "--seed", cell["seed"], "--granularity", cell["granularity"], "--effort", cell["effort"],
                       "-o", plan]
            for name, degree in degrees.items():
                command += [f"--{name}", degree]
            subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
            run = subprocess.run([str(arguments.bin / "execute_scaled"), plan.name], cwd=folder, check=False)
            failed += run.returncode != 0
    print(f"{len(chosen)} plans executed, {failed} failed")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
