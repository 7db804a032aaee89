# SPDX-License-Identifier: Apache-2.0
"""slimpack.megatron against Megatron-Core's own classes, and the shape that its main branch documents."""
import random
import sys
import types

import pytest

import slimpack
import slimpack.megatron
from slimpack.megatron import group_sizes, schedule


def drawn(seed, count, longest):
    source = random.Random(seed)
    return [(7 + i, min(longest, int(source.lognormvariate(6, 1.5)) + 1)) for i in range(count)]


def check(made, samples, ranks, cap, sizes, multiple=1, most=None):
    """What Megatron's forward-backward and its groups ask of a schedule."""
    tokens, seen = dict(samples), []
    assert made and len(made) % multiple == 0
    for batch in made:
        assert len(batch) == ranks and all(batch)
        rank = 0
        while rank < ranks:
            size = sum(own == batch[rank] for own in batch)
            assert size in sizes and rank % size == 0 and batch[rank : rank + size] == [batch[rank]] * size
            assert sum(tokens[i] for i in batch[rank]) <= size * cap
            assert len(batch[rank]) <= (most or len(samples))
            seen += batch[rank]
            rank += size
    assert sorted(seen) == sorted(tokens)


@pytest.mark.parametrize("seed", range(24))
def test_every_rank_is_busy_under_the_cap(seed):
    source = random.Random(seed)
    ranks, multiple = source.choice([1, 2, 4, 6, 8, 12, 16]), source.choice([1, 2, 4])
    most = source.choice([None, 5])
    samples = drawn(seed, source.choice([64, 150]), 2000 * ranks)
    made = schedule(samples, ranks=ranks, max_seqlen_per_rank=2000, multiple=multiple, max_num_seqs=most)
    check(made, samples, ranks, 2000, group_sizes(ranks), multiple, most)


def test_fixed_context_parallel_blocks():
    samples = drawn(1, 80, 4000)
    check(schedule(samples, ranks=8, max_seqlen_per_rank=2000, sizes=[2]), samples, 8, 2000, [2])


def test_few_samples_are_spread_over_all_ranks():
    assert schedule([(3, 10)], ranks=4, max_seqlen_per_rank=100) == [[[3]] * 4]
    check(schedule([(0, 10), (1, 20), (2, 30)], ranks=8, max_seqlen_per_rank=100), [(0, 10), (1, 20), (2, 30)], 8,
          100, [1, 2, 4, 8])
    check(schedule([(i, 9) for i in range(5)], ranks=6, max_seqlen_per_rank=9), [(i, 9) for i in range(5)], 6, 9,
          [1, 2, 6])
    lone = [(i, 9) for i in range(200)]  # 200 packs of one sample each fill 24 micro-batches, not 23
    check(schedule(lone, ranks=3, max_seqlen_per_rank=9, multiple=3, max_num_seqs=1), lone, 3, 9, [1, 3], 3, 1)


@pytest.mark.parametrize("change, words", [
    (dict(sample_id_seqlens=[(4, 900)]), "sample 4 has 900 tokens, more than 4 ranks of 100"),
    (dict(sample_id_seqlens=[(4, 0)]), "sample 4 must have > 0"),
    (dict(multiple=3), "2 samples cannot give"),
    (dict(sizes=[3]), "sizes: "),
    (dict(ranks=0), "ranks: "),
])
def test_bad_input_is_refused(change, words):
    request = dict(sample_id_seqlens=[(0, 10), (1, 20)], ranks=4, max_seqlen_per_rank=100)
    with pytest.raises(slimpack.InvalidInput, match=words):
        schedule(**{**request, **change})


class Group:
    """As much of a process group as Megatron's scheduler asks for."""

    def __init__(self, size):
        self._size = size

    def size(self):
        return self._size


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", [6, 12])
def test_the_scheduler_of_megatron_core(ranks):
    pytest.importorskip("torch")
    own = pytest.importorskip("megatron.core.pipeline_parallel.hybrid_cp_schedule", exc_type=ImportError)
    samples = drawn(ranks, 120, 2000 * ranks)
    made = slimpack.megatron.HybridCPScheduler(max_seq_len_per_rank=2000, dp_cp_group=Group(ranks))
    assert isinstance(made, own.BalancedCPScheduler)
    groups, ids = made.get_groups_and_subsamples(samples, None)
    check(ids, samples, ranks, 2000, group_sizes(ranks))
    for group, batch in zip(groups, ids):
        assert group == [[dict(samples)[i] for i in own_ids] for own_ids in batch]
        for rank, own_ids in enumerate(batch):  # Megatron's forward-backward counts the partners of each sample
            for i in own_ids:
                partners = len([True for ids_of in batch if i in ids_of])
                assert partners >= min(made.gpus_needed(dict(samples)[i]), ranks) and partners in group_sizes(ranks)
    with pytest.raises(ImportError, match="slimpack.megatron.DynamicCPScheduler"):
        slimpack.megatron.DynamicCPScheduler


def test_without_megatron_core_the_scheduler_says_so(monkeypatch):
    slimpack.megatron.__dict__.pop("HybridCPScheduler", None)
    monkeypatch.setitem(sys.modules, "megatron.core.pipeline_parallel.hybrid_cp_schedule", None)
    with pytest.raises(ImportError, match="slimpack.megatron.HybridCPScheduler: Megatron-Core"):
        slimpack.megatron.HybridCPScheduler


def test_the_schedulers_of_the_main_branch(monkeypatch):
    """Its documented constructor and attributes; Megatron-Core's package has these classes only after 0.16."""
    class DpBalancedScheduler:
        def __init__(self, per_rank, cp_size, dp_size, microbatch_group_size_per_vp_stage, max_num_seqs=None):
            self.max_seqlen_per_dp_cp_rank, self.cp_size, self.dp_size = per_rank, cp_size, dp_size
            self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage
            self.max_num_seqs = max_num_seqs

    class DefaultDynamicCPScheduler(DpBalancedScheduler):
        min_cp_size = 2

    stub = types.ModuleType("megatron.core.datasets.data_schedule")
    stub.DpBalancedScheduler, stub.DefaultDynamicCPScheduler = DpBalancedScheduler, DefaultDynamicCPScheduler
    for name in ("megatron", "megatron.core", "megatron.core.datasets"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    samples = drawn(0, 90, 4000)
    for name, sizes in (("PackingScheduler", [2]), ("DynamicCPScheduler", [2, 4, 8])):
        made = getattr(slimpack.megatron, name)(2000, 2, 4, 4, 6)
        slimpack.megatron.__dict__.pop(name)
        check(made.get_groups_and_subsamples(samples), samples, 8, 2000, sizes, 4, 6)


@pytest.mark.filterwarnings("ignore")
def test_packed_seq_params_of_a_plan(small):
    torch = pytest.importorskip("torch")
    params = pytest.importorskip("megatron.core.packed_seq_params", exc_type=ImportError)
    for pack in small.micropacks:
        for rank in range(len(small.groups[pack.group])):
            made = slimpack.megatron.packed_seq_params(small, pack, rank)
            q, k, max_q, max_k = small.cu_seqlens(pack, rank)
            assert isinstance(made, params.PackedSeqParams) and made.qkv_format == "thd"
            assert made.cu_seqlens_q.dtype == torch.int32 and made.cu_seqlens_q.tolist() == q.tolist()
            assert made.cu_seqlens_kv.tolist() == k.tolist() == made.cu_seqlens_kv_padded.tolist()
            assert (made.max_seqlen_q, made.max_seqlen_kv) == (max_q, max_k)
