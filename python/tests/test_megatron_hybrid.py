# SPDX-License-Identifier: Apache-2.0
"""Hybrid context parallelism: samples to ranks and groups, beside Megatron-Core's own scheduler."""
from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from frameworks import load_megatron_schedule

import slimpack
from slimpack import megatron


def samples_of(seed: int) -> tuple[list[tuple[int, int]], int, int]:
    """Samples, ranks and the most tokens of one on a rank."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.choice([1, 2, 4, 8, 16]))
    most = int(rng.choice([512, 2048]))
    lengths = np.clip(rng.lognormal(6, rng.uniform(0.2, 1.8), int(rng.integers(1, 200))), 1, most * ranks).astype(int)
    return [(100 + i, int(tokens)) for i, tokens in enumerate(lengths)], ranks, most


def loads(groups: Any, ids: Any) -> list[float]:
    """Work of each rank and group: tokens squared over the ranks that share them."""
    return [[sum(tokens * tokens / sum(number in other for other in ids[g]) for tokens, number in zip(*pair))
             for pair in zip(groups[g], ids[g])] for g in range(len(groups))]


@pytest.mark.parametrize("seed", range(60))
def test_groups_are_those_that_megatron_has(seed: int) -> None:
    samples, ranks, most = samples_of(seed)
    groups, ids = megatron.groups_and_subsamples(samples, ranks, most)
    assert len(groups) == len(ids) == 1 and all(groups[0])
    tokens = dict(samples)
    assert {number for rank in ids[0] for number in rank} == set(tokens)
    members: dict[int, list[int]] = {}
    for rank, (numbers, own) in enumerate(zip(ids[0], groups[0])):
        assert own == [tokens[number] for number in numbers] and len(set(numbers)) == len(numbers)
        for number in numbers:
            members.setdefault(number, []).append(rank)
    for number, found in members.items():
        width = len(found)
        assert width & (width - 1) == 0 and found[0] % width == 0 and found == list(range(found[0], found[0] + width))
        assert tokens[number] <= most * width
    for numbers in ids[0]:  # wide before narrow: ranks of a group come to a sample in one order
        widths = [len(members[number]) for number in numbers]
        assert widths == sorted(widths, reverse=True)


def test_ranks_of_a_group_never_wait_for_each_other_in_a_circle() -> None:
    for seed in range(40):
        samples, ranks, most = samples_of(seed)
        _, ids = megatron.groups_and_subsamples(samples, ranks, most)
        waiting = [list(numbers) for numbers in ids[0]]
        while any(waiting):
            ready = [number for number in {rank[0] for rank in waiting if rank}
                     if all(rank[0] == number for rank in waiting if number in rank)]
            assert ready
            waiting = [rank[1:] if rank and rank[0] in ready else rank for rank in waiting]


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Megatron-Core's own scheduler."""
    load_megatron_schedule()
    return pytest.importorskip("megatron.core.pipeline_parallel.hybrid_cp_schedule", exc_type=ImportError)


class Ranks:
    """What the scheduler asks of a process group."""

    def __init__(self, count: int) -> None:
        self.count = count

    def size(self) -> int:
        return self.count


@pytest.mark.parametrize("seed", range(40))
def test_a_step_is_not_longer_than_with_their_scheduler(theirs: Any, seed: int) -> None:
    samples, ranks, most = samples_of(seed)
    ours = megatron.HybridCPScheduler(most, Ranks(ranks))
    assert isinstance(ours, theirs.BalancedCPScheduler)
    made = ours.get_groups_and_subsamples(samples, None)
    try:
        reference = theirs.BalancedCPScheduler(most, Ranks(ranks)).get_groups_and_subsamples(samples, None)
    except (AssertionError, IndexError, ZeroDivisionError):
        return  # theirs cannot fill all ranks
    took, other = (sum(max(group) for group in loads(*one)) for one in (made, reference))
    assert took <= other * 1.0001


def test_refusals_name_argument_and_value() -> None:
    for call, sentence in (
        (lambda: megatron.groups_and_subsamples([(0, 5)], 3, 10), "ranks: must be a power of two, got 3"),
        (lambda: megatron.groups_and_subsamples([(7, 50)], 2, 10), "sample 7 must have from 1 to 20 tokens, got 50"),
    ):
        with pytest.raises(slimpack.InvalidInput, match=re.escape(sentence)):
            call()
