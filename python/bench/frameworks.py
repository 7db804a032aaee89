# SPDX-License-Identifier: Apache-2.0
"""slimpack's balance beside verl's and Megatron-Core's own functions, on their own costs.

    python python/bench/frameworks.py

Ten sets of lengths, three steps of each. verl: 512 samples to 16 ranks, and one rank's 64 samples to micro-batches
under a cap; the largest over the mean cost of a part, wall time, micro-batches, tokens over the cap. Megatron-Core: 256
samples to 16 ranks of at most 4096 tokens each, hybrid context parallelism; a step's time, the sum over groups of the
longest rank's work, over the work's even share.
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

import slimpack.megatron  # noqa: E402
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


def megatron() -> None:
    """Megatron-Core's table."""
    frameworks.package("megatron.core", hollow=["megatron.core.pipeline_parallel"],
                       absent=["megatron.core.parallel_state", "megatron.core.rerun_state_machine"])
    from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

    class Ranks:
        def size(self) -> int:
            return 16

    print("\n| lengths | step over even share: Megatron-Core | slimpack | groups: Megatron-Core | slimpack | ms: Megatron-Core "
          "| slimpack |\n|---|" + "---:|" * 6)
    for name, lengths in sets().items():
        told: list[list[float]] = []
        for step in range(3):
            whole = np.random.default_rng(step).choice(lengths, 256, replace=len(lengths) < 256).tolist()
            samples = list(enumerate(whole))
            row: list[float] = []
            for scheduler in (BalancedCPScheduler, slimpack.megatron.balanced_cp_scheduler()):
                try:
                    took, (groups, ids) = timed(lambda: scheduler(4096, Ranks()).get_groups_and_subsamples(samples, None))
                    step_time = 0.0
                    for tokens, numbers in zip(groups, ids):
                        width = {number: sum(number in other for other in numbers) for rank in numbers for number in rank}
                        step_time += max(sum(n * n / width[number] for n, number in zip(*rank)) for rank in zip(tokens, numbers))
                    row += [step_time / (sum(n * n for n in whole) / 16), len(groups), took]
                except (AssertionError, IndexError):
                    row += [float("nan")] * 3
            told.append(row)
        a, n, t, b, m, u = (statistics.mean(column) for column in zip(*told))
        print(f"| {name} | {a:.4f} | {b:.4f} | {n:.1f} | {m:.1f} | {t:.1f} | {u:.2f} |", flush=True)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds, the median of three, and what is made."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        made = call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3, made


def verl() -> None:
    """verl's table."""
    import torch
    from tensordict import TensorDict

    frameworks.package("verl", hollow=["verl.utils"], absent=["verl.protocol"])
    import verl.utils.seqlen_balancing as theirs

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
                time_, parts = timed(lambda: function(costs, 16, True))
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
    verl()
    megatron()
