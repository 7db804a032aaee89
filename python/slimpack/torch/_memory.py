# SPDX-License-Identifier: Apache-2.0
"""What a step holds in memory, beside what its plan counts."""
from __future__ import annotations

import weakref
from typing import Any, Mapping, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .. import InvalidInput, Plan, simulate
from ._data import Pack
from ._run import PlanStages, run_plan


class Allocations(TorchDispatchMode):
    """Within it: bytes of the tensors that operators have made and that are still there, `live`, and the most there
    were, `peak`. What an operator needs for itself is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in self._seen and key not in given:
                    self._seen[key] = weakref.ref(storage, lambda _, key=key, size=size: self._gone(key, size))
                    self.live += size
                    self.peak = max(self.peak, self.live)
        return out

    def _gone(self, key: int, size: int) -> None:
        del self._seen[key]
        self.live -= size


class StepMemory(NamedTuple):
    """Bytes of this device in a step, beside weights, gradients and optimizer, and the `memory` to plan with."""

    measured: int
    predicted: int
    memory: int


def measure_memory(plan: Plan, stages: PlanStages, batch: Mapping[int, Pack], capacity: float,
                   optimizer: Optional[torch.optim.Optimizer] = None) -> StepMemory:
    """Runs a step as `run_plan` does and measures what it holds. All ranks call it.

    Autograd keeps more or less than a plan counts, by model, type and recomputation. Plans like this one, made with
    the `memory` that this gives, the same on all ranks, hold at most `capacity` bytes on each device: what a step
    needs grows as it did here. On CPUs tensors are counted, on GPUs what PyTorch has allocated; what its allocator
    cannot use is not, so leave some of the device for that.

    Args:
        plan, stages, batch: as `run_plan` takes them.
        capacity: bytes of a device that weights, gradients, optimizer and the step may fill together.
        optimizer: after a step of its own, so that its state is there; None: the state that the plan counts.

    Raises InvalidInput where nothing of the capacity is left for a step, and what `run_plan` does.
    """
    step: Any
    if stages.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(stages.device)
        before = torch.cuda.memory_allocated(stages.device)
        run_plan(plan, stages, batch)
        measured = torch.cuda.max_memory_allocated(stages.device) - before
    else:
        with Allocations() as step:
            run_plan(plan, stages, batch)
        measured = step.peak
    simulation, made = simulate(plan), plan.to_dict()
    place = stages.dp_rank, stages.pp_rank
    static = int(simulation.static_bytes[place])
    predicted = int(simulation.peak_bytes[place]) - static
    weights = sum(weight.numel() for weight in stages.parameters())
    held = sum(weight.nbytes for weight in stages.parameters())
    held += sum(stage.gradients.buffer.nbytes for stage in stages)
    if optimizer is None:
        held += static - weights * (made["model"]["bytes_per_element"] + made["memory"]["gradient_bytes"])
    else:
        inner = getattr(optimizer, "optim", optimizer)  # the part of a ZeroRedundancyOptimizer
        held += sum(one.nbytes for one in tree_leaves(list(inner.state.values())) if isinstance(one, Tensor))
    left = torch.tensor([capacity - held, -measured / predicted], dtype=torch.float64, device=stages.device)
    worst = left.clone()
    dist.all_reduce(worst, dist.ReduceOp.MIN)
    if worst[0] <= 0:
        raise InvalidInput(f"capacity: weights, gradients and optimizer of a device leave nothing of {capacity:.0f}")
    memory = made["memory"]["reserved"] + static - left[0].item() / worst[1].item()
    least = torch.tensor(memory, dtype=torch.float64, device=stages.device)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return StepMemory(measured, predicted, int(least.item()))
