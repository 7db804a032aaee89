# SPDX-License-Identifier: Apache-2.0
"""Balanced partitions and micro-batches as verl and slime call them: integer lists in, integer lists out."""
from __future__ import annotations

import os
from typing import Any, Optional, Sequence

import numpy as np

from . import _core
from ._arguments import Path, lengths_of
from ._errors import InvalidInput

__all__ = ["get_seqlen_balanced_partitions", "micro_batches"]

_OF_SEVEN = 24576  # verl's weight of a token of a 7B model beside its attention


def get_seqlen_balanced_partitions(
    seqlen_list: Sequence[int], k_partitions: int, equal_size: bool, *, model: Optional[Path] = None
) -> list[list[int]]:
    """Divides items so that the sums of their costs are nearly equal (Karmarkar and Karp).

    Args:
        seqlen_list: the cost of each item, > 0; with `model` the tokens of each sample.
        k_partitions: parts, at most as many as items.
        equal_size: every part has as many items; `k_partitions` must divide their number.
        model: a preset or a Hugging Face config.json whose work a sample costs: matrix products and
            causal attention.

    Returns:
        The indices of each part, ascending. Every index is in one part, and no part is empty.

    Raises InvalidInput. O(n k log(n k)).
    """
    items = lengths_of(seqlen_list, "seqlen_list")
    parts = _count("k_partitions", k_partitions)
    if parts > items.size:
        raise InvalidInput(f"k_partitions: must be at most the {items.size} items, got {parts}")
    if equal_size and items.size % parts:
        raise InvalidInput(f"k_partitions: equal parts must divide the {items.size} items, got {parts}")
    _check_positive("seqlen_list", items)
    costs = items if model is None else _core.sample_work(os.fspath(model), items)
    return _core.karmarkar_karp(costs, parts, bool(equal_size))


def micro_batches(
    lengths: Sequence[int],
    max_token_len: int,
    *,
    min_num_micro_batch: int = 1,
    num_batches_divided_by: int = 1,
    model: Optional[Path] = None,
) -> list[list[int]]:
    """Cuts samples into micro-batches of nearly equal cost, none of which exceeds the cap.

    The number of micro-batches is the smallest at which a division by cost, or else by tokens, keeps the
    cap, and never more than best fit decreasing needs; it is at least `min_num_micro_batch`, rounded up to a
    multiple of `num_batches_divided_by`.

    Args:
        lengths: tokens of each sample, from 1 to `max_token_len`.
        max_token_len: the most tokens of a micro-batch.
        min_num_micro_batch: the fewest micro-batches.
        num_batches_divided_by: their number is a multiple of it.
        model: as in `get_seqlen_balanced_partitions`; None: verl's 24576 L + L^2.

    Returns:
        The indices of each micro-batch, ascending, none empty.

    Raises InvalidInput, also where there are fewer samples than micro-batches. O(n^2 log n) at worst.
    """
    items = lengths_of(lengths)
    cap = _count("max_token_len", max_token_len)
    multiple = _count("num_batches_divided_by", num_batches_divided_by)
    least = _count("min_num_micro_batch", min_num_micro_batch)
    _check_positive("lengths", items)
    longest = int(items.argmax())
    if items[longest] > cap:
        raise InvalidInput(
            f"lengths: element {longest} (from 0) has {items[longest]} tokens, more than max_token_len of {cap}")
    items = items.astype(np.int64, copy=False)
    costs = sample_costs(items) if model is None else _core.sample_work(os.fspath(model), items)
    return cut(items, costs, cap, least, multiple)


def sample_costs(lengths: Any) -> Any:
    """verl's cost of samples of so many tokens: 24576 L + L^2, int64."""
    return lengths * (_OF_SEVEN + lengths)


def cut(items: Any, costs: Any, cap: int, least: int, multiple: int) -> list[list[int]]:
    """`micro_batches` of int64 arrays of lengths, each from 1 to `cap`, and their costs, each > 0."""
    bins = _core.best_fit(items, cap)
    most = _rounded_up(max(len(bins), least), multiple)
    count = _rounded_up(max(-(-int(items.sum()) // cap), least), multiple)
    if most > items.size:
        most = max(count, items.size // multiple * multiple)
    if count > items.size or most < len(bins):
        raise InvalidInput(
            f"lengths: {items.size} samples cannot be {_rounded_up(max(len(bins), least), multiple)} micro-batches")
    while count <= most:
        for weights in (costs, items):
            parts = _core.karmarkar_karp(weights, count, False)
            if all(items[part].sum() <= cap for part in parts):
                return parts
        count += multiple
    return split(bins, most, costs)


def split(bins: list[list[int]], count: int, costs: Any) -> list[list[int]]:
    """Divides the costliest bin that has several items until there are so many."""
    while len(bins) < count:
        i = max((i for i, one in enumerate(bins) if len(one) > 1), key=lambda i: costs[bins[i]].sum())
        halves = _core.karmarkar_karp(costs[bins[i]], 2, False)
        bins[i : i + 1] = [[bins[i][j] for j in half] for half in halves]
    return bins


def _rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _count(name: str, value: Any) -> int:
    try:
        count = value.__index__()
    except AttributeError:
        raise InvalidInput(f"{name}: must be an integer >= 1, got {value!r}") from None
    if count < 1:
        raise InvalidInput(f"{name}: must be an integer >= 1, got {count}")
    return int(count)


def _check_positive(name: str, items: Any) -> None:
    least = int(items.argmin())
    if items[least] < 1:
        raise InvalidInput(f"{name}: element {least} (from 0) must be > 0, got {items[least]}")
