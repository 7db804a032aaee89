# SPDX-License-Identifier: Apache-2.0
"""slimpack.balance against a brute force and laws on drawn lengths."""
import itertools

import numpy as np
import pytest

import slimpack
from slimpack.balance import get_seqlen_balanced_partitions, micro_batches


def check_partition(parts, count):
    assert sorted(i for part in parts for i in part) == list(range(count))
    assert all(part == sorted(part) and part for part in parts)
    assert all(type(i) is int for part in parts for i in part)


def best_spread(costs, parts, equal):
    """The least largest sum of all divisions."""
    best = sum(costs)
    for places in itertools.product(range(parts), repeat=len(costs)):
        if places[0] != 0 or len(set(places)) < parts:
            continue
        if equal and len({places.count(part) for part in range(parts)}) > 1:
            continue
        sums = [sum(cost for cost, place in zip(costs, places) if place == part) for part in range(parts)]
        best = min(best, max(sums))
    return best


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_partitions_are_near_the_best_of_all(seed, equal):
    draw = np.random.default_rng(seed)
    parts = int(draw.integers(2, 4))
    costs = draw.integers(1, 100, 2 * parts if equal else 8).tolist()
    made = get_seqlen_balanced_partitions(costs, parts, equal)
    check_partition(made, len(costs))
    largest = max(sum(costs[i] for i in part) for part in made)
    # Largest differencing never exceeds the best by a third of it where parts are few.
    assert best_spread(costs, parts, equal) <= largest <= best_spread(costs, parts, equal) * 4 / 3 + 1e-9


@pytest.mark.parametrize("seed", range(30))
def test_partitions_keep_their_laws(seed):
    draw = np.random.default_rng(100 + seed)
    parts = int(draw.integers(1, 17))
    count = parts * int(draw.integers(1, 20))
    costs = draw.lognormal(7, 1.5, count).astype(int) + 1
    equal = get_seqlen_balanced_partitions(costs, parts, True)
    check_partition(equal, count)
    assert {len(part) for part in equal} == {count // parts}
    free = get_seqlen_balanced_partitions(costs.tolist(), parts, equal_size=False)
    check_partition(free, count)
    sums = [int(costs[part].sum()) for part in free]
    assert max(sums) - min(sums) <= costs.max()
    assert free == get_seqlen_balanced_partitions(costs.astype("u4"), parts, False)


def verls_karmarkar_karp(costs, parts, equal):
    """The rule in plain Python, ties as in verl's."""
    import heapq

    class Set:
        def __init__(self):
            self.sum, self.items = 0, []

        def add(self, i, cost):
            self.items.append((i, cost))
            self.sum += cost

        def merge(self, other):
            for i, cost in other.items:
                self.add(i, cost)

        def __lt__(self, other):
            return (self.sum, len(self.items), self.items) < (other.sum, len(other.items), other.items)

    class State:
        def __init__(self, items):
            self.sets = [Set() for _ in range(parts)]
            for one, (i, cost) in zip(self.sets, items):
                one.add(i, cost)
            self.sets.sort(reverse=True)

        def spread(self):
            return self.sets[0].sum - self.sets[-1].sum

        def merge(self, other):
            for i in range(parts):
                self.sets[i].merge(other.sets[parts - 1 - i])
            self.sets.sort(reverse=True)

        def __lt__(self, other):
            if self.spread() != other.spread():
                return self.spread() > other.spread()
            return other.sets[0] < self.sets[0]

    order = sorted((cost, i) for i, cost in enumerate(costs))
    step = parts if equal else 1
    heap = []
    for at in range(0, len(order), step):
        heapq.heappush(heap, State([(i, cost) for cost, i in order[at:at + step]]))
    while len(heap) > 1:
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        first.merge(second)
        heapq.heappush(heap, first)
    return [sorted(i for i, _ in one.items) for one in heap[0].sets]


@pytest.mark.parametrize("seed", range(20))
def test_partitions_are_those_of_verls_rule(seed):
    draw = np.random.default_rng(200 + seed)
    parts = int(draw.integers(2, 9))
    costs = draw.integers(1, 10**6, parts * int(draw.integers(1, 12))).tolist()
    for equal in (False, True):
        assert get_seqlen_balanced_partitions(costs, parts, equal) == verls_karmarkar_karp(costs, parts, equal)


def test_with_a_model_lengths_cost_their_work():
    lengths = [100_000, 60_000, 60_000, 30_000, 30_000, 30_000]
    by_work = get_seqlen_balanced_partitions(lengths, 2, False, model="llama-7b")
    hidden, ffn = 4096, 11008
    work = [length * (4 * hidden * hidden + 3 * hidden * ffn) + length * length * hidden for length in lengths]
    assert by_work == get_seqlen_balanced_partitions(work, 2, False)


def test_partitions_refuse_what_makes_no_sense():
    for arguments, sentence in [
        (([1, 2], 3, False), "k_partitions: must be at most the 2 items, got 3"),
        (([1, 2, 3], 2, True), "k_partitions: equal parts must divide the 3 items, got 2"),
        (([1, 2], 0, False), "k_partitions: must be an integer >= 1, got 0"),
        (([1, 2], 1.0, False), "k_partitions: must be an integer >= 1, got 1.0"),
        (([1, 0], 1, False), r"seqlen_list: element 1 \(from 0\) must be > 0, got 0"),
        (([1.0, 2.0], 1, False), "seqlen_list: must be integers, got float64"),
    ]:
        with pytest.raises(slimpack.InvalidInput, match=sentence):
            get_seqlen_balanced_partitions(*arguments)
    with pytest.raises(slimpack.InvalidInput, match="nobody"):
        get_seqlen_balanced_partitions([1, 2], 1, False, model="nobody")


def fewest_bins(lengths, cap):
    """The least number of bins, over all divisions."""
    for count in range(1, len(lengths) + 1):
        for places in itertools.product(range(count), repeat=len(lengths)):
            sums = [0] * count
            for length, place in zip(lengths, places):
                sums[place] += length
            if max(sums) <= cap:
                return count
    raise AssertionError


@pytest.mark.parametrize("seed", range(10))
def test_micro_batches_are_nearly_as_few_as_can_be(seed):
    lengths = np.random.default_rng(300 + seed).integers(10, 70, 7)
    made = micro_batches(lengths, 100)
    check_partition(made, len(lengths))
    assert len(made) <= fewest_bins(lengths.tolist(), 100) * 11 // 9 + 1


@pytest.mark.parametrize("seed", range(40))
def test_micro_batches_never_exceed_the_cap(seed):
    draw = np.random.default_rng(400 + seed)
    lengths = np.minimum(draw.lognormal(7, 1.2, int(draw.integers(8, 200))).astype(int) + 1, 16384)
    cap = int(draw.integers(lengths.max(), 4 * lengths.max()))
    multiple, least = int(draw.integers(1, 5)), int(draw.integers(1, 7))
    made = micro_batches(lengths, cap, num_batches_divided_by=multiple, min_num_micro_batch=least,
                         model=[None, "llama3-8b"][seed % 2])
    check_partition(made, len(lengths))
    assert max(lengths[part].sum() for part in made) <= cap
    assert len(made) % multiple == 0 and len(made) >= least


def test_micro_batches_refuse_what_makes_no_sense():
    for arguments, options, sentence in [
        (([5, 200, 7], 100), {}, r"lengths: element 1 \(from 0\) has 200 tokens, more than max_token_len of 100"),
        (([5, 7], 100), dict(min_num_micro_batch=3), "lengths: 2 samples cannot be 3 micro-batches"),
        (([60, 60, 60], 100), dict(num_batches_divided_by=2), "lengths: 3 samples cannot be 4 micro-batches"),
        (([5, 7], 0), {}, "max_token_len: must be an integer >= 1, got 0"),
        (([5, -7], 10), {}, r"lengths: element 1 \(from 0\) must be > 0, got -7"),
        (([], 10), {}, "lengths: holds no length"),
    ]:
        with pytest.raises(slimpack.InvalidInput, match=sentence):
            micro_batches(*arguments, **options)
