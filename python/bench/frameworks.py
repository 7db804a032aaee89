#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""slimpack's adapters beside the frameworks' own functions: python python/bench/frameworks.py

On ten length sets, of whichever frameworks are installed (verl with tensordict, Megatron-Core), prints tables of
max over mean of verl's cost (24576 L + L^2) over equal partitions and over micro-batches, tokens over the cap, how
many micro-batches there are, and milliseconds (the least of three calls). A Megatron schedule is measured by the
time its ranks take, in per cent above an even share: each group ends with its slowest rank.
"""
import pathlib
import sys
import time
import warnings

import numpy as np

import slimpack.megatron
import slimpack.verl

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/tests"))
SAMPLES, CAP, RANKS = 512, 32768, 16


def length_sets():
    """Ten lists of 512 lengths, none above the cap."""
    for seed, (mean, sigma) in enumerate([(6, 1.0), (7, 1.5), (8, 1.2)]):
        yield f"log-normal {mean}, {sigma}", np.random.default_rng(seed).lognormal(mean, sigma, SAMPLES)
    for seed, name in enumerate(["examples/data/books", "examples/data/longsft_mix", "examples/data/wikipedia_en",
                                 "bench/evaluation/data/code", "bench/evaluation/data/web"]):
        known = np.loadtxt(ROOT / f"{name}.lengths", dtype=np.int64, comments="#")
        yield name.split("/")[-1], np.random.default_rng(seed).choice(known, SAMPLES)
    yield "just above half", np.full(SAMPLES, CAP // 2 + 1) - 2 * (np.arange(SAMPLES) % 2 == 0)
    yield "one long, all short", np.where(np.arange(SAMPLES) == 7, CAP, 64)


def least_ms(work, runs=3):
    times, made = [], None
    for _ in range(runs):
        begin = time.perf_counter()
        try:
            made = work()
        except (AssertionError, IndexError, TypeError, ValueError) as error:
            return None, f"{type(error).__name__}"
        times.append(time.perf_counter() - begin)
    return made, f"{1e3 * min(times):.2f}"


def above(sums):
    return f"{max(sums) / (sum(sums) / len(sums)):.4f}"


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def verl_tables(sets):
    from frameworks import load_verl

    verl = load_verl()
    import torch
    from tensordict import TensorDict

    print(f"\nverl, {SAMPLES} samples, {RANKS} equal partitions: max over mean, ms; its trainers pass tensors\n")
    row("lengths", "verl", "slimpack", "longest sample", "verl ms", "verl ms, tensors", "slimpack ms, tensors")
    row(*["---"] * 7)
    for name, lengths in sets:
        costs = verl.calculate_workload(torch.tensor(lengths))
        listed = costs.tolist()
        own, spent = least_ms(lambda: verl.get_seqlen_balanced_partitions(listed, RANKS, True))
        _, spent_tensors = least_ms(lambda: verl.get_seqlen_balanced_partitions(costs, RANKS, True))
        with slimpack.verl.patch():
            made, ours = least_ms(lambda: verl.get_seqlen_balanced_partitions(costs, RANKS, True))
        sums = [[sum(listed[i] for i in part) for part in parts] for parts in (own, made)]
        longest = f"{max(listed) * RANKS / sum(listed):.4f}"
        row(name, above(sums[0]), above(sums[1]), longest, spent, spent_tensors, ours)

    print(f"\nverl, micro-batches of at most {CAP} tokens: their number, max over mean, tokens over the cap, ms\n")
    row("lengths", "verl", "slimpack", "verl max/mean", "slimpack max/mean", "over", "over", "verl ms", "slimpack ms")
    row(*["---"] * 9)
    for name, lengths in sets:
        # Nothing but lengths is needed: one column that is as many rows as there are samples.
        rows = [torch.zeros(length, dtype=torch.uint8) for length in lengths]
        batch = TensorDict({"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, [len(lengths)])
        select, verl.tu.index_select_tensor_dict = verl.tu.index_select_tensor_dict, lambda batch, part: None
        own, spent = least_ms(lambda: verl.rearrange_micro_batches(batch, CAP)[1])
        with slimpack.verl.patch():
            made, ours = least_ms(lambda: verl.rearrange_micro_batches(batch, CAP)[1])
        verl.tu.index_select_tensor_dict = select
        cells = [[len(parts), above([sum(24576 * lengths[i] + lengths[i] ** 2 for i in part) for part in parts]),
                  sum(max(0, sum(lengths[i] for i in part) - CAP) for part in parts)] if parts else ["fails", "", ""]
                 for parts in (own, made)]
        row(name, *[cell for pair in zip(*cells) for cell in pair], spent, ours)


def megatron_table(sets):
    from test_megatron import Group

    warnings.simplefilter("ignore")
    from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

    def excess(ids, lengths, linear):
        """Time above an even share, in per cent, and the groups."""
        times = [[sum((linear * lengths[i] + lengths[i] ** 2) / sum(i in other for other in group) for i in own)
                  for own in group] for group in ids]
        return f"{100 * (sum(map(max, times)) * RANKS / sum(map(sum, times)) - 1):.1f} %"

    print(f"\nMegatron-Core's scheduler, {RANKS} ranks of {CAP // 4} tokens: groups, time above an even share by its "
          "own cost L^2 and by verl's, ms\n")
    row("lengths", "Megatron", "slimpack", "Megatron L^2", "slimpack L^2", "Megatron", "slimpack", "Megatron ms",
        "slimpack ms")
    row(*["---"] * 9)
    for name, lengths in sets:
        given, cells, spent = list(enumerate(lengths)), [], []
        for kind in (BalancedCPScheduler, slimpack.megatron.HybridCPScheduler):
            scheduler = kind(CAP // 4, Group(RANKS))
            made, ms = least_ms(lambda scheduler=scheduler: scheduler.get_groups_and_subsamples(given, None), 1)
            spent.append(ms)
            cells.append([len(made[1]), excess(made[1], lengths, 0), excess(made[1], lengths, 24576)]
                         if made else ["fails", "", ""])
        row(name, *[cell for pair in zip(*cells) for cell in pair], *spent)


def main():
    sets = [(name, np.clip(lengths.astype(np.int64), 1, CAP).tolist()) for name, lengths in length_sets()]
    for table in (verl_tables, megatron_table):
        try:
            table(sets)
        except ImportError as error:
            print(f"\n{table.__name__}: not measured: {error}")


if __name__ == "__main__":
    main()
