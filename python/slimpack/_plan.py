# SPDX-License-Identifier: Apache-2.0
"""Plans: what was decided for one training step."""
from __future__ import annotations

import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np

from . import _core
from ._arguments import Path

if TYPE_CHECKING:
    from ._simulation import Simulation

    IntArray = np.ndarray[Any, np.dtype[np.int64]]
    Int32Array = np.ndarray[Any, np.dtype[np.int32]]


class MicroPack(NamedTuple):
    """Slices of different samples that run together through the layers.

    Attributes:
        id: its number, the index in `Plan.micropacks`.
        pass_: "forward", "backward" or "weight".
        group: the index in `Plan.groups` of the data-parallel ranks that compute it together.
        slices: int64 [n, 3]: sample, first token, one past the last token. Read-only.
        recompute: of a backward pack, what is computed again: "none", "light", "layer" or "full".
        weights: of a backward pack, "with" or "apart": where gradients of weights are computed.
    """

    id: int
    pass_: str
    group: int
    slices: IntArray
    recompute: Optional[str]
    weights: Optional[str]


class Plan:
    """One training step, fully decided, with its prediction. Made by `slimpack.plan` or `Plan.load`.

    Plans do not change. They can be pickled, and threads can share them.
    """

    def __init__(self, core: _core.PlanObject) -> None:
        self._core = core

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Reads a plan.json. Raises InvalidInput with file, key and value."""
        return cls(_core.read_plan(os.fspath(path)))

    @classmethod
    def from_dict(cls, plan: dict[str, Any]) -> Plan:
        """A plan of what `to_dict` gave. Raises InvalidInput with key and value."""
        return cls(_core.plan_from_json(json.dumps(plan), "plan", {}))

    def save(self, path: Path) -> None:
        """Writes plan.json, the bytes that the command line writes, whole or not at all."""
        _core.write_plan(self._core, os.fspath(path))

    def to_dict(self) -> dict[str, Any]:
        """The object of plan.json (docs/schemas.md). Each call makes a new one."""
        made: dict[str, Any] = json.loads(_core.plan_to_json(self._core))
        return made

    @property
    def iteration_s(self) -> float:
        """Predicted seconds of the step."""
        return self._core.iteration_s

    @property
    def ideal_s(self) -> float:
        """Seconds of the bare compute of all samples, spread evenly over all devices."""
        return self._core.ideal_s

    @property
    def lower_bound_s(self) -> float:
        """Seconds that no valid plan with these degrees, chunks, head and groups undercuts."""
        return self._core.lower_bound_s

    @property
    def efficiency(self) -> float:
        """`ideal_s / iteration_s`, from 0 to 1; 0 where the plan has no prediction."""
        return self.ideal_s / self.iteration_s if self.iteration_s > 0 else 0.0

    @cached_property
    def hash(self) -> str:
        """32 hexadecimal digits of all that devices execute, as the command line prints them."""
        return self._core.hash

    @property
    def planner(self) -> str:
        """The name of the planner that made it."""
        return self._core.planner

    @property
    def settings(self) -> dict[str, str]:
        """What the planner's search chose; empty for a plan that was loaded."""
        return self._core.settings

    @property
    def step(self) -> int:
        """The number of the step in its run, from 0."""
        return self._core.step

    @property
    def target_tokens(self) -> int:
        """Tokens that have a target: what the loss is a mean over."""
        return self._core.target_tokens

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self._core.dp

    @property
    def pp(self) -> int:
        """Stages of the pipeline."""
        return self._core.pp

    @property
    def tp(self) -> int:
        """Tensor-parallel devices of a stage."""
        return self._core.tp

    @property
    def chunks(self) -> int:
        """Virtual stages of a device."""
        return self._core.chunks

    @cached_property
    def samples(self) -> IntArray:
        """Tokens of each sample: int64 [samples]. Read-only, no copy."""
        return _core.samples(self._core)

    @cached_property
    def origin(self) -> IntArray:
        """Where each sample comes from: int64 [samples, 3]: source, document, its first token there."""
        return _read_only(_core.origin(self._core))

    @cached_property
    def groups(self) -> list[list[int]]:
        """The data-parallel ranks of each group, ascending."""
        return self._core.groups

    @cached_property
    def micropacks(self) -> tuple[MicroPack, ...]:
        """All MicroPacks by number. Their slices are views of one array."""
        heads, ends, rows = _core.packs(self._core)
        _read_only(rows)
        packs, begin = [], 0
        for number, ((pass_, group, recompute, weights), end) in enumerate(zip(heads, ends.tolist())):
            packs.append(MicroPack(number, pass_, group, rows[begin:end], recompute, weights))
            begin = end
        return tuple(packs)

    @cached_property
    def _objects(self) -> tuple[dict[str, Any], dict[str, Any]]:
        made = self.to_dict()
        return made["model"], made["memory"]

    @cached_property
    def sample_first(self) -> IntArray:
        """Place in its group of the rank that owns the first block of each sample: int64 [samples]."""
        made = np.array(_core.sample_first(self._core), np.int64)
        return made if len(made) else np.zeros(len(self.samples), np.int64)

    @property
    def model(self) -> dict[str, Any]:
        """The shape of the model, with the keys of plan.json: "layers", "hidden", "vocab" and so on."""
        return dict(self._objects[0])

    @property
    def memory(self) -> dict[str, Any]:
        """What memory was planned with, with the keys of plan.json: "capacity", "share_tokens" and so on."""
        return dict(self._objects[1])

    def order(self, dp: int, pp: int) -> list[tuple[Any, ...]]:
        """What device (dp, pp) does, in order: ("F" | "B" | "W", micropack, chunk), ("H", micropack),
        ("R", chunk), ("O",), as in plan.json."""
        return _core.order(self._core, dp, pp)

    def cu_seqlens(self, pack: Union[int, MicroPack], rank: int = 0) -> tuple[Int32Array, Int32Array, int, int]:
        """What variable-length attention reads of a MicroPack, as flash-attn takes it.

        A segment is a run of consecutive query rows of one sample: row i of a segment with n rows and
        m keys sees keys 0 .. m - n + i (bottom-right causal).

        Args:
            pack: a MicroPack or its number.
            rank: a place in the pack's group, from 0; it owns a part of each slice.

        Returns:
            cu_seqlens_q, cu_seqlens_k: int32 [segments + 1], from 0; and the most queries and keys of
            a segment.
        """
        return _core.cu_seqlens(self._core, pack.id if isinstance(pack, MicroPack) else pack, rank)

    def __repr__(self) -> str:
        return (f"<slimpack.Plan by {self.planner}: {len(self.samples)} samples, dp {self.dp} x pp {self.pp} x "
                f"tp {self.tp}, {self.iteration_s:.6f} s, efficiency {self.efficiency:.1%}>")

    @cached_property
    def _simulation(self) -> Simulation:
        from ._simulation import simulate

        return simulate(self)

    def _repr_svg_(self) -> str:
        return self._simulation.svg()

    def _repr_html_(self) -> str:
        return self._simulation._repr_html_()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (_core.plan_to_json(self._core), self.settings)


def _restore(text: str, settings: dict[str, str]) -> Plan:
    return Plan(_core.plan_from_json(text, "plan", settings))


def _read_only(array: IntArray) -> IntArray:
    array.flags.writeable = False
    return array
