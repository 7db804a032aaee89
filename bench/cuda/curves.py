#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses of two logs of mini_trainer side by side, as a Markdown table: curves.py A.jsonl B.jsonl"""
import json
import pathlib
import sys


def losses(path):
    lines = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "step" in line and "loss" in line}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    first, second = losses(sys.argv[1]), losses(sys.argv[2])
    if not first or first.keys() != second.keys():
        sys.exit(f"curves.py: {sys.argv[1]} and {sys.argv[2]} must have losses of the same steps")
    names = [pathlib.Path(path).stem for path in sys.argv[1:]]
    print(f"| step | {names[0]} | {names[1]} | relative difference |\n|---:|---:|---:|---:|")
    for step, loss in first.items():
        print(f"| {step} | {loss:.5f} | {second[step]:.5f} | {abs(second[step] - loss) / loss:.1e} |")
    worst = max(abs(second[step] - loss) / loss for step, loss in first.items())
    print(f"\nLargest relative difference: {worst:.2e}.")


if __name__ == "__main__":
    main()
