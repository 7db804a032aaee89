# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core: samples to ranks and context-parallel groups, and packs as Megatron's attention takes them.

Megatron is imported by `balanced_cp_scheduler` and `packed_seq_params` alone.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Union

import numpy as np

from ._errors import InvalidInput
from .balance import verl_cost, within_cap

if TYPE_CHECKING:
    from ._plan import MicroPack, Plan

__all__ = ["balanced_cp_scheduler", "groups_and_subsamples", "packed_micro_batches", "packed_seq_params"]

Samples = Sequence[tuple[int, int]]  # (id, tokens)
Workload = Callable[[int, int], float]  # of a sample of so many tokens, on each of so many ranks


def _quadratic(tokens: int, ranks: int) -> float:
    return tokens * tokens / ranks


def groups_and_subsamples(
    samples: Samples, ranks: int, max_seq_len_per_rank: int, workload: Workload = _quadratic
) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
    """Samples to data-parallel ranks and context-parallel groups, for Megatron's hybrid context parallelism.

    A sample takes 2^k consecutive ranks from a multiple of 2^k on: the groups that Megatron makes. Their number
    keeps `max_seq_len_per_rank`; a sample that alone is more than a rank's even share of the work takes more.
    Every rank runs its samples from wide groups to narrow ones, so ranks of a group come to it together and one
    Megatron group, without a barrier, holds the whole step.

    Args:
        samples: (id, tokens) of each, tokens > 0.
        ranks: data-parallel times context-parallel ranks, a power of two.
        max_seq_len_per_rank: the most tokens of a sample on a rank.
        workload: of a sample on each rank of its group; None: Megatron's own, tokens squared over ranks.

    Returns:
        groups, ids: [group][rank][sample] tokens and ids, as `BalancedCPScheduler.get_groups_and_subsamples`. No
        rank of a group is without a sample.

    Raises InvalidInput. Longest work first onto the least loaded ranks, the first such; O(n (log n + ranks)).
    """
    if ranks < 1 or ranks & (ranks - 1):
        raise InvalidInput(f"ranks: must be a power of two, got {ranks}")
    if max_seq_len_per_rank < 1:
        raise InvalidInput(f"max_seq_len_per_rank: must be >= 1, got {max_seq_len_per_rank}")
    if not samples:
        return [], []
    widths: dict[int, int] = {}
    for number, tokens in samples:
        if not 0 < tokens <= ranks * max_seq_len_per_rank:
            raise InvalidInput(f"samples: sample {number} must have from 1 to {ranks * max_seq_len_per_rank} tokens, "
                               f"got {tokens}")
        width = 1
        while width * max_seq_len_per_rank < tokens:
            width *= 2
        widths[number] = width
    _widen(samples, widths, ranks, workload)
    loads = np.zeros(ranks)
    groups: list[list[int]] = [[] for _ in range(ranks)]
    ids: list[list[int]] = [[] for _ in range(ranks)]
    work = {number: workload(tokens, widths[number]) for number, tokens in samples}
    for number, tokens in sorted(samples, key=lambda one: (-widths[one[0]], -work[one[0]])):
        width = widths[number]
        # Wider samples came first, so ranks of a block have had the same work until now.
        first = int(loads[::width].argmin()) * width
        loads[first : first + width] += work[number]
        for rank in range(first, first + width):
            groups[rank].append(tokens)
            ids[rank].append(number)
    return [groups], [ids]


def _widen(samples: Samples, widths: dict[int, int], ranks: int, workload: Workload) -> None:
    """Doubles groups of samples above an even share, and of the largest ones until no rank is without."""
    for _ in range(64):
        share = sum(workload(tokens, widths[number]) * widths[number] for number, tokens in samples) / ranks
        large = [number for number, tokens in samples
                 if widths[number] < ranks and workload(tokens, widths[number]) > share]
        if not large:
            break
        for number in large:
            widths[number] *= 2
    while sum(widths.values()) < ranks:
        number = max((one for one in samples if widths[one[0]] < ranks),
                     key=lambda one: workload(one[1], widths[one[0]]))[0]
        widths[number] *= 2


def balanced_cp_scheduler() -> Any:
    """Megatron-Core's `BalancedCPScheduler` (0.16) with this module's `groups_and_subsamples` in its
    `get_groups_and_subsamples`: a class to put in its place.

    Raises ImportError where Megatron-Core is not there.
    """
    from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

    class Scheduler(BalancedCPScheduler):  # type: ignore[misc]
        """Samples to ranks and groups by slimpack."""

        def get_groups_and_subsamples(self, sample_id_seqlens: Samples, config: Any = None) -> Any:
            return groups_and_subsamples(sample_id_seqlens, self.total_hdp_gpus, self.max_seq_len_per_rank,
                                         self.get_total_workload)

    return Scheduler


def packed_micro_batches(samples: Samples, ranks: int, max_tokens: int, *, multiple: int = 1) -> list[list[list[int]]]:
    """Packed micro-batches of whole samples: as many on every rank, none above the cap, no rank empty.

    Args:
        samples: (id, tokens) of each.
        ranks: data-parallel ranks.
        max_tokens: the most tokens of a micro-batch.
        multiple: each rank's number of micro-batches is a multiple of it: Megatron's
            `microbatch_group_size_per_vp_stage`.

    Returns:
        [micro-batch][rank][ids], as Megatron's packing schedulers give them. Micro-batches of one position cost about
        as much on all ranks, and so do ranks.

    Raises InvalidInput, also where there are fewer samples than micro-batches. O(n^2 log n) at worst.
    """
    if ranks < 1 or multiple < 1:
        raise InvalidInput(f"ranks and multiple: must be >= 1, got {ranks} and {multiple}")
    if not samples:
        raise InvalidInput("samples: must be at least one, got none")
    lengths = np.array([tokens for _, tokens in samples], np.int64)
    if lengths.min() < 1:
        raise InvalidInput(f"samples: sample {samples[int(lengths.argmin())][0]} must have tokens > 0, got {lengths.min()}")
    costs = verl_cost(lengths)
    parts = within_cap(lengths, costs, max_tokens, 1, ranks * multiple)
    parts.sort(key=lambda part: -int(costs[part].sum()))
    rows = [parts[i : i + ranks] for i in range(0, len(parts), ranks)]
    loads = np.zeros(ranks)
    placed = []
    for row in rows:  # the costliest to the rank that has had least
        order = np.argsort(loads, kind="stable")
        at: list[list[int]] = [[] for _ in range(ranks)]
        for rank, part in zip(order.tolist(), row):
            loads[rank] += costs[part].sum()
            at[rank] = [samples[i][0] for i in part]
        placed.append(at)
    return placed


def packed_seq_params(plan: Plan, pack: Union[int, MicroPack], rank: int = 0, *, device: Optional[Any] = None) -> Any:
    """A MicroPack as Megatron's attention takes it: `PackedSeqParams` in format thd.

    Keys are a segment's whole sample so far, so whoever calls it keeps keys and values of earlier slices.

    Args: as `Plan.cu_seqlens`, and where the tensors are. Raises ImportError where Megatron-Core is not there.
    """
    import torch
    from megatron.core.packed_seq_params import PackedSeqParams

    queries, keys, most_queries, most_keys = plan.cu_seqlens(pack, rank)
    starts = [torch.from_numpy(array.copy()).to(device or "cpu") for array in (queries, keys)]
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=starts[0], cu_seqlens_kv=starts[1],
                           cu_seqlens_q_padded=starts[0], cu_seqlens_kv_padded=starts[1],
                           max_seqlen_q=most_queries, max_seqlen_kv=most_keys)
