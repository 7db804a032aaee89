# SPDX-License-Identifier: Apache-2.0
"""slimpack's balance in verl's place.

    import slimpack.verl
    slimpack.verl.patch()

after which verl balances ranks and micro-batches by slimpack, wherever it does. verl itself is imported by `patch`
alone.
"""
from __future__ import annotations

import importlib
import sys
from typing import Any, Optional

import numpy as np

from ._errors import InvalidInput
from .balance import get_seqlen_balanced_partitions as _partitions
from .balance import verl_cost, within_cap

__all__ = ["get_seqlen_balanced_partitions", "patch", "rearrange_micro_batches", "restore"]

_MODULE = "verl.utils.seqlen_balancing"
_PATCHED = ("get_seqlen_balanced_partitions", "rearrange_micro_batches")
_before: dict[tuple[str, str], Any] = {}


def patch() -> None:
    """Puts this module's functions into verl's `seqlen_balancing` and into each module that has imported them from
    there, until `restore`. A second call finds what has been imported since.

    Raises ImportError where verl is not there.
    """
    source = importlib.import_module(_MODULE)
    ours = {name: globals()[name] for name in _PATCHED}
    theirs = {name: _before.get((_MODULE, name), getattr(source, name)) for name in _PATCHED}
    for place, module in list(sys.modules.items()):
        if place != _MODULE and not (place.startswith("verl.") and module is not None):
            continue
        for name in _PATCHED:
            if vars(module).get(name) is theirs[name]:
                _before[place, name] = theirs[name]
                setattr(module, name, ours[name])


def restore() -> None:
    """Undoes `patch`."""
    for (place, name), function in _before.items():
        if place in sys.modules:
            setattr(sys.modules[place], name, function)
    _before.clear()


def get_seqlen_balanced_partitions(seqlen_list: list[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
    """As verl's: indices of each part, ascending, no part empty; sums of `seqlen_list` nearly equal.

    Raises AssertionError as verl's does, with slimpack's sentence.
    """
    try:
        return _partitions(seqlen_list, k_partitions, equal_size)
    except InvalidInput as error:
        raise AssertionError(str(error)) from None


def rearrange_micro_batches(
    batch: Any,
    max_token_len: int,
    dp_group: Any = None,
    num_batches_divided_by: Optional[int] = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: Optional[int] = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
) -> tuple[list[Any], list[list[int]]]:
    """As verl's, with fewer micro-batches where their cap allows it: none exceeds `max_token_len` tokens, and their
    number is never more than best fit decreasing needs, `min_num_micro_batch` and the multiples asked for aside.

    Args:
        batch: a TensorDict with "input_ids", and "attention_mask" where these are not nested.
        max_token_len: the most tokens of a micro-batch.
        dp_group: ranks that all call this and, with `same_micro_num_in_dp`, get as many micro-batches.
        num_batches_divided_by: their number is a multiple of it.
        min_num_micro_batch: the fewest micro-batches.
        use_dynamic_bsz_balance: small ones at both ends.
        force_group_size: so many consecutive samples stay together.

    Returns the micro-batches, and the samples of each. Raises ValueError as verl's does where samples are too long or
    too few, on all ranks of `dp_group` alike.
    """
    import torch.distributed as dist
    from verl.utils.tensordict_utils import index_select_tensor_dict

    ids = batch["input_ids"]
    of_samples = (ids.offsets().diff() if ids.is_nested else batch["attention_mask"].sum(dim=1)).cpu().numpy()
    if len(of_samples) % force_group_size:
        raise InvalidInput(f"force_group_size: must divide the {len(of_samples)} samples, got {force_group_size}")
    of_samples = of_samples.astype(np.int64).reshape(-1, force_group_size)
    lengths, costs = of_samples.sum(1), verl_cost(of_samples).sum(1)
    together = dist.is_initialized() and same_micro_num_in_dp and dp_group is not None
    multiple, count = num_batches_divided_by or 1, min_num_micro_batch or 1
    while True:
        try:
            parts, problem = within_cap(lengths, costs, int(max_token_len), count, multiple), None
        except InvalidInput as error:
            parts, problem = [], error
        if not together:
            break
        # Whoever needs most decides; a rank that cannot tells the others before it raises.
        most, failed = _most([len(parts), problem is not None], dp_group)
        if failed or problem is not None:
            problem = problem or InvalidInput("max_token_len: another rank of dp_group cannot keep it")
            break
        if most == count:
            break
        count = most
    if problem is not None:
        raise problem
    if use_dynamic_bsz_balance:
        parts.sort(key=lambda part: (costs[part].sum(), part[0]), reverse=True)
        parts = parts[::2][::-1] + parts[1::2]
    samples = np.arange(of_samples.size).reshape(-1, force_group_size)
    chosen = [samples[part].ravel().tolist() for part in parts]
    return [index_select_tensor_dict(batch, one) for one in chosen], chosen


def _most(values: list[Any], group: Any) -> list[int]:
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    told = torch.tensor([int(value) for value in values], device=device)
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=group)
    return [int(value) for value in told.tolist()]
