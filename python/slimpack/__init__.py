# SPDX-License-Identifier: Apache-2.0
"""Plans training steps on documents of very different lengths, and predicts their time and memory.

    plan = slimpack.plan([120, 4096, 70000, 800], model="llama-7b", dp=2, pp=2)
    plan.iteration_s, plan.efficiency, plan.hash
"""
from ._errors import Infeasible, InvalidInput
from ._plan import MicroPack, Plan
from ._search import compare, plan, planners, presets, tune
from ._simulation import Simulation, simulate, validate
from ._core import version as __version__

# Shown, and pickled, by the name that users import.
for _public in (Infeasible, InvalidInput, MicroPack, Plan, Simulation, compare, plan, planners, presets, simulate, tune,
                validate):
    _public.__module__ = __name__
del _public

__all__ = [
    "Infeasible",
    "InvalidInput",
    "MicroPack",
    "Plan",
    "Simulation",
    "__version__",
    "compare",
    "plan",
    "planners",
    "presets",
    "simulate",
    "tune",
    "validate",
]
