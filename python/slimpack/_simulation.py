# SPDX-License-Identifier: Apache-2.0
"""Simulated plans, and the rules that plans keep."""
from __future__ import annotations

import base64
import html
import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _core
from ._arguments import Path
from ._plan import Plan

if TYPE_CHECKING:
    import numpy as np

    FloatArray = np.ndarray[Any, np.dtype[np.float64]]
    IntArray = np.ndarray[Any, np.dtype[np.int64]]


class Simulation:
    """A simulated plan: its times, memory, idle time by cause, and pictures. Made by `slimpack.simulate`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._core = _core.simulate(plan._core)

    @property
    def iteration_s(self) -> float:
        """Seconds of the step."""
        return self._core.iteration_s

    @cached_property
    def busy_s(self) -> FloatArray:
        """Seconds that each device computes: float64 [dp, pp]."""
        return self._core.busy_s()

    @cached_property
    def peak_bytes(self) -> IntArray:
        """The most bytes that each device holds: int64 [dp, pp]."""
        return self._core.peak_bytes()

    @cached_property
    def static_bytes(self) -> IntArray:
        """Those of weights, gradients and optimizer, which each device always holds: int64 [dp, pp]."""
        return self._core.static_bytes()

    @cached_property
    def _summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads(self._core.summary_json())
        return summary

    def to_dict(self) -> dict[str, Any]:
        """What `slimpack simulate --json` prints (docs/reports.md), with all of the critical path."""
        made: dict[str, Any] = json.loads(json.dumps(self._summary))
        return made

    @property
    def gaps(self) -> dict[str, float]:
        """Idle seconds of all devices together, by cause (docs/reports.md)."""
        return dict(self._summary["gaps"])

    @property
    def critical_path(self) -> list[dict[str, Any]]:
        """The chain of work that the step's time is made of, in order: `name`, `work`, `start_s`,
        `end_s`, and the `reason` why it began no earlier. Steps without time are left out."""
        return [dict(step) for step in self._summary["critical_path"]["path"]]

    def trace(self, path: Optional[Path] = None) -> str:
        """Chrome trace events (Perfetto opens them) as text; written to `path` where one is given."""
        return _written(self._core.trace(), path)

    def svg(self, path: Optional[Path] = None) -> str:
        """The timeline as a picture of its own; written to `path` where one is given."""
        return _written(self._core.svg(), path)

    def html(self, path: Optional[Path] = None) -> str:
        """A page with the timeline to zoom into; written to `path` where one is given."""
        return _written(self._core.html(), path)

    def __repr__(self) -> str:
        return f"<slimpack.Simulation of a plan by {self.plan.planner}: {self.iteration_s:.6f} s>"

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        text = (f"{self.plan.planner}: {self.iteration_s:.3f} s a step, efficiency {self.plan.efficiency:.1%}, "
                f"hash {self.plan.hash}")
        # As an image, so that its styles are its own and not the page's.
        picture = base64.b64encode(self.svg().encode()).decode()
        return f'<p>{html.escape(text)}</p><img style="width:100%" src="data:image/svg+xml;base64,{picture}">'


def simulate(plan: Plan) -> Simulation:
    """Simulates a plan at the prices that it was planned with.

    Raises InvalidInput where the plan breaks a rule other than that of memory.
    """
    return Simulation(plan)


def validate(plan: Union[Plan, dict[str, Any], Path]) -> list[str]:
    """Checks a plan, what `to_dict` gave, or a plan.json against every rule, by formulas of its own.

    Returns a sentence for each violation; nothing where the plan is valid. Raises InvalidInput for
    what is not a plan at all.
    """
    if isinstance(plan, dict):
        plan = Plan.from_dict(plan)
    elif not isinstance(plan, Plan):
        plan = Plan.load(plan)
    return _core.violations(plan._core)


def _written(text: str, path: Optional[Path]) -> str:
    if path is not None:
        _core.write_text(os.fspath(path), text)
    return text
