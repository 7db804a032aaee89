# SPDX-License-Identifier: Apache-2.0
"""Sequences to packs for NeMo-RL. NeMo-RL is imported by `sequence_packer` alone."""
from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from ._arguments import lengths_of
from ._errors import InvalidInput
from .balance import micro_batches

__all__ = ["pack", "sequence_packer"]


def pack(lengths: Sequence[int], bin_capacity: int, *, min_bin_count: int = 1, bin_count_multiple: int = 1) -> list[list[int]]:
    """Packs of nearly equal cost, none above the capacity, the one with most tokens first: memory is then reserved
    once, for the largest.

    Args: as `slimpack.balance.micro_batches` under NeMo-RL's names. Returns the indices of each pack, ascending, ties
    in the order of their first index. Raises InvalidInput.
    """
    items = lengths_of(lengths)
    packs = micro_batches(items, bin_capacity, min_num_micro_batch=min_bin_count, num_batches_divided_by=bin_count_multiple)
    return sorted(packs, key=lambda one: (-int(np.asarray(items)[one].sum()), one[0]))


def sequence_packer() -> Any:
    """A subclass of NeMo-RL's `SequencePacker` that packs by `pack`: a class to construct as theirs are.

    Raises ImportError where NeMo-RL is not there; the packer raises ValueError for a sequence above its capacity.
    """
    from nemo_rl.data.packing.algorithms import SequencePacker

    class Packer(SequencePacker):  # type: ignore[misc]
        """Balanced packs, largest first."""

        def _pack_implementation(self, sequence_lengths: list[int]) -> list[list[int]]:
            if not sequence_lengths:
                return []
            try:
                return pack(sequence_lengths, self.bin_capacity, min_bin_count=getattr(self, "min_bin_count", None) or 1,
                            bin_count_multiple=getattr(self, "bin_count_multiple", None) or 1)
            except InvalidInput as error:
                raise ValueError(str(error)) from None

    return Packer
