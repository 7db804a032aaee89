# SPDX-License-Identifier: Apache-2.0
"""slimpack in verl's place, in verl's own package."""
from __future__ import annotations

import re
from typing import Any

import frameworks
import numpy as np
import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")

import slimpack.verl  # noqa: E402


@pytest.fixture(scope="module")
def theirs() -> Any:
    """verl's own module."""
    frameworks.package("verl", hollow=["verl.utils"], absent=["verl.protocol"])
    try:
        import verl.utils.seqlen_balancing as module
    except ImportError as error:
        pytest.skip(f"verl's balancing cannot be imported: {error}")
    return module


@pytest.fixture()
def patched(theirs: Any) -> Any:
    slimpack.verl.patch()
    yield theirs
    slimpack.verl.restore()


def lengths_of(seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(8, 60))
    return np.clip(rng.lognormal(rng.uniform(3, 6), rng.uniform(0.2, 1.6), count), 1, 2000).astype(int).tolist()


def batch_of(lengths: list[int], nested: bool = False) -> Any:
    from tensordict import TensorDict

    rows = [torch.full((length,), i) for i, length in enumerate(lengths)]
    if nested:
        return TensorDict({"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, [len(rows)])
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(ids.shape[1])[None] < torch.tensor(lengths)[:, None]
    return TensorDict({"input_ids": ids, "attention_mask": mask.long()}, [len(rows)])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("equal", [False, True])
def test_partitions_are_theirs(theirs: Any, seed: int, equal: bool) -> None:
    lengths = lengths_of(seed)
    parts = 1 + seed % 7
    lengths = lengths[: len(lengths) // parts * parts]
    assert slimpack.verl.get_seqlen_balanced_partitions(lengths, parts, equal) == theirs.get_seqlen_balanced_partitions(
        lengths, parts, equal)


def test_refusals_are_of_their_kind(theirs: Any) -> None:
    for arguments in (([3, 4], 3, False), ([3, 4, 5], 2, True)):
        for function in (theirs.get_seqlen_balanced_partitions, slimpack.verl.get_seqlen_balanced_partitions):
            with pytest.raises(AssertionError):
                function(*arguments)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_micro_batches_keep_the_cap_with_no_more_than_theirs(theirs: Any, seed: int, nested: bool) -> None:
    rng = np.random.default_rng(seed)
    together = int(rng.choice([1, 1, 2]))
    lengths = lengths_of(seed)
    lengths = lengths[: len(lengths) // together * together]
    cap = int(np.reshape(lengths, (-1, together)).sum(1).max() * rng.uniform(1, 4)) + max(lengths)
    options: dict[str, Any] = dict(max_token_len=cap, force_group_size=together,
                                   min_num_micro_batch=rng.choice([None, 3]),
                                   num_batches_divided_by=rng.choice([None, 2]),
                                   use_dynamic_bsz_balance=bool(rng.random() < 0.7))
    batch = batch_of(lengths, nested)
    made, chosen = slimpack.verl.rearrange_micro_batches(batch, **options)
    assert sorted(i for part in chosen for i in part) == list(range(len(lengths)))
    for one, part in zip(made, chosen):
        assert sum(lengths[i] for i in part) <= cap
        starts = one["input_ids"].values()[one["input_ids"].offsets()[:-1]] if nested else one["input_ids"][:, 0]
        assert starts.tolist() == part
        assert all(part[at : at + together] == list(range(part[at], part[at] + together))
                   for at in range(0, len(part), together))
    assert len(chosen) >= (options["min_num_micro_batch"] or 1)
    assert len(chosen) % (options["num_batches_divided_by"] or 1) == 0
    try:
        _, reference = theirs.rearrange_micro_batches(batch, **options)
    except ValueError:
        return  # theirs finds none
    assert len(chosen) <= len(reference)
    whole = theirs.restore_dynamic_batch(torch.arange(len(lengths))[[i for part in chosen for i in part]], chosen)
    assert whole.tolist() == list(range(len(lengths)))


def test_a_cap_that_their_division_cannot_keep(theirs: Any) -> None:
    """Best fit needs two micro-batches, a balanced division by cost four, of which there are too few groups."""
    lengths = [60, 60, 40, 40]
    made, chosen = slimpack.verl.rearrange_micro_batches(batch_of(lengths), 100)
    assert len(chosen) == 2 and all(sum(lengths[i] for i in part) == 100 for part in chosen)


def test_patch_reaches_who_has_imported_and_is_undone(theirs: Any) -> None:
    import sys
    import types

    before = theirs.rearrange_micro_batches
    user: Any = types.ModuleType("verl.a_user")
    user.rearrange_micro_batches = before
    sys.modules["verl.a_user"] = user
    try:
        slimpack.verl.patch()
        slimpack.verl.patch()
        assert user.rearrange_micro_batches is theirs.rearrange_micro_batches is slimpack.verl.rearrange_micro_batches
        slimpack.verl.restore()
        slimpack.verl.restore()
        assert user.rearrange_micro_batches is theirs.rearrange_micro_batches is before
    finally:
        del sys.modules["verl.a_user"]


def test_ranks_agree_on_their_number(theirs: Any) -> None:
    import torch_plans

    told = torch_plans.spawn(2, _on_ranks, [2000, 2000])
    assert told[0] == told[1] and told[0] >= 2
    told = torch_plans.spawn(2, _on_ranks, [max(lengths_of(0)) - 1, 2000])
    assert ["more than max_token_len" in str(told[0]), "another rank of dp_group" in str(told[1])] == [True, True]


def _on_ranks(rank: int, caps: list[int]) -> int:
    import torch.distributed as dist

    frameworks.package("verl", hollow=["verl.utils"], absent=["verl.protocol"])
    lengths = lengths_of(rank)
    group = dist.new_group([0, 1])
    made, _ = slimpack.verl.rearrange_micro_batches(batch_of(lengths), caps[rank], dp_group=group)
    return len(made)


def test_the_page_runs(patched: Any) -> None:
    text = (ROOT / "docs/verl.md").read_text(encoding="utf-8")
    scope: dict[str, Any] = {"lengths": lengths_of(3), "batch": batch_of(lengths_of(3))}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(block, scope)
