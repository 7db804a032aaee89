# SPDX-License-Identifier: Apache-2.0
"""PyTorch: batches of planned steps, and plans executed on torch.distributed."""
from __future__ import annotations

from ._run import PlanStages, StepFailed, run_plan
from ._schedule import PlanSchedule
from ._stage import PlanStage

__all__ = ["PlanSchedule", "PlanStage", "PlanStages", "StepFailed", "run_plan"]
