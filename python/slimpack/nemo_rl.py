# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL's sequence packing by slimpack: as few bins as best fit decreasing needs, even by cost, largest first.

`pack` needs no NeMo-RL. `SequencePacker` is made where it is first read, a subclass of NeMo-RL's.
"""
from __future__ import annotations

import importlib
from typing import Any, Optional, Sequence

import numpy as np

from . import balance
from ._errors import InvalidInput

__all__ = ["SequencePacker", "pack"]


def pack(
    sequence_lengths: Sequence[int],
    bin_capacity: int,
    *,
    min_bin_count: Optional[int] = None,
    bin_count_multiple: Optional[int] = None,
) -> list[list[int]]:
    """Divides sequences into bins of nearly equal cost (24576 L + L^2) that keep the capacity.

    The bin of most tokens is first: the memory it reserves serves all that follow.

    Args:
        sequence_lengths: tokens of each sequence, from 1 to `bin_capacity`.
        bin_capacity: the most tokens of a bin.
        min_bin_count: the fewest bins; None or 0: any number.
        bin_count_multiple: the number of bins is a multiple of it.

    Returns:
        The indices of each bin, ascending, none empty. Raises InvalidInput.
    """
    bins = balance.micro_batches(
        sequence_lengths, bin_capacity, min_num_micro_batch=min_bin_count or 1,
        num_batches_divided_by=1 if bin_count_multiple is None else bin_count_multiple)
    lengths = np.asarray(sequence_lengths)
    return sorted(bins, key=lambda one: (-int(lengths[one].sum()), one[0]))


def _packer() -> type:
    base = importlib.import_module("nemo_rl.data.packing.algorithms").SequencePacker

    class SequencePacker(base):  # type: ignore[misc, valid-type]
        """NeMo-RL's SequencePacker by `pack`, with its own counts of bins, which it then need not adjust."""

        def _pack_implementation(self, sequence_lengths: Sequence[int]) -> list[list[int]]:
            most = getattr(self, "max_sequences_per_bin", None)
            if most not in (None, -1):
                raise InvalidInput(f"max_sequences_per_bin: must be left out, got {most!r}")
            return pack(sequence_lengths, self.bin_capacity, min_bin_count=self.min_bin_count,
                        bin_count_multiple=self.bin_count_multiple)

    SequencePacker.__module__ = __name__
    SequencePacker.__qualname__ = SequencePacker.__name__
    return SequencePacker


def __getattr__(name: str) -> Any:
    if name != "SequencePacker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        made = globals()[name] = _packer()
    except ImportError as error:
        raise ImportError(f"slimpack.nemo_rl.SequencePacker: NeMo-RL cannot be imported: {error}") from error
    return made
