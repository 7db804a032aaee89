# SPDX-License-Identifier: Apache-2.0
"""A device's units as actions of torch's pipeline runtime."""
from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, Iterator

from torch.distributed.pipelining import schedules as runtime
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from .. import InvalidInput, Plan
from ._layout import Layout
from ._stage import PlanStage


def actions_of(layout: Layout, pp: int) -> list[_Action]:
    """The units of stage `pp` with their transfers.

    A channel carries one direction and group between neighbouring stages. As the plan has it, at most
    `window` receives of a channel are posted ahead and at most `window` sends are unfinished, so a valid
    plan ends here too. H is part of F.
    """
    stages, chunks = layout.plan.pp, layout.plan.chunks
    last, window = stages * chunks - 1, layout.dict["window"]
    units = [_unit(layout, unit, pp, stages) for unit in layout.order(pp) if unit[0] in "FBWR"]

    def receives(kind: Any, stage: int) -> bool:
        return stages > 1 and (kind in _FORWARD and stage > 0 or kind in _BACKWARD and stage < last)

    def sends(kind: Any, stage: int) -> bool:
        return stages > 1 and (kind in _FORWARD and stage < last or kind in _BACKWARD and stage > 0)

    coming: dict[tuple[bool, int], deque[_Action]] = {}
    for stage, kind, number, group in units:
        if receives(kind, stage):
            action = _Action(stage, runtime.RECV_F if kind in _FORWARD else runtime.RECV_B, number)
            coming.setdefault((kind in _FORWARD, group), deque()).append(action)
    actions: list[_Action] = []
    for waiting in coming.values():
        actions += [waiting.popleft() for _ in range(min(window, len(waiting)))]
    unfinished: dict[tuple[bool, int], deque[_Action]] = {}
    for stage, kind, number, group in units:
        actions.append(_Action(stage, kind, number))
        if kind == runtime.REDUCE_GRAD:
            actions.append(_Action(stage, runtime.WAIT_REDUCE_GRAD, None))
        channel = (kind in _FORWARD, group)
        if receives(kind, stage) and coming[channel]:
            actions.append(coming[channel].popleft())
        if sends(kind, stage):
            sent = unfinished.setdefault(channel, deque())
            if len(sent) == window:
                actions.append(sent.popleft())
            forward = kind in _FORWARD
            actions.append(_Action(stage, runtime.SEND_F if forward else runtime.SEND_B, number))
            sent.append(_Action(stage, runtime.WAIT_SEND_F if forward else runtime.WAIT_SEND_B, number))
    return actions + [wait for sent in unfinished.values() for wait in sent]


_FORWARD = (runtime.FORWARD,)
_BACKWARD = (runtime.FULL_BACKWARD, runtime.BACKWARD_INPUT)


def _unit(layout: Layout, unit: tuple[Any, ...], pp: int, stages: int) -> tuple[int, Any, Any, int]:
    """(global stage, kind, number, group)."""
    if unit[0] == "R":
        return unit[1] * stages + pp, runtime.REDUCE_GRAD, None, -1
    _, pack, chunk = unit
    number = layout.number[pack]
    if unit[0] == "B":
        kind = runtime.BACKWARD_INPUT if layout.backward[number].apart else runtime.FULL_BACKWARD
    else:
        kind = runtime.FORWARD if unit[0] == "F" else runtime.BACKWARD_WEIGHT
    return chunk * stages + pp, kind, number, layout.plan.micropacks[pack].group


class PlanSchedule(_PipelineScheduleRuntime):
    """torch's runtime, executing the actions of one plan after another. The loss is computed by the last
    stage's F."""

    def __init__(self, stages: list[PlanStage]) -> None:
        super().__init__(list(stages), n_microbatches=1, loss_fn=_no_loss, scale_grads=False)
        self.plan_stages = stages

    def load(self, layout: Layout, pp: int) -> None:
        """Takes the plan of the next step."""
        actions = actions_of(layout, pp)
        runtime._validate_send_waits({pp: actions})
        self.pipeline_order_with_comms = {self.rank: actions}
        self._n_microbatches = max(len(layout.forward), len(layout.backward), len(layout.weight), 1)

    def run(self) -> None:
        """Executes the step."""
        several = [()] * self._n_microbatches
        self._finalize_gradients = True
        self._step_microbatches(arg_mbs=several, kwarg_mbs=[{} for _ in several], return_outputs=False)

    def _initialize_stages(self, args: Any, kwargs: Any, target: Any = None, loss_kwargs: Any = None) -> None:
        if not self._p2p_initialized:
            self._initialize_pipeline_distributed_state(list(self.plan_stages), True, True)
            self._p2p_initialized = True

    def _maybe_compute_loss(self, *_: Any, **__: Any) -> None:
        return None

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> None:
        return None

    def _update_losses(self, stages: Any, losses: Any) -> None:
        return None


def _no_loss(*_: Any) -> None:
    return None


def last_backward(layout: Layout, pp: int, chunk: int) -> int:
    """The backward pack that a chunk runs last, or -1 where a weight pack comes after it."""
    for kind, pack, *rest in reversed(list(_computing(layout, pp))):
        if rest[0] == chunk and kind in "BW":
            return layout.number[pack] if kind == "B" else -1
    return -1


def _computing(layout: Layout, pp: int) -> Iterator[tuple[Any, ...]]:
    return (unit for unit in layout.order(pp) if unit[0] in "FBW")


def write_schedule_csv(plan: Plan, path: Any, dp_rank: int = 0) -> None:
    """Writes the order of a data-parallel rank's stages as PyTorch's pipeline runtime reads it (`_load_csv`,
    format "compute_only"; torchtitan's `pipeline_parallel_schedule_csv`).

    Line i is rank i of the pipeline, a cell is `<stage><F|B|I|W><micro-batch>`. A micro-batch is a MicroPack of both
    passes, numbered as the rank runs its F.

    Raises InvalidInput where the passes are not packed alike: such plans are `run_plan`'s.
    """
    layout = Layout(plan, dp_rank)
    numbers: dict[tuple[tuple[int, ...], ...], int] = {}
    for kind, pack, chunk in (unit for unit in layout.order(0) if unit[0] == "F"):
        numbers.setdefault(_content(layout, pack), len(numbers))
    lines = []
    for pp in range(plan.pp):
        cells = []
        for kind, pack, chunk in (unit for unit in layout.order(pp) if unit[0] in "FBW"):
            number = numbers.get(_content(layout, pack))
            if number is None:
                raise InvalidInput(f"plan: MicroPack {pack} is not one of the forward pass, which a schedule file needs; "
                                   "execute such plans with run_plan")
            if kind == "B" and layout.backward[layout.number[pack]].apart:
                kind = "I"
            cells.append(f"{chunk * plan.pp + pp}{kind}{number}")
        lines.append(",".join(cells))
    Path(path).write_text("\n".join(lines) + "\n")


def _content(layout: Layout, pack: int) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(map(tuple, layout.plan.micropacks[pack].slices.tolist())))
