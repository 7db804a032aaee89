# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core with slimpack's schedule of packed samples, and its parameters of attention for a plan's packs.

`schedule` needs no Megatron. `HybridCPScheduler` (Megatron-Core 0.16) and `PackingScheduler`, `DynamicCPScheduler`
(its main branch) are made where they are first read, from the classes of the Megatron-Core that is installed.
"""
from __future__ import annotations

import importlib
import math
from typing import Any, Callable, NamedTuple, Optional, Sequence, Union

import numpy as np

from . import _core, balance
from ._arguments import lengths_of
from ._errors import InvalidInput
from ._plan import MicroPack, Plan

__all__ = ["DynamicCPScheduler", "HybridCPScheduler", "PackingScheduler", "group_sizes", "groups_and_subsamples",
           "packed_seq_params", "schedule"]


class _Bin(NamedTuple):
    """Samples, as indices, that a block of `size` ranks computes in one micro-batch."""

    size: int
    samples: list[int]


def group_sizes(ranks: int, least: int = 1) -> list[int]:
    """The context-parallel sizes that Megatron-Core has groups of: powers of two that divide the ranks, and all."""
    sizes, size = [], 1
    while size < ranks and ranks % size == 0:
        sizes.append(size)
        size *= 2
    return [size for size in sizes if size >= least] + [ranks]


def schedule(
    sample_id_seqlens: Sequence[tuple[int, int]],
    *,
    ranks: int,
    max_seqlen_per_rank: int,
    sizes: Optional[Sequence[int]] = None,
    multiple: int = 1,
    max_num_seqs: Optional[int] = None,
) -> list[list[list[int]]]:
    """Divides samples into micro-batches, and each of these among blocks of context-parallel ranks.

    A sample goes to a block of the least size that holds it. Micro-batches are as few as fit; ranks that
    are left over then divide or widen the costliest packs, so no rank is empty. Packs of similar cost share a
    micro-batch. Costs are verl's 24576 L + L^2, divided by the size of the block.

    Args:
        sample_id_seqlens: identifier and tokens, > 0, of each sample.
        ranks: data-parallel times context-parallel ranks.
        max_seqlen_per_rank: the most tokens of a rank in one micro-batch; a block has so many times its size.
        sizes: the sizes that blocks may have, ascending, each a divisor of the next and of `ranks`; None:
            `group_sizes(ranks)`. A block starts at a multiple of its size.
        multiple: the number of micro-batches is a multiple of it.
        max_num_seqs: the most samples of a pack; None: any number.

    Returns:
        [micro-batch][rank]: the identifiers; ranks of a block have the same list.

    Raises InvalidInput.
    """
    for name, value in (("ranks", ranks), ("max_seqlen_per_rank", max_seqlen_per_rank), ("multiple", multiple),
                        ("max_num_seqs", 1 if max_num_seqs is None else max_num_seqs)):
        if not isinstance(value, int) or value < 1:
            raise InvalidInput(f"{name}: must be an integer >= 1, got {value!r}")
    ids = [int(sample) for sample, _ in sample_id_seqlens]
    lengths = lengths_of([int(length) for _, length in sample_id_seqlens], "sample_id_seqlens").astype(np.int64)
    if lengths.min() < 1:
        raise InvalidInput(f"sample_id_seqlens: sample {ids[int(lengths.argmin())]} must have > 0 tokens")
    chain = list(sizes) if sizes is not None else group_sizes(ranks)
    if not chain or any(size < 1 or wide % size for size, wide in zip(chain, chain[1:] + [ranks])):
        raise InvalidInput(f"sizes: each must divide the next and the {ranks} ranks, got {chain}")
    longest = int(lengths.argmax())
    if lengths[longest] > chain[-1] * max_seqlen_per_rank:
        raise InvalidInput(f"sample_id_seqlens: sample {ids[longest]} has {lengths[longest]} tokens, more than "
                           f"{chain[-1]} ranks of {max_seqlen_per_rank} hold")
    costs = balance.sample_costs(lengths)
    # Sizes that jump may need more micro-batches; blocks of the greatest size alone tile where samples are enough.
    for allowed, more in ((chain, 0), (chain, 1), (chain, 2), (chain[-1:], 0)):
        bins = _filled(lengths, costs, allowed, ranks, max_seqlen_per_rank, multiple, more, max_num_seqs)
        if bins is not None:
            return [[[ids[i] for i in samples] for size, samples in blocks for _ in range(size)]
                    for blocks in _micro_batches(bins, costs, ranks)]
    raise InvalidInput(f"sample_id_seqlens: {len(ids)} samples cannot give each of {ranks} ranks as many "
                       f"micro-batches, a multiple of {multiple}")


def _filled(lengths: Any, costs: Any, sizes: list[int], ranks: int, cap: int, multiple: int,
            more: int, most: Optional[int]) -> Optional[list[_Bin]]:
    """Bins that fill `multiple` micro-batches as often as needed, and `more` times; None where there are none."""
    needed = np.searchsorted(np.array(sizes) * cap, lengths)  # the index of the least size
    bins: list[_Bin] = []
    for place in np.unique(needed).tolist():
        members = np.flatnonzero(needed == place)
        for part in _core.best_fit(lengths[members], sizes[place] * cap):
            step = most or len(part)
            bins += [_Bin(sizes[place], members[part[i : i + step]].tolist()) for i in range(0, len(part), step)]
    wider = dict(zip(sizes, sizes[1:]))
    spare = -sum(one.size for one in bins) % (ranks * multiple) + more * ranks * multiple
    while spare:
        # The costliest bin sets the time of its micro-batch, whether it is divided or, of one sample, widened.
        best = max(((costs[one.samples].sum() / one.size, len(one.samples) > 1, i) for i, one in enumerate(bins)
                    if (one.size if len(one.samples) > 1 else wider.get(one.size, math.inf) - one.size) <= spare),
                   default=None)
        if best is None:
            return None
        size, samples = bins.pop(best[2])
        if best[1]:
            spare -= size
            bins += [_Bin(size, [samples[i] for i in half])
                     for half in _core.karmarkar_karp(costs[samples], 2, False)]
        else:
            spare -= wider[size] - size
            bins.append(_Bin(wider[size], samples))
    return _evened(bins, lengths, costs, cap, most)


def _evened(bins: list[_Bin], lengths: Any, costs: Any, cap: int, most: Optional[int]) -> list[_Bin]:
    """Divides the samples of all bins of one size again, by cost, where that keeps the cap and makes none costlier."""
    made: list[_Bin] = []
    for size in {one.size for one in bins}:
        own = [one for one in bins if one.size == size]
        samples = np.array([i for one in own for i in one.samples])
        parts = [samples[part] for part in _core.karmarkar_karp(costs[samples], len(own), False)]
        kept = all(lengths[part].sum() <= size * cap and len(part) <= (most or len(part)) for part in parts)
        if kept and max(costs[part].sum() for part in parts) <= max(costs[one.samples].sum() for one in own):
            own = [_Bin(size, part.tolist()) for part in parts]
        made += own
    return made


def _micro_batches(bins: list[_Bin], costs: Any, ranks: int) -> list[list[_Bin]]:
    """Micro-batches of bins of similar cost, costliest first, each as wide as the ranks, widest block first.

    The next bin that fits is taken: what is left of a micro-batch is filled exactly, as sizes divide one another.
    """
    waiting = sorted(bins, key=lambda one: (-costs[one.samples].sum() / one.size, min(one.samples)))
    made = []
    while waiting:
        blocks, rest, room = [], [], ranks
        for one in waiting:
            if one.size <= room:
                blocks.append(one)
                room -= one.size
            else:
                rest.append(one)
        assert room == 0
        waiting = rest
        made.append(sorted(blocks, key=lambda one: -one.size))
    return made


Workload = Callable[[int, int], float]  # of a sample of so many tokens, on each of so many ranks


def _quadratic(tokens: int, ranks: int) -> float:
    return tokens * tokens / ranks


def groups_and_subsamples(
    samples: Sequence[tuple[int, int]], ranks: int, max_seq_len_per_rank: int, workload: Workload = _quadratic
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


def _widen(samples: Sequence[tuple[int, int]], widths: dict[int, int], ranks: int, workload: Workload) -> None:
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


def packed_seq_params(plan: Plan, pack: Union[int, MicroPack], rank: int = 0, *, device: Any = None) -> Any:
    """Megatron-Core's PackedSeqParams of a MicroPack, format "thd", for the place `rank` in its group.

    Queries are the rank's rows of the pack, keys and values what `Plan.cu_seqlens` says; no padding.
    `device`: of the tensors, as torch names it; None: the CPU. `cp_group` is left to the caller.
    """
    import torch

    params = importlib.import_module("megatron.core.packed_seq_params")
    queries, keys, max_q, max_k = plan.cu_seqlens(pack, rank)
    q, k = (torch.from_numpy(np.array(one)).to(device or "cpu") for one in (queries, keys))
    return params.PackedSeqParams(qkv_format="thd", cu_seqlens_q=q, cu_seqlens_kv=k, cu_seqlens_q_padded=q,
                                  cu_seqlens_kv_padded=k, max_seqlen_q=max_q, max_seqlen_kv=max_k)


def _hybrid() -> type:
    """The scheduler of 0.16: groups, in which each rank runs its samples one by one, and what they hold."""
    base = importlib.import_module("megatron.core.pipeline_parallel.hybrid_cp_schedule").BalancedCPScheduler

    class HybridCPScheduler(base):  # type: ignore[misc, valid-type]
        """Megatron-Core's BalancedCPScheduler by `groups_and_subsamples`, where the ranks are no power of two by
        `schedule`; put it in its place in `datasets.data_schedule`."""

        def get_groups_and_subsamples(self, sample_id_seqlens: Any, config: Any) -> tuple[Any, Any]:
            ranks = self.total_hdp_gpus
            if ranks & (ranks - 1) == 0:
                return groups_and_subsamples(sample_id_seqlens, ranks, self.max_seq_len_per_rank,
                                             self.get_total_workload)
            made = schedule(sample_id_seqlens, ranks=self.total_hdp_gpus, max_seqlen_per_rank=self.max_seq_len_per_rank)
            tokens = dict(sample_id_seqlens)
            return [[[tokens[i] for i in own] for own in group] for group in made], made

    return HybridCPScheduler


def _packing(name: str, dynamic: bool) -> type:
    """A scheduler of the main branch: [micro-batch][rank][identifiers], micro-batches in multiples for VPP."""
    module = importlib.import_module("megatron.core.datasets.data_schedule")
    base = getattr(module, "DefaultDynamicCPScheduler" if dynamic else "DpBalancedScheduler", None)
    if base is None:
        raise ImportError("its data_schedule has none; for 0.16 there is HybridCPScheduler")

    def get_groups_and_subsamples(self: Any, sample_id_seqlens: Any) -> list[list[list[int]]]:
        ranks = self.dp_size * self.cp_size
        return schedule(
            sample_id_seqlens,
            ranks=ranks,
            max_seqlen_per_rank=self.max_seqlen_per_dp_cp_rank,
            sizes=group_sizes(ranks, self.min_cp_size) if dynamic else [self.cp_size],
            multiple=self.microbatch_group_size_per_vp_stage or 1,
            max_num_seqs=getattr(self, "max_num_seqs", None),
        )

    return type(name, (base,), {"get_groups_and_subsamples": get_groups_and_subsamples, "__module__": __name__,
                                "__doc__": f"Megatron-Core's {base.__name__} by `slimpack.megatron.schedule`."})


def __getattr__(name: str) -> Any:
    if name not in ("HybridCPScheduler", "PackingScheduler", "DynamicCPScheduler"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        made = _hybrid() if name == "HybridCPScheduler" else _packing(name, name == "DynamicCPScheduler")
    except ImportError as error:
        raise ImportError(f"slimpack.megatron.{name}: Megatron-Core has no base class for it: {error}") from error
    globals()[name] = made
    return made
