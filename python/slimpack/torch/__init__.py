# SPDX-License-Identifier: Apache-2.0
"""Plans in PyTorch: steps of documents, tensors of their MicroPacks, and their execution. Needs torch 2.15.

    sampler = slimpack.torch.BatchSampler(lengths, dp_rank=0, model="llama3-8b", batch_tokens="1M")
    for numbers in sampler:
        packs = slimpack.torch.collate(sampler.plan, documents, dp_rank=0)
"""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import check_torch

check_torch()

if TYPE_CHECKING:
    from ._data import Pack as Pack, collate as collate, documents_of as documents_of
    from ._memory import StepMemory as StepMemory, measure_memory as measure_memory
    from ._rows import rows as rows
    from ._run import PlanStages as PlanStages, StepFailed as StepFailed, run_plan as run_plan
    from ._sampler import BatchSampler as BatchSampler
    from ._schedule import PlanSchedule as PlanSchedule, write_schedule_csv as write_schedule_csv
    from ._stage import PlanStage as PlanStage

# Modules are imported when a name of theirs is asked for.
_PLACES = {
    "BatchSampler": "_sampler",
    "Pack": "_data",
    "PlanSchedule": "_schedule",
    "PlanStage": "_stage",
    "PlanStages": "_run",
    "StepFailed": "_run",
    "StepMemory": "_memory",
    "collate": "_data",
    "documents_of": "_data",
    "measure_memory": "_memory",
    "rows": "_rows",
    "run_plan": "_run",
    "write_schedule_csv": "_schedule",
}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    value.__module__ = __name__  # shown, and pickled, by the name that users import
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
