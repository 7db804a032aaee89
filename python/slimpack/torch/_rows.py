# SPDX-License-Identifier: Apache-2.0
"""Which tokens a rank computes of a MicroPack. NumPy alone."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import numpy as np

from .. import InvalidInput, MicroPack, Plan
from ._layout import Share

if TYPE_CHECKING:
    IntArray = np.ndarray[Any, np.dtype[np.int64]]


def rows(plan: Plan, pack: Union[int, MicroPack], rank: int = 0) -> IntArray:
    """The tokens of a MicroPack that one rank of its group computes, in the order of `Plan.cu_seqlens`.

    Args:
        pack: a MicroPack of the plan or its number.
        rank: a place in the pack's group, from 0. Of each sample it owns blocks of the plan's
            `memory["share_tokens"]` tokens: with g ranks block k belongs to the rank i with
            k mod 2g = i or 2g - 1 - i, ranks counted round from the sample's first one
            (`plan.sample_first`).

    Returns:
        int64 [tokens, 2]: sample, and position in the sample. Slice by slice, positions rising.

    Raises InvalidInput where there is no such pack or rank.
    """
    pack = micropack(plan, pack)
    ranks = len(plan.groups[pack.group])
    if not 0 <= rank < ranks:
        raise InvalidInput(f"rank: must be from 0 to {ranks - 1}, a place in the pack's group, got {rank}")
    samples, begins, ends = pack.slices.T
    counts = ends - begins
    positions = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
    made: IntArray = np.stack([np.repeat(samples, counts), positions], axis=1)
    if ranks > 1:
        turns = Share(rank, ranks, plan.memory["share_tokens"]).owner(positions)
        made = made[(turns + plan.sample_first[made[:, 0]]) % ranks == rank]
    return made


def micropack(plan: Plan, pack: Union[int, MicroPack]) -> MicroPack:
    """The MicroPack of a number. Raises InvalidInput where there is none."""
    number = pack.id if isinstance(pack, MicroPack) else pack
    if not 0 <= number < len(plan.micropacks):
        raise InvalidInput(f"pack: must be the number of a MicroPack, got {number}")
    return plan.micropacks[number]


def check_dp_rank(dp_rank: int, dp: int) -> None:
    """Raises InvalidInput unless `dp_rank` is one of `dp` data-parallel ranks."""
    if not 0 <= dp_rank < dp:
        raise InvalidInput(f"dp_rank: must be from 0 to {dp - 1}, a data-parallel rank of the plan, got {dp_rank}")
