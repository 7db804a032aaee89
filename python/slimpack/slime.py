# SPDX-License-Identifier: Apache-2.0
"""slime's schedule of a rollout: which rank trains which samples, in which micro-batches. Integers in and out."""
from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from . import balance
from ._arguments import lengths_of
from ._errors import InvalidInput

__all__ = ["build_dp_schedule"]


def build_dp_schedule(
    args: Any,
    train_parallel_config: dict[str, Any],
    total_lengths: Sequence[int],
    *,
    global_batch_size: int,
    rollout_indices: Sequence[int],
) -> tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]:
    """What slime's function of this name gives, with a token cap that always holds.

    Each step takes `global_batch_size` rollouts in order, divides their samples into micro-batches, and these
    among the ranks, as many for each. Rollouts beyond the last full step are left out; so are a step's last
    ones where its samples are too few for micro-batches that the ranks can share.

    Args:
        args: has `use_dynamic_batch_size` and `max_tokens_per_gpu`, or else `micro_batch_size`; `balance_data`.
        train_parallel_config: `dp_size`, `cp_size`, `vpp_size`, `microbatch_group_size_per_vp_stage`.
        total_lengths: tokens of each sample, > 0.
        global_batch_size: rollouts of a step.
        rollout_indices: the rollout of each sample; its samples stay in one step.

    Returns:
        partitions: of each rank, the samples in the order it trains them.
        micro_batch_indices: of each rank, of each micro-batch, places in its partition.
        num_microbatches: of each step, the micro-batches of every rank.
        global_batch_sizes: of each step, the rollouts it kept.

    Raises InvalidInput.
    """
    lengths = lengths_of(total_lengths, "total_lengths").astype(np.int64, copy=False)
    if len(rollout_indices) != lengths.size:
        raise InvalidInput(f"rollout_indices: must be {lengths.size}, one a sample, got {len(rollout_indices)}")
    if lengths.min() < 1:
        raise InvalidInput(f"total_lengths: element {int(lengths.argmin())} (from 0) must be > 0, got {lengths.min()}")
    ranks = train_parallel_config["dp_size"]
    multiple = ranks
    if (train_parallel_config["vpp_size"] or 1) > 1:
        multiple *= train_parallel_config["microbatch_group_size_per_vp_stage"]
    rollouts: dict[int, list[int]] = {}
    for sample, rollout in enumerate(rollout_indices):
        rollouts.setdefault(rollout, []).append(sample)
    groups = list(rollouts.values())
    if not 1 <= global_batch_size <= len(groups):
        raise InvalidInput(
            f"global_batch_size: must be from 1 to the {len(groups)} rollouts, got {global_batch_size}")

    partitions: list[list[int]] = [[] for _ in range(ranks)]
    indices: list[list[list[int]]] = [[] for _ in range(ranks)]
    counts, kept = [], []
    for begin in range(0, len(groups) - global_batch_size + 1, global_batch_size):
        step = groups[begin : begin + global_batch_size]
        batches = _micro_batches(args, train_parallel_config["cp_size"], lengths, step, multiple)
        kept.append(len(step))
        counts.append(len(batches) // ranks)
        if getattr(args, "balance_data", False):
            costs = [int(balance.sample_costs(lengths[batch]).sum()) for batch in batches]
            shares = balance.get_seqlen_balanced_partitions(costs, ranks, True)
        else:
            shares = [list(range(rank, len(batches), ranks)) for rank in range(ranks)]
        for partition, places, share in zip(partitions, indices, shares):
            for batch in share:
                places.append(list(range(len(partition), len(partition) + len(batches[batch]))))
                partition.extend(batches[batch])
    return partitions, indices, counts, kept


def _micro_batches(args: Any, cp: int, lengths: Any, step: list[list[int]], multiple: int) -> list[list[int]]:
    """The samples of each micro-batch of a step; rollouts that had to be left out are taken from `step`."""
    if not args.use_dynamic_batch_size:
        samples = [sample for rollout in step for sample in rollout]
        size = args.micro_batch_size
        batches = [samples[i : i + size] for i in range(0, len(samples), size)]
        if len(batches) % multiple:
            raise InvalidInput(
                f"micro_batch_size: {len(batches)} micro-batches of a step must be a multiple of {multiple}")
        return batches
    cap = args.max_tokens_per_gpu * cp
    while True:
        samples = [sample for rollout in step for sample in rollout]
        batches = _under_cap(lengths[samples], cap)
        count = -(-len(batches) // multiple) * multiple
        if count <= len(samples):
            break
        if len(step) == 1 or len(samples) - len(step[-1]) < multiple:
            raise InvalidInput(f"global_batch_size: {len(samples)} samples of a step cannot be {count} micro-batches")
        step.pop()
    batches = balance.split(batches, count, balance.sample_costs(lengths[samples]))
    return [[samples[i] for i in batch] for batch in batches]


def _under_cap(lengths: Any, cap: int) -> list[list[int]]:
    """Micro-batches that keep the cap; a sample that is longer is alone in one."""
    alone = [[i] for i in np.flatnonzero(lengths > cap).tolist()]
    rest = np.flatnonzero(lengths <= cap)
    if not rest.size:
        return alone
    shares = balance.cut(lengths[rest], balance.sample_costs(lengths[rest]), cap, 1, 1)
    return alone + [rest[share].tolist() for share in shares]
