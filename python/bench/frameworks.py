# SPDX-License-Identifier: Apache-2.0
"""slimpack's balance beside verl's own functions, on verl's own cost: python python/bench/frameworks.py

Ten sets of lengths, three steps of each: 512 samples to 16 ranks, and one rank's 64 samples to micro-batches under a
cap. Prints the largest over the mean cost of a part, wall time, micro-batches, tokens over the cap.
"""
from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/tests"))
import frameworks  # noqa: E402

import slimpack.verl  # noqa: E402

CAP = 16384


def sets() -> dict[str, Any]:
    """Lengths by name: at most 16384 tokens each."""
    rng = np.random.default_rng(0)
    found = {path.stem: np.loadtxt(path, dtype=np.int64, comments="#", ndmin=1)
             for folder in ("examples/data", "bench/evaluation/data") for path in sorted((ROOT / folder).glob("*.lengths"))}
    found["log-normal(7, 1.3)"] = rng.lognormal(7, 1.3, 20000).astype(np.int64)
    found["two lengths"] = rng.choice([60 * 128, 68 * 128], 20000)
    found["uniform"] = rng.integers(1, 16384, 20000)
    found["one in fifty long"] = np.where(rng.random(20000) < 0.02, 16000, 300)
    found["just over half"] = rng.integers(8200, 9000, 20000)
    return dict((name, np.clip(lengths, 1, CAP)) for name, lengths in list(found.items())[-10:])


def main() -> None:
    import torch
    from tensordict import TensorDict

    frameworks.package("verl", hollow=["verl.utils"], absent=["verl.protocol"])
    import verl.utils.seqlen_balancing as theirs

    def took(call: Callable[[], Any]) -> tuple[float, Any]:
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            made = call()
            times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1e3, made

    def spread(parts: list[list[int]], costs: list[int]) -> float:
        sums = [sum(costs[i] for i in part) for part in parts]
        return max(sums) / (sum(sums) / len(sums))

    print("| lengths | 16 ranks, max / mean: verl | slimpack | ms: verl | slimpack | micro-batches: verl | slimpack | max / mean: verl "
          "| slimpack | over the cap: verl | slimpack |\n|---|" + "---:|" * 10)
    for name, lengths in sets().items():
        told: list[list[Any]] = []
        for step in range(3):
            rng = np.random.default_rng(step)
            whole = rng.choice(lengths, 512, replace=len(lengths) < 512).tolist()
            costs = [int(cost) for cost in theirs.calculate_workload(torch.tensor(whole))]
            row: list[Any] = []
            for function in (theirs.get_seqlen_balanced_partitions, slimpack.verl.get_seqlen_balanced_partitions):
                time_, parts = took(lambda: function(costs, 16, True))
                row += [spread(parts, costs), time_]
            one = [whole[i] for i in parts[0] + parts[1]]
            batch = TensorDict({"input_ids": torch.nested.as_nested_tensor(
                [torch.zeros(n, dtype=torch.int8) for n in one], layout=torch.jagged)}, [len(one)])
            of_one = [costs[i] for i in parts[0] + parts[1]]
            for function in (theirs.rearrange_micro_batches, slimpack.verl.rearrange_micro_batches):
                try:
                    _, chosen = function(batch, CAP)
                    over = sum(max(sum(one[i] for i in part) - CAP, 0) for part in chosen)
                    row += [len(chosen), spread(chosen, of_one), over]
                except ValueError:
                    row += [float("nan")] * 3
            told.append(row)
        means = [statistics.mean(column) for column in zip(*told)]
        a, at, b, bt, n, s, o, m, r, v = means
        print(f"| {name} | {a:.4f} | {b:.4f} | {at:.1f} | {bt:.2f} | {n:.1f} | {m:.1f} | {s:.4f} | {r:.4f} | {o:.0f} | {v:.0f} |",
              flush=True)


if __name__ == "__main__":
    main()
