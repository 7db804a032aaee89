# SPDX-License-Identifier: Apache-2.0
"""verl with compiled balancing and fewer micro-batches under its token cap.

    import slimpack.verl

    slimpack.verl.patch()    # in every process that trains; or: with slimpack.verl.patch(): ...
"""
from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, Optional, Sequence

import numpy as np

from . import balance
from ._arguments import lengths_of
from ._errors import InvalidInput

__all__ = ["Patch", "micro_batch_indices", "patch", "unpatch"]

_MODULE = "verl.utils.seqlen_balancing"
_originals: dict[str, Any] = {}


def micro_batch_indices(
    lengths: Sequence[int],
    max_token_len: int,
    *,
    num_batches_divided_by: Optional[int] = None,
    min_num_micro_batch: Optional[int] = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
    agree: Optional[Callable[[list[int]], list[int]]] = None,
) -> list[list[int]]:
    """The samples of each micro-batch, as verl's `rearrange_micro_batches` gives them, without torch.

    No micro-batch exceeds the cap. Their number is the smallest that `slimpack.balance.micro_batches` finds.

    Args:
        lengths: tokens of each sample, >= 0; a sample of none counts as one.
        max_token_len: the most tokens of a micro-batch.
        num_batches_divided_by: the number of micro-batches is a multiple of it.
        min_num_micro_batch: the fewest micro-batches.
        use_dynamic_bsz_balance: the costliest micro-batches are in the middle, the cheapest at both ends.
        force_group_size: so many consecutive samples stay in one micro-batch.
        agree: the greatest of each integer over all ranks, which then have as many micro-batches each. It is
            called once, also by ranks whose input is refused: all of them raise.

    Returns:
        The indices of each micro-batch, those of a forced group consecutive; none empty.

    Raises InvalidInput.
    """
    count, groups, refused, found = 0, 0, None, None
    try:
        multiple = _at_least_one("num_batches_divided_by", num_batches_divided_by)
        fewest = _at_least_one("min_num_micro_batch", min_num_micro_batch)
        cap = _at_least_one("max_token_len", max_token_len)
        size = _at_least_one("force_group_size", force_group_size)
        items, costs = _groups(lengths, cap, size)
        groups = items.size
        found = balance.cut(items, costs, cap, fewest, 1)
        count = -(-len(found) // multiple) * multiple
    except InvalidInput as error:
        refused = error
    if agree is not None:
        count, fewest_groups, others = agree([count, -groups, int(refused is not None)])
        groups = -fewest_groups
        if refused is None and others:
            refused = InvalidInput("lengths: another rank's samples were refused")
    if refused is None and count > groups:
        refused = InvalidInput(f"lengths: {groups} samples or groups cannot be {count} micro-batches")
    if refused is not None:
        raise refused
    assert found is not None
    if len(found) < count:
        more = balance.cut(items, costs, cap, count, 1)
        # A division into more parts can break the cap where one into fewer keeps it; halves of its parts never do.
        found = more if len(more) == count else balance.split(found, count, costs)
    if use_dynamic_bsz_balance:
        found = sorted(found, key=lambda part: (int(costs[part].sum()), part[0]), reverse=True)
        found = found[::2][::-1] + found[1::2]
    return [[i * size + j for i in part for j in range(size)] for part in found]


class Patch:
    """What `patch` gives: as a context manager it undoes the patch, unless that had been applied before."""

    def __init__(self, applied: bool) -> None:
        self._applied = applied

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._applied:
            unpatch()


def patch() -> Patch:
    """Replaces verl's `get_seqlen_balanced_partitions` and `rearrange_micro_batches` in this process.

    Modules of verl that imported them by name are changed too. A second call changes only what was imported
    in between. Raises ImportError where verl cannot be imported.
    """
    try:
        module = importlib.import_module(_MODULE)
    except ImportError as error:
        raise ImportError(f"slimpack.verl.patch: {_MODULE} cannot be imported: {error}") from error
    applied = not _originals
    for name, ours in _REPLACEMENTS.items():
        if applied:
            _originals[name] = getattr(module, name)
        _exchange(name, _originals[name], ours)
    return Patch(applied)


def unpatch() -> None:
    """Gives verl its own functions back; does nothing where it has them."""
    for name, original in _originals.items():
        _exchange(name, _REPLACEMENTS[name], original)
    _originals.clear()


def _exchange(name: str, old: Any, new: Any) -> None:
    for place, module in list(sys.modules.items()):
        if place.split(".")[0] == "verl" and getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


def _get_seqlen_balanced_partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """`slimpack.balance.get_seqlen_balanced_partitions` of what verl's callers give: lists or tensors."""
    values = seqlen_list.tolist() if hasattr(seqlen_list, "tolist") else [
        value.item() if hasattr(value, "item") else value for value in seqlen_list]
    integers = [int(value) for value in values]
    if integers != values or not integers or min(integers) < 1:
        return _originals["get_seqlen_balanced_partitions"](seqlen_list, k_partitions, equal_size)
    parts = balance.get_seqlen_balanced_partitions(integers, k_partitions, equal_size)
    return exchange_samples(integers, parts) if equal_size else parts


def exchange_samples(costs: Sequence[int], parts: list[list[int]]) -> list[list[int]]:
    """Makes the costliest part cheaper by exchanging one sample for one of another part, as long as that helps.

    Karmarkar and Karp's parts of equal size are far from even where costs differ much. Parts keep their sizes.
    Each exchange is the one that evens best with one of the eight cheapest parts: O(n/k log(n/k)); at most
    32 k of them.
    """
    cost = np.asarray(costs, dtype=np.int64)
    rows = [np.array(sorted(part, key=lambda i: costs[i])) for part in parts]
    sums = [int(cost[row].sum()) for row in rows]
    for _ in range(32 * len(rows)):
        order = sorted(range(len(rows)), key=lambda part: sums[part])
        high, best = order[-1], (sums[order[-1]], 0, 0, 0)
        for low in order[:-1][:8]:
            gap, theirs = sums[high] - sums[low], cost[rows[low]]
            # Of each of our samples, the neighbours of the cost that would even both parts exactly.
            near = np.searchsorted(theirs, cost[rows[high]] - gap // 2)
            for places in (np.maximum(near - 1, 0), np.minimum(near, len(theirs) - 1)):
                moved = cost[rows[high]] - theirs[places]
                worse = np.maximum(sums[high] - moved, sums[low] + moved)
                ours = int(worse.argmin())
                best = min(best, (int(worse[ours]), low, ours, int(places[ours])))
        reached, low, ours, its = best
        if reached >= sums[high]:
            break
        moved = int(cost[rows[high][ours]] - cost[rows[low][its]])
        rows[high][ours], rows[low][its] = rows[low][its], rows[high][ours]
        for part, change in ((high, -moved), (low, moved)):
            sums[part] += change
            rows[part] = rows[part][np.argsort(cost[rows[part]], kind="stable")]
    return [sorted(row.tolist()) for row in rows]


def _rearrange_micro_batches(
    batch: Any,
    max_token_len: Any,
    dp_group: Any = None,
    num_batches_divided_by: Optional[int] = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: Optional[int] = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
) -> tuple[list[Any], list[list[int]]]:
    """`micro_batch_indices` of a TensorDict: the micro-batches and their indices, with verl's arguments."""
    verl = sys.modules[_MODULE]
    torch, dist = verl.torch, verl.dist
    tokens = batch["input_ids"]
    lengths = tokens.offsets().diff() if tokens.is_nested else batch["attention_mask"].sum(dim=1)

    def agree(values: list[int]) -> list[int]:
        greatest = torch.tensor(values, dtype=torch.long, device=verl.get_device_name())
        dist.all_reduce(greatest, op=dist.ReduceOp.MAX, group=dp_group)
        return greatest.cpu().tolist()

    together = dist.is_initialized() and same_micro_num_in_dp and dp_group is not None
    indices = micro_batch_indices(
        lengths.long().cpu().tolist(),
        max_token_len,
        num_batches_divided_by=num_batches_divided_by,
        min_num_micro_batch=min_num_micro_batch,
        use_dynamic_bsz_balance=use_dynamic_bsz_balance,
        force_group_size=force_group_size,
        agree=agree if together else None,
    )
    return [verl.tu.index_select_tensor_dict(batch, part) for part in indices], indices


_REPLACEMENTS = {
    "get_seqlen_balanced_partitions": _get_seqlen_balanced_partitions,
    "rearrange_micro_batches": _rearrange_micro_batches,
}


def _at_least_one(name: str, value: Any) -> int:
    if value is None:
        return 1
    try:
        number = int(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError):
        number = 0
    if number < 1 or number != value:
        raise InvalidInput(f"{name}: must be an integer >= 1, got {value!r}")
    return number


def _groups(lengths: Sequence[int], cap: int, size: int) -> tuple[Any, Any]:
    """Tokens and costs of each group of `size` consecutive samples: two int64 arrays."""
    samples = lengths_of(lengths).astype(np.int64, copy=False)
    if samples.size % size:
        raise InvalidInput(f"force_group_size: must divide the {samples.size} samples, got {size}")
    if samples.min() < 0:
        raise InvalidInput(f"lengths: element {int(samples.argmin())} (from 0) must be >= 0, got {samples.min()}")
    samples = np.maximum(samples, 1)
    items = samples.reshape(-1, size).sum(axis=1)
    longest = int(items.argmax())
    if items[longest] > cap:
        what = "element" if size == 1 else f"group of {size}"
        raise InvalidInput(
            f"lengths: {what} {longest} (from 0) has {items[longest]} tokens, more than max_token_len of {cap}")
    return items, balance.sample_costs(samples).reshape(-1, size).sum(axis=1)
