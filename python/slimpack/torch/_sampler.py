# SPDX-License-Identifier: Apache-2.0
"""Batches of document numbers, planned ahead."""
from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from functools import cached_property
from queue import SimpleQueue
from typing import Any, Iterable, Iterator, Optional

import numpy as np
from torch.utils.data import Sampler

from .. import InvalidInput, Plan, plan
from .._arguments import DEFAULTS, Lengths, lengths_of, words
from ._data import documents_of
from ._rows import check_dp_rank

# What batches depend on besides lengths; the other options may change between runs.
_DRAWN_BY = ("context", "overlong", "batch_tokens", "batch_samples", "seed", "shuffle")


class BatchSampler(Sampler[list[int]]):
    """The documents of each step that one data-parallel rank needs, with the step's plan: a `batch_sampler` for
    `torch.utils.data.DataLoader`.

        for numbers in sampler:                             # list[int], ascending; sampler.plan is the step's plan
        for plan, documents in sampler.batches(loader):     # with a DataLoader(..., collate_fn=list)

    A thread plans steps ahead while the model runs. All ranks that give the same arguments but `dp_rank` have the
    same plans, of the same `hash`. Steps go on without end: after the last document the next shuffle begins. An
    iteration begins with the step after the last one that was given. What planning raises, the iteration raises at
    that step.

    Args:
        lengths: as `slimpack.plan` takes them; the numbers that are given are places in them.
        dp_rank: this data-parallel rank.
        steps: how many steps an epoch has: an iteration ends with its epoch; None: never.
        ahead: how many steps are planned ahead, at least 1.
        threads: how many threads plan one step; None: all cores. Never changes a plan.
        options: as `slimpack.plan` takes them, but for `step` and `progress`.

    Attributes:
        plan: the plan of the step given last; None before the first one.

    Raises InvalidInput where an argument breaks a rule.
    """

    def __init__(self, lengths: Lengths, *, dp_rank: int = 0, steps: Optional[int] = None, ahead: int = 2,
                 threads: Optional[int] = 1, **options: Any) -> None:
        for name in options:
            if name == "step" or name not in {*DEFAULTS, "planner", "runtime"}:
                raise TypeError(f"unexpected keyword argument {name!r}")
        for name, value, least in (("steps", 1 if steps is None else steps, 1), ("ahead", ahead, 1)):
            if value < least:
                raise InvalidInput(f"{name}: must be at least {least}, got {value}")
        try:
            dp = int(options.get("dp", 1))
        except ValueError:
            raise InvalidInput(f"dp: must be a whole number, got {options['dp']!r}") from None
        check_dp_rank(dp_rank, dp)
        found = lengths_of(lengths)
        self._lengths = found if isinstance(found, str) else np.array(found)  # the thread reads it: a copy
        self._options = dict(options, threads=threads)
        self._dp_rank = dp_rank
        self._steps = steps
        self._step = 0
        self._given: Optional[deque[Plan]] = None
        self._planner = _Planner(self._lengths, self._options, ahead)
        self.plan: Optional[Plan] = None

    def __iter__(self) -> Iterator[list[int]]:
        end = None if self._steps is None else (self.epoch + 1) * self._steps
        while end is None or self._step < end:
            self.plan = self._planner.take(self._step)
            self._step += 1
            if self._given is not None:
                self._given.append(self.plan)
            yield documents_of(self.plan, self._dp_rank)

    def __len__(self) -> int:
        """Steps of an epoch. Raises TypeError where there is no end."""
        if self._steps is None:
            raise TypeError("BatchSampler has no length: steps is None")
        return self._steps

    @property
    def epoch(self) -> int:
        """Which epoch the next step is in, from 0; 0 where epochs have no end."""
        return 0 if self._steps is None else self._step // self._steps

    def set_epoch(self, epoch: int) -> None:
        """Goes to the first step of an epoch, unless the next step is in it: an epoch that was begun goes on.

        Raises InvalidInput where epochs have no end, or for a number below 0.
        """
        if self._steps is None:
            raise InvalidInput(f"epoch: must not be set where steps is None, got {epoch}")
        if epoch < 0:
            raise InvalidInput(f"epoch: must be at least 0, got {epoch}")
        if epoch != self.epoch:
            self._step = epoch * self._steps

    def batches(self, loader: Iterable[Any]) -> Iterator[tuple[Plan, dict[int, Any]]]:
        """Each step's plan with what a loader made of its documents, by number, as `collate` takes them.

        Args:
            loader: gives a list of as many items as this sampler, its `batch_sampler`, gave numbers:
                `DataLoader(..., collate_fn=list)`. It may ask for batches ahead.

        Raises InvalidInput where a batch has another number of items.
        """
        self._given = deque()
        try:
            for items in loader:
                made = self._given.popleft()
                numbers = documents_of(made, self._dp_rank)
                if len(items) != len(numbers):
                    raise InvalidInput(f"loader: step {made.step} has {len(numbers)} documents, got {len(items)}; "
                                       "a DataLoader needs collate_fn=list")
                yield made, dict(zip(numbers, items))
        finally:
            self._given = None

    def state_dict(self, after: Optional[Plan] = None) -> dict[str, Any]:
        """Where the run stands, and what its batches depend on; of numbers and strings alone.

        Args:
            after: the plan after whose step a run continues; None: that of the step given last. A DataLoader with
                workers asks ahead of what it returns, so give the plan that was trained on. (torchdata's
                StatefulDataLoader keeps the state of each batch itself.)
        """
        return {"step": self._step if after is None else after.step + 1, "request": dict(self._request)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state_dict` was. What batches do not depend on, such as `dp`, `model` or `effort`, may
        differ. Raises InvalidInput for the state of other lengths or other batches."""
        step, request = state.get("step"), state.get("request")
        if not isinstance(step, int) or step < 0 or not isinstance(request, dict):
            raise InvalidInput(f"state: must have a step from 0 and a request, got {state!r}")
        for name, value in self._request.items():
            if request.get(name) != value:
                raise InvalidInput(f"state: is of a run with other batches: {name} was {request.get(name)}, "
                                   f"here it is {value}")
        self._step = step

    def close(self) -> None:
        """Ends planning ahead and waits for the thread. A later iteration begins it again."""
        self._planner.stop()

    def __enter__(self) -> BatchSampler:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    @cached_property
    def _request(self) -> dict[str, str]:
        given = {**DEFAULTS, **words({name: self._options[name] for name in _DRAWN_BY if name in self._options})}
        return {"lengths": _digest(self._lengths), **{name: given[name] for name in _DRAWN_BY}}


class _Planner:
    """Plans consecutive steps in a thread. The thread knows no planner, so that an abandoned one ends it."""

    def __init__(self, lengths: Any, options: dict[str, Any], ahead: int) -> None:
        self._lengths, self._options, self._ahead = lengths, options, ahead
        self._end: Optional[weakref.finalize[Any, _Planner]] = None

    def take(self, step: int) -> Plan:
        """The plan of a step, then those after it are planned."""
        if self._end is None or not self._futures or self._futures[0][0] != step:
            self.stop()
            self._start()
        while len(self._futures) <= self._ahead:
            number, future = step + len(self._futures), Future[Plan]()
            self._futures.append((number, future))
            self._steps.put((number, future))
        return self._futures.popleft()[1].result()

    def stop(self) -> None:
        """Ends what is being planned, and waits for the thread."""
        if self._end is not None:
            self._end()
            self._end = None

    def _start(self) -> None:
        self._futures: deque[tuple[int, Future[Plan]]] = deque()
        self._steps: SimpleQueue[Optional[tuple[int, Future[Plan]]]] = SimpleQueue()
        stopped = threading.Event()
        # A daemon, so that the interpreter does not wait for it before the finalizer ends it.
        thread = threading.Thread(
            target=_work, args=(self._steps, stopped, self._lengths, self._options), name="slimpack-plan", daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _stop, self._steps, stopped, thread)


class _Stopped(Exception):
    """The sampler was closed while a plan was waited for."""


def _work(steps: SimpleQueue[Optional[tuple[int, Future[Plan]]]], stopped: threading.Event, lengths: Any,
          options: dict[str, Any]) -> None:
    def check(*ignored: int) -> None:
        if stopped.is_set():
            raise _Stopped("the sampler was closed")

    while (asked := steps.get()) is not None:
        step, future = asked
        try:
            check()
            future.set_result(plan(lengths, step=step, progress=check, **options))
        except BaseException as error:
            future.set_exception(error)


def _stop(steps: SimpleQueue[Any], stopped: threading.Event, thread: threading.Thread) -> None:
    stopped.set()
    steps.put(None)
    if thread is not threading.current_thread():  # which may be collecting the sampler
        thread.join()


def _digest(lengths: Any) -> str:
    if not isinstance(lengths, str):
        return hashlib.sha256(lengths.astype("<i8").tobytes()).hexdigest()
    try:
        with open(lengths, "rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            return digest.hexdigest()
    except OSError as error:
        raise InvalidInput(f"lengths: {os.fspath(lengths)!r} cannot be read: {error.strerror}") from error
