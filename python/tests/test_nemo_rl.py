# SPDX-License-Identifier: Apache-2.0
"""The packer for NeMo-RL, whose package on PyPI is empty: its documented base class stands in."""
from __future__ import annotations

import re
import sys
import types
from abc import ABC, abstractmethod
from typing import Any, Optional

import numpy as np
import pytest
from conftest import ROOT

import slimpack
from slimpack import nemo_rl


class SequencePacker(ABC):
    """What NeMo-RL's documents say of it."""

    def __init__(self, bin_capacity: int, collect_metrics: bool = False, min_bin_count: Optional[int] = None,
                 bin_count_multiple: Optional[int] = None) -> None:
        self.bin_capacity, self.min_bin_count, self.bin_count_multiple = bin_capacity, min_bin_count, bin_count_multiple

    @abstractmethod
    def _pack_implementation(self, sequence_lengths: list[int]) -> list[list[int]]: ...

    def pack(self, sequence_lengths: list[int]) -> list[list[int]]:
        return self._pack_implementation(sequence_lengths)


@pytest.fixture()
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("nemo_rl", "nemo_rl.data", "nemo_rl.data.packing", "nemo_rl.data.packing.algorithms"):
        made: Any = types.ModuleType(place)
        made.__path__, made.SequencePacker = [], SequencePacker
        monkeypatch.setitem(sys.modules, place, made)


@pytest.mark.parametrize("seed", range(30))
def test_packs_keep_the_capacity_largest_first(stand_in: None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(6, 1.2, int(rng.integers(8, 80))), 1, 4096).astype(int).tolist()
    packer = nemo_rl.sequence_packer()(4096, min_bin_count=2, bin_count_multiple=2)
    packs = packer.pack(lengths)
    sums = [sum(lengths[i] for i in one) for one in packs]
    assert sorted(i for one in packs for i in one) == list(range(len(lengths)))
    assert sums == sorted(sums, reverse=True) and max(sums) <= 4096 and len(packs) % 2 == 0


def test_refusals(stand_in: None) -> None:
    packer = nemo_rl.sequence_packer()(100)
    assert packer.pack([]) == []
    with pytest.raises(ValueError, match=re.escape("element 1 (from 0) has 101 tokens")):
        packer.pack([3, 101])
    with pytest.raises(slimpack.InvalidInput):
        nemo_rl.pack([0], 100)


def test_the_page_runs(stand_in: None) -> None:
    scope: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/nemo_rl.md").read_text(encoding="utf-8"), re.M | re.S):
        exec(block, scope)
