# SPDX-License-Identifier: Apache-2.0
"""slimpack.slime against what slime documents of its schedule."""
import random
from types import SimpleNamespace

import pytest

import slimpack
from slimpack.slime import build_dp_schedule


def config(dp, cp=1, vpp=1, group=1):
    return {"dp_size": dp, "cp_size": cp, "vpp_size": vpp, "microbatch_group_size_per_vp_stage": group}


def dynamic(cap, balance_data=True):
    return SimpleNamespace(use_dynamic_batch_size=True, max_tokens_per_gpu=cap, balance_data=balance_data)


@pytest.mark.parametrize("seed", range(12))
def test_the_rules_that_slime_documents(seed):
    source = random.Random(seed)
    rollouts = [i for i in range(32) for _ in range(source.choice([1, 1, 2, 5]))]
    lengths = [min(6000, int(source.lognormvariate(6, 1.3)) + 1) for _ in rollouts]
    dp, cp, vpp = source.choice([1, 2, 4]), source.choice([1, 2]), source.choice([1, 2])
    batch = source.choice([16, 32])
    partitions, places, counts, kept = build_dp_schedule(
        dynamic(2500, seed % 2 == 0), config(dp, cp, vpp, 2), lengths, global_batch_size=batch,
        rollout_indices=rollouts)
    assert len(counts) == len(kept) == 32 // batch and len(partitions) == len(places) == dp
    assert all(count % 2 == 0 for count in counts) or vpp == 1
    steps = [{i for i, rollout in enumerate(rollouts) if step * batch <= rollout < step * batch + count}
             for step, count in enumerate(kept)]
    assert sorted(i for part in partitions for i in part) == sorted(set().union(*steps))
    for part, own in zip(partitions, places):
        assert [i for one in own for i in one] == list(range(len(part))) and all(own)
        assert len(own) == sum(counts)
        for one in own:
            assert len(one) == 1 or sum(lengths[part[i]] for i in one) <= 2500 * cp
        begin = 0
        for step, count in enumerate(counts):
            assert {part[i] for one in own[begin : begin + count] for i in one} <= steps[step]
            begin += count


def test_micro_batches_of_a_fixed_size():
    args = SimpleNamespace(use_dynamic_batch_size=False, micro_batch_size=2, balance_data=False)
    made = build_dp_schedule(args, config(2), [5] * 8, global_batch_size=8, rollout_indices=list(range(8)))
    assert made == ([[0, 1, 4, 5], [2, 3, 6, 7]], [[[0, 1], [2, 3]]] * 2, [2], [8])


def test_rollouts_are_left_out_where_ranks_cannot_share():
    made = build_dp_schedule(dynamic(10), config(2), [10] * 5, global_batch_size=5, rollout_indices=list(range(5)))
    assert made[3] == [4] and sorted(made[0][0] + made[0][1]) == [0, 1, 2, 3]


@pytest.mark.parametrize("change, words", [
    (dict(global_batch_size=9), "global_batch_size: must be from 1 to the 4"),
    (dict(rollout_indices=[0]), "rollout_indices: must be 4"),
    (dict(total_lengths=[1, 0, 1, 1]), "total_lengths: element 1"),
    (dict(train_parallel_config=config(8)), "4 samples of a step cannot be 8"),
])
def test_bad_input_is_refused(change, words):
    request = dict(args=dynamic(10), train_parallel_config=config(2), total_lengths=[1] * 4, global_batch_size=4,
                   rollout_indices=[0, 1, 2, 3])
    with pytest.raises(slimpack.InvalidInput, match=words):
        build_dp_schedule(**{**request, **change})
