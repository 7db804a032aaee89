# SPDX-License-Identifier: Apache-2.0
"""slimpack.nemo_rl by the documented contract of NeMo-RL's SequencePacker; PyPI has its name but not its code."""
import random
import sys

import pytest
from frameworks import nemo_rl_contract

import slimpack
import slimpack.nemo_rl
from slimpack.nemo_rl import pack


@pytest.fixture
def packer(monkeypatch):
    for name, module in nemo_rl_contract().items():
        monkeypatch.setitem(sys.modules, name, module)
    yield slimpack.nemo_rl.SequencePacker
    slimpack.nemo_rl.__dict__.pop("SequencePacker", None)


@pytest.mark.parametrize("seed", range(8))
def test_bins_keep_the_capacity_and_the_largest_is_first(packer, seed):
    source = random.Random(seed)
    lengths = [min(4096, int(source.lognormvariate(6, 1.3)) + 1) for _ in range(120)]
    least, multiple = source.choice([None, 0, 40]), source.choice([None, 1, 8])
    bins = packer(4096, min_bin_count=least, bin_count_multiple=multiple).pack(lengths)
    assert sorted(i for one in bins for i in one) == list(range(120)) and all(bins)
    tokens = [sum(lengths[i] for i in one) for one in bins]
    assert tokens == sorted(tokens, reverse=True) and tokens[0] <= 4096
    assert len(bins) >= (least or 1) and len(bins) % (multiple or 1) == 0
    assert bins == pack(lengths, 4096, min_bin_count=least, bin_count_multiple=multiple)


def test_bad_input_is_refused(packer):
    with pytest.raises(slimpack.InvalidInput, match="element 1 .* 9 tokens"):
        packer(8).pack([1, 9])
    with pytest.raises(slimpack.InvalidInput, match="2 samples"):
        packer(8, min_bin_count=3).pack([1, 1])
    limited = packer(8)
    limited.max_sequences_per_bin = 4
    with pytest.raises(slimpack.InvalidInput, match="max_sequences_per_bin"):
        limited.pack([1, 1])


def test_without_nemo_rl_the_packer_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "nemo_rl", None)
    with pytest.raises(ImportError, match="slimpack.nemo_rl.SequencePacker"):
        slimpack.nemo_rl.SequencePacker
