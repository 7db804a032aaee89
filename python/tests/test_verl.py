# SPDX-License-Identifier: Apache-2.0
"""slimpack.verl against verl's own module, and against the rules of its arguments."""
import random
import sys
import threading
import types

import pytest
from frameworks import load_verl

import slimpack
import slimpack.verl
from slimpack.verl import micro_batch_indices


def drawn(seed, count, longest=4000):
    source = random.Random(seed)
    return [min(longest, int(source.lognormvariate(6, 1.2)) + 1) for _ in range(count)]


def check(parts, lengths, cap):
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert all(part for part in parts)
    assert all(sum(lengths[i] for i in part) <= cap for part in parts)


@pytest.mark.parametrize("seed", range(12))
def test_every_argument_is_kept(seed):
    source = random.Random(seed)
    size = source.choice([1, 2, 4])
    lengths = drawn(seed, 48 * size)
    cap = max(sum(lengths[i : i + size]) for i in range(0, len(lengths), size)) + source.randrange(3000)
    least, multiple = source.choice([None, 7, 20]), source.choice([None, 1, 3, 4])
    parts = micro_batch_indices(
        lengths, cap, num_batches_divided_by=multiple, min_num_micro_batch=least, force_group_size=size)
    check(parts, lengths, cap)
    assert len(parts) >= (least or 1) and len(parts) % (multiple or 1) == 0
    for part in parts:
        assert all(part[j : j + size] == list(range(part[j], part[j] + size)) and part[j] % size == 0
                   for j in range(0, len(part), size))


def test_the_costliest_are_in_the_middle():
    lengths = drawn(3, 60)
    parts = micro_batch_indices(lengths, 5000)
    costs = [sum(24576 * lengths[i] + lengths[i] ** 2 for i in part) for part in parts]
    top = costs.index(max(costs))
    assert costs[: top + 1] == sorted(costs[: top + 1]) and costs[top:] == sorted(costs[top:], reverse=True)
    assert sorted(map(sorted, parts)) == sorted(map(sorted, micro_batch_indices(
        lengths, 5000, use_dynamic_bsz_balance=False)))


@pytest.mark.parametrize("seed", range(6))
def test_ranks_agree_on_their_number_and_on_errors(seed):
    """Threads are the ranks; every rank calls the collective exactly once."""
    ranks, meet, said = 3, threading.Barrier(3, timeout=20), [None] * 3
    given = [drawn(10 * seed + rank, 20 + 15 * rank) for rank in range(ranks)]
    if seed == 5:
        given[1][3] = 6001
    results = [None] * ranks

    def run(rank):
        def agree(values):
            said[rank] = values
            meet.wait()
            return [max(column) for column in zip(*said)]
        try:
            results[rank] = micro_batch_indices(given[rank], 6000, num_batches_divided_by=2, agree=agree)
        except slimpack.InvalidInput as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    if seed == 5:
        assert all(isinstance(result, slimpack.InvalidInput) for result in results)
        assert "element 3" in str(results[1]) and "another rank" in str(results[0])
        return
    assert len({len(result) for result in results}) == 1 and len(results[0]) % 2 == 0
    for lengths, parts in zip(given, results):
        check(parts, lengths, 6000)


@pytest.mark.parametrize("bad, words", [
    (dict(lengths=[1, 9], max_token_len=8), "element 1 .* 9 tokens"),
    (dict(lengths=[1, -1], max_token_len=8), "element 1 .* >= 0"),
    (dict(lengths=[4, 4, 4], max_token_len=8, force_group_size=2), "force_group_size: must divide the 3"),
    (dict(lengths=[4, 5], max_token_len=8, force_group_size=2), "group of 2 0"),
    (dict(lengths=[4, 4], max_token_len=8, min_num_micro_batch=3), "2 samples"),
    (dict(lengths=[4, 4], max_token_len=8, num_batches_divided_by=3), "cannot be 3"),
    (dict(lengths=[4, 4], max_token_len=0), "max_token_len"),
    (dict(lengths=[4, 4], max_token_len=8, min_num_micro_batch=1.5), "min_num_micro_batch"),
])
def test_bad_input_is_refused(bad, words):
    with pytest.raises(slimpack.InvalidInput, match=words):
        micro_batch_indices(**bad)


def test_without_verl_patch_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "verl.utils.seqlen_balancing", None)
    with pytest.raises(ImportError, match="slimpack.verl.patch: verl.utils.seqlen_balancing"):
        slimpack.verl.patch()


def test_the_patch_reaches_importers_and_can_be_undone(monkeypatch):
    verl = load_verl()
    own = verl.get_seqlen_balanced_partitions
    trainer = types.ModuleType("verl.trainer.of_a_test")
    trainer.get_seqlen_balanced_partitions = own
    trainer.rearrange_micro_batches = verl.rearrange_micro_batches
    monkeypatch.setitem(sys.modules, trainer.__name__, trainer)
    with slimpack.verl.patch():
        with slimpack.verl.patch():
            assert trainer.get_seqlen_balanced_partitions is not own
        assert trainer.get_seqlen_balanced_partitions is verl.get_seqlen_balanced_partitions is not own
        assert trainer.rearrange_micro_batches is verl.rearrange_micro_batches
        assert verl.rearrange_micro_batches.__module__ == "slimpack.verl"
    assert trainer.get_seqlen_balanced_partitions is verl.get_seqlen_balanced_partitions is own
    slimpack.verl.unpatch()


@pytest.mark.parametrize("equal_size", [False, True])
def test_partitions_are_those_of_verl_or_more_even(equal_size):
    verl = load_verl()
    import torch

    for seed in range(6):
        lengths = torch.tensor(drawn(seed, 64))
        for costs in (verl.calculate_workload(lengths), verl.calculate_workload(lengths.float())):
            own = verl.get_seqlen_balanced_partitions(costs, k_partitions=8, equal_size=equal_size)
            with slimpack.verl.patch():
                made = verl.get_seqlen_balanced_partitions(costs, k_partitions=8, equal_size=equal_size)
                assert verl.get_seqlen_balanced_partitions(costs.tolist(), 8, equal_size) == made
            if not equal_size:
                assert made == own
                continue
            check(made, costs.tolist(), max(sum(costs[part]) for part in own))
            assert {len(part) for part in made} == {8} and all(part == sorted(part) for part in made)
            assert max(sum(costs[part]) for part in made) < 1.02 * max(sum(costs) / 8, max(costs))
    with slimpack.verl.patch():  # verl's own function still answers what ours refuses
        assert verl.get_seqlen_balanced_partitions([0, 1, 2], k_partitions=3, equal_size=True) == [[2], [1], [0]]
        groups = verl.get_group_balanced_partitions([5, 5, 9, 9, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 3, 3], 2)
        assert sorted(i for group in groups for i in group) == list(range(8))


def batch_of(lengths, nested):
    import torch
    from tensordict import TensorDict

    if nested:
        rows = [torch.full((length,), i) for i, length in enumerate(lengths)]
        return TensorDict({"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, [len(lengths)])
    width = max(lengths)
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    return TensorDict({"input_ids": torch.arange(len(lengths))[:, None].expand(-1, width).contiguous(),
                       "attention_mask": mask.long()}, [len(lengths)])


@pytest.mark.parametrize("nested", [False, True])
def test_micro_batches_in_place_of_verls(nested):
    verl = load_verl()
    for seed in range(4):
        lengths = drawn(seed, 40, 900)
        batch, options = batch_of(lengths, nested), dict(num_batches_divided_by=2, force_group_size=2)
        cap = 2048 if seed else 1800
        own, _ = verl.rearrange_micro_batches(batch, cap, **options)
        with slimpack.verl.patch():
            batches, indices = verl.rearrange_micro_batches(batch, cap, **options)
        check(indices, lengths, cap)
        assert len(batches) == len(indices) <= len(own)
        for one, part in zip(batches, indices):
            rows = one["input_ids"].unbind() if nested else one["input_ids"]
            assert [int(row[0]) for row in rows] == part
        if not nested:
            import torch

            values = torch.cat([one["input_ids"][:, 0] for one in batches])
            assert verl.restore_dynamic_batch(values, indices).tolist() == list(range(len(lengths)))


def test_the_collective_of_torch(tmp_path, monkeypatch):
    verl = load_verl()
    monkeypatch.setattr(verl, "get_device_name", lambda: "cpu")  # verl says cuda where there is no device at all
    dist = verl.dist
    if dist.is_initialized():
        pytest.skip("another test holds torch's process group")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        lengths = drawn(1, 40, 900)
        with slimpack.verl.patch():
            _, indices = verl.rearrange_micro_batches(
                batch_of(lengths, False), 2000, dp_group=dist.group.WORLD, min_num_micro_batch=16)
        check(indices, lengths, 2000)
        assert len(indices) == 16
    finally:
        dist.destroy_process_group()
