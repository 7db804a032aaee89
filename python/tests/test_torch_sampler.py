# SPDX-License-Identifier: Apache-2.0
"""Batches beside slimpack.plan, resumed runs, and the thread that plans ahead."""
import gc
import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import drawn_lengths

import slimpack

slimpack_torch = pytest.importorskip("slimpack.torch", exc_type=ImportError)
import torch  # noqa: E402

LENGTHS = drawn_lengths(3, 50, 3000)
REQUEST = dict(model="tiny", dp=2, batch_tokens=20000, seed=5, effort="fast")


def expected_step(step, dp_rank=0, **request):
    """The plan of a step, and the documents of a rank's samples by plan.json."""
    plan = slimpack.plan(LENGTHS, **{**REQUEST, **request}, step=step)
    made = plan.to_dict()
    own = [sample for sample, group in enumerate(made["sample_group"]) if dp_rank in made["groups"][group]]
    return plan.hash, sorted({made["origin"][sample][1] for sample in own})


def sampler_of(**options):
    return slimpack_torch.BatchSampler(LENGTHS, **{**REQUEST, **options})


def planning_threads():
    return [thread for thread in threading.enumerate() if thread.name == "slimpack-plan"]


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
    return condition()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert wait_until(lambda: not planning_threads())


def given(sampler, count):
    return [(sampler.plan.hash, numbers) for _, numbers in zip(range(count), sampler)]


@pytest.mark.parametrize("dp_rank", [0, 1])
def test_steps_are_those_of_plan(dp_rank):
    expected = [expected_step(step, dp_rank) for step in range(5)]
    for ahead in (1, 3):
        with sampler_of(dp_rank=dp_rank, ahead=ahead) as sampler:
            assert sampler.plan is None
            assert given(sampler, 5) == expected
    # All ranks together have the documents of the step.
    other = [expected_step(step, 1 - dp_rank) for step in range(5)]
    for (hash_, numbers), (same, others) in zip(expected, other):
        assert hash_ == same and numbers and others


def test_epochs_end_and_the_next_one_goes_on():
    with sampler_of(steps=2) as sampler:
        assert len(sampler) == 2
        for epoch in range(2):
            assert sampler.epoch == epoch
            sampler.set_epoch(epoch)
            assert [(sampler.plan.hash, numbers) for numbers in sampler] == [
                expected_step(step) for step in (2 * epoch, 2 * epoch + 1)]
        sampler.set_epoch(1)
        next(iter(sampler))
        sampler.set_epoch(1)  # goes on
        assert [(sampler.plan.hash, numbers) for numbers in sampler] == [expected_step(3)]
    endless = sampler_of()
    with pytest.raises(TypeError, match="no length"):
        len(endless)
    with pytest.raises(slimpack.InvalidInput, match="epoch: must not be set where steps is None, got 1"):
        endless.set_epoch(1)


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_resumed_run_goes_on_with_the_same_steps(stop):
    with sampler_of() as sampler:
        whole = given(sampler, 5)
    with sampler_of() as first:
        assert given(first, stop) == whole[:stop]
        state = json.loads(json.dumps(first.state_dict()))
    # What batches do not depend on may change.
    for options in (dict(), dict(dp_rank=1), dict(ahead=4, threads=2)):
        with sampler_of(**options) as second:
            given(second, 1)
            second.load_state_dict(state)
            assert [hash_ for hash_, _ in given(second, 5 - stop)] == [hash_ for hash_, _ in whole[stop:]]
    with sampler_of(dp=1, model="llama-1b") as wider:
        wider.load_state_dict(state)
        assert given(wider, 1) == [expected_step(stop, dp=1, model="llama-1b")]


def test_states_of_other_runs_are_refused(tmp_path):
    sampler = sampler_of()
    state = sampler.state_dict()
    assert state["step"] == 0
    for options, name in ((dict(seed=6), "seed was 6, here it is 5"),
                          (dict(batch_tokens=None), "batch_tokens was .*, here it is 20000"),
                          (dict(batch_samples=3), "batch_samples was 3"), (dict(shuffle=False), "shuffle was False"),
                          (dict(context=4096), "context was 4096"), (dict(overlong="split"), "overlong was split")):
        with pytest.raises(slimpack.InvalidInput, match=f"^state: is of a run with other batches: {name}"):
            sampler.load_state_dict(sampler_of(**options).state_dict())
    other = slimpack_torch.BatchSampler(LENGTHS[:-1], **REQUEST)
    with pytest.raises(slimpack.InvalidInput, match="other batches: lengths was [0-9a-f]{64}, here"):
        sampler.load_state_dict(other.state_dict())
    for wrong in ({}, {"step": -1, "request": {}}, {"step": "1", "request": {}}, {"step": 1}):
        with pytest.raises(slimpack.InvalidInput, match="^state: must have a step from 0 and a request"):
            sampler.load_state_dict(wrong)
    path = tmp_path / "some.npy"
    np.save(path, LENGTHS)
    from_path = slimpack_torch.BatchSampler(path, **REQUEST)
    from_path.load_state_dict(slimpack_torch.BatchSampler(str(path), **REQUEST).state_dict())
    with pytest.raises(slimpack.InvalidInput, match="lengths was"):
        from_path.load_state_dict(state)
    with pytest.raises(slimpack.InvalidInput, match="lengths: '/nowhere' cannot be read: No such file"):
        slimpack_torch.BatchSampler("/nowhere", **REQUEST).state_dict()


class Documents(torch.utils.data.Dataset):
    """Document i has its length of tokens i."""

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, number):
        return torch.full((int(LENGTHS[number]),), number)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_gives_the_documents(workers):
    with sampler_of(steps=4, dp_rank=1) as sampler:
        loader = torch.utils.data.DataLoader(Documents(), batch_sampler=sampler, collate_fn=list, num_workers=workers)
        assert len(loader) == 4
        seen, states = [], []
        for plan, documents in sampler.batches(loader):
            seen.append((plan.hash, list(documents)))
            states.append(sampler.state_dict(after=plan)["step"])
            assert all(torch.equal(document, Documents()[number]) for number, document in documents.items())
            packs = slimpack_torch.collate(plan, documents, 1)
            assert sum(pack.input_ids.numel() for pack in packs.values()) == sum(
                LENGTHS[number] for number in documents)
        assert seen == [expected_step(step, 1) for step in range(4)]
        assert states == [1, 2, 3, 4]


def test_a_rank_may_have_nothing_to_do():
    for dp_rank in (0, 1):
        with slimpack_torch.BatchSampler([5], model="tiny", dp=2, merge="off", dp_rank=dp_rank, steps=1) as sampler:
            loader = torch.utils.data.DataLoader([list(range(5))], batch_sampler=sampler, collate_fn=list)
            (plan, documents), = sampler.batches(loader)
            packs = slimpack_torch.collate(plan, documents, dp_rank)
            busy = plan.groups[plan.micropacks[0].group] == [dp_rank]
            assert len(documents) == len(packs) == busy


def test_a_loader_that_gives_something_else_is_refused():
    with sampler_of() as sampler:
        loader = torch.utils.data.DataLoader(Documents(), batch_sampler=sampler, collate_fn=lambda items: items[1:])
        with pytest.raises(slimpack.InvalidInput, match=r"loader: step 0 has \d+ documents, got \d+; a DataLoader"):
            next(sampler.batches(loader))


class StatefulLoader:
    """What torchdata's StatefulDataLoader does with a sampler: asks two batches ahead, keeps the state that each
    was followed by, and gives that of the batch it returned last."""

    def __init__(self, sampler):
        self.sampler = sampler

    def load_state_dict(self, state):
        self.sampler.load_state_dict(state)

    def state_dict(self):
        return self.state

    def __iter__(self):
        batches = iter(self.sampler)
        asked = []
        while True:
            while len(asked) < 3:
                numbers = next(batches)
                asked.append((numbers, self.sampler.state_dict()))
            numbers, self.state = asked.pop(0)
            yield numbers


def stateful_loaders():
    found = [StatefulLoader]
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return found
    return [*found, *(lambda sampler, workers=workers: StatefulDataLoader(
        range(len(LENGTHS)), batch_sampler=sampler, collate_fn=list, num_workers=workers) for workers in (0, 2))]


@pytest.mark.parametrize("make", stateful_loaders())
def test_stateful_loaders_resume(make):
    expected = [expected_step(step)[1] for step in range(5)]
    with sampler_of() as first, sampler_of() as second:
        loader = make(first)
        assert [numbers for _, numbers in zip(range(2), loader)] == expected[:2]
        state = loader.state_dict()
        resumed = make(second)
        resumed.load_state_dict(state)
        assert [numbers for _, numbers in zip(range(3), resumed)] == expected[2:]


def test_what_planning_raises_is_raised_at_its_step():
    lengths = [1, 2, 1, 1]  # a step of one token has no target
    sampler = slimpack_torch.BatchSampler(lengths, model="tiny", batch_tokens=3, shuffle=False, effort="fast")
    batches = iter(sampler)
    assert next(batches) == [0, 1]
    with pytest.raises(slimpack.InvalidInput, match="no target"):
        next(batches)
    with pytest.raises(slimpack.InvalidInput, match="no target"):
        next(iter(sampler))
    sampler.close()
    with pytest.raises(slimpack.Infeasible):
        next(iter(slimpack_torch.BatchSampler([100], model="llama3-405b")))


def test_an_abandoned_sampler_ends_its_thread():
    sampler = sampler_of(ahead=3)
    batches = iter(sampler)
    next(batches)
    assert planning_threads()
    del sampler, batches
    assert wait_until(lambda: not planning_threads())


# Takes minutes to plan, and ends at once where nobody wants it.
SLOW = """slimpack.torch.BatchSampler(
    np.random.default_rng(0).lognormal(8, 1.5, 6000).astype(int).clip(1, 30000), model="llama-70b", dp=8, pp=8, tp=2,
    effort="thorough", context=32768)"""


def test_closing_ends_a_plan_that_is_being_made():
    sampler = eval(SLOW, dict(slimpack=slimpack, np=np))
    raised = []

    def wait():
        try:
            next(iter(sampler))
        except Exception as error:
            raised.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert wait_until(planning_threads)
    time.sleep(0.3)
    assert planning_threads() and not raised
    begin = time.monotonic()
    sampler.close()
    waiting.join()
    assert time.monotonic() - begin < 5
    assert raised == ["the sampler was closed"]


def test_a_program_that_ends_waits_for_no_plan():
    program = ("import threading, time, numpy as np, slimpack.torch\n"
               f"sampler = {SLOW}\n"
               "threading.Thread(target=lambda: next(iter(sampler)), daemon=True).start()\n"
               "time.sleep(0.5)\n"
               "assert any(thread.name == 'slimpack-plan' for thread in threading.enumerate())\n")
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin < 20


def test_arguments_that_break_a_rule_are_refused():
    for options, sentence in ((dict(dp_rank=2), "dp_rank: must be from 0 to 1, a data-parallel rank of the plan, got 2"),
                              (dict(dp_rank=-1), "dp_rank: must be from 0 to 1"),
                              (dict(steps=0), "steps: must be at least 1, got 0"),
                              (dict(ahead=0), "ahead: must be at least 1, got 0"),
                              (dict(dp="some"), "dp: must be a whole number, got 'some'")):
        with pytest.raises(slimpack.InvalidInput, match=f"^{sentence}"):
            sampler_of(**options)
    for name in ("step", "progress", "modell"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            sampler_of(**{name: 1})
    with pytest.raises(slimpack.InvalidInput, match="lengths: must be integers"):
        slimpack_torch.BatchSampler([1.5], **REQUEST)


def test_lengths_are_copied():
    lengths = LENGTHS.copy()
    with slimpack_torch.BatchSampler(lengths, **REQUEST) as sampler:
        lengths[:] = 1
        assert given(sampler, 1) == [expected_step(0)]
