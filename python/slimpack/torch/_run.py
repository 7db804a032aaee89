# SPDX-License-Identifier: Apache-2.0
"""Executes plans on torch.distributed."""
from __future__ import annotations

import weakref
from typing import Any, Mapping, Optional, Sequence

import numpy as np
import torch
import torch.distributed as dist

from .. import InvalidInput, Plan
from ._data import Pack
from ._layout import Layout
from ._model import StageModule, parts_of, use_slices
from ._schedule import PlanSchedule, last_backward
from ._stage import PlanStage


class StepFailed(RuntimeError):
    """A step ended early on all ranks: a rank died, plans differ, or a batch does not match its plan."""


class PlanStages(Sequence[PlanStage]):
    """The stages of one device, first chunk first, for plans with the same degrees, chunks and layers.

    Rank `dp * pp_size + pp` of the mesh holds stage pp of data-parallel rank dp. Parameters that this device does
    not hold are left alone, so the model may lie on the meta device for those.
    """

    def __init__(self, model: torch.nn.Module, plan: Plan, mesh: Optional[Any] = None) -> None:
        """Takes its layers out of a Hugging Face causal language model.

        Args:
            model: LlamaForCausalLM or one that is built alike (Qwen3 and so on). Its layers are used as
                they are; attention goes through Hugging Face's registry.
            plan: any plan of the run: it says which layers each stage and chunk holds.
            mesh: a DeviceMesh with dimensions "dp" and "pp"; None: one over all ranks.

        Raises InvalidInput where model, plan and mesh do not match.
        """
        parts = parts_of(model)
        config: Any = model.config
        described = plan.to_dict()["model"]
        for name, value, of in (("layers", described["layers"], len(parts.layers)),
                                ("hidden", described["hidden"], config.hidden_size),
                                ("vocab", described["vocab"], config.vocab_size)):
            if value != of:
                raise InvalidInput(f"plan: its model has {value} for {name}, {type(model).__name__} has {of}")
        if plan.dp * plan.pp != dist.get_world_size() and mesh is None:
            raise InvalidInput(f"plan: dp {plan.dp} x pp {plan.pp} does not match {dist.get_world_size()} ranks")
        device = next(p for p in parts.layers.parameters() if not p.is_meta).device
        if mesh is None:
            mesh = dist.device_mesh.init_device_mesh(device.type, (plan.dp, plan.pp), mesh_dim_names=("dp", "pp"))
        self.mesh: Any = mesh
        self.dp_rank, self.pp_rank = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")
        self.placement = _placement(plan)
        self.tied = parts.head.weight is parts.embedding.weight
        use_slices(model)
        self.stages = []
        count = plan.pp * plan.chunks
        for chunk in range(plan.chunks):
            number = chunk * plan.pp + self.pp_rank
            first, end = self.placement[number]
            module = StageModule(model, first, end, number == 0, number == count - 1)
            self.stages.append(PlanStage(module, number, count, device, mesh))
        self.device = device
        self.schedule = PlanSchedule(self.stages)
        self.groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self.channels: dict[tuple[str, tuple[int, ...]], dist.ProcessGroup] = {}
        self.ends = self._tied_group() if self.tied and plan.pp > 1 else None

    def __getitem__(self, i: Any) -> Any:
        return self.stages[i]

    def __len__(self) -> int:
        return len(self.stages)

    def holds(self, plan: Plan) -> bool:
        """Whether the plan places the layers as these stages hold them."""
        return plan.chunks == len(self) and _placement(plan) == self.placement

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """This device's parameters by the model's own names."""
        return [named for stage in self.stages for named in stage.module.named_parameters()]

    def parameters(self) -> list[torch.nn.Parameter]:
        """This device's parameters."""
        return [parameter for _, parameter in self.named_parameters()]

    def clip_grad_norm_(self, most: float) -> float:
        """Scales the gradients of the whole model to a Euclidean norm of at most `most`; gives the norm before.
        All ranks call it."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for name, parameter in self.named_parameters():
            is_copy = self.ends is not None and name == "lm_head.weight"
            if parameter.grad is not None and not is_copy:
                total += parameter.grad.double().square().sum()
        dist.all_reduce(total, group=self.mesh.get_group("pp"))
        norm = float(total.sqrt())
        if norm > most:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(most / norm)
        return norm

    def _tied_group(self) -> Optional[dist.ProcessGroup]:
        grid = self.mesh.mesh.tolist()
        found = [dist.new_group([row[0], row[-1]]) for row in grid]
        holds = self.pp_rank in (0, len(grid[0]) - 1)
        return found[self.dp_rank] if holds else None

    def _prepare_groups(self, plan: Plan) -> None:
        """Makes what the plan's groups need. All ranks see the same plan, so all call alike."""
        grid = self.mesh.mesh.tolist()
        for group in plan.groups:
            members = tuple(group)
            if len(members) > 1 and members not in self.groups:
                for pp in range(plan.pp):
                    made = dist.new_group([grid[dp][pp] for dp in members])
                    if pp == self.pp_rank and self.dp_rank in members:
                        self.groups[members] = made
                self.groups.setdefault(members, None)  # type: ignore[arg-type]
        if plan.pp > 1 and dist.get_backend(self.mesh.get_group("pp")) == "nccl":
            # NCCL orders all transfers of a communicator; channels must not wait for one another.
            for group in plan.groups:
                for kind in "FB":
                    if (kind, tuple(group)) not in self.channels:
                        for dp, row in enumerate(grid):
                            made = dist.new_group(row)
                            if dp == self.dp_rank:
                                self.channels[kind, tuple(group)] = made

    def load(self, layout: Layout, batch: Mapping[int, Pack], targets: int) -> None:
        """Takes the plan, the tensors and the number of labels of the next step."""
        plan = layout.plan
        self._prepare_groups(plan)
        groups = {i: self.groups[tuple(group)] for i, group in enumerate(plan.groups)
                  if len(group) > 1 and self.dp_rank in group}
        shared = self.mesh.get_group("pp")

        def channel(kind: str, group: int) -> tuple[dist.ProcessGroup, int]:
            return self.channels.get((kind, tuple(plan.groups[group])), shared), 2 * group + (kind == "B")

        before = None
        chunks = [unit[1] for unit in layout.order(self.pp_rank) if unit[0] == "R"]
        for chunk in chunks:
            stage = self.stages[chunk]
            stage.load(layout, batch, targets, channel, groups, last_backward(layout, self.pp_rank, chunk))
            stage.gradients.begin_step(before)
            before = stage.gradients
        self.schedule.load(layout, self.pp_rank)

    def finish(self) -> torch.Tensor:
        """Waits for all sums; gives the loss of the whole step."""
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for stage in self.stages:
            stage.gradients.wait()
            loss += stage.loss
        if self.tied:
            self._sum_tied()
        dist.all_reduce(loss)
        return loss

    def _sum_tied(self) -> None:
        if self.ends is None:
            return
        for stage in self.stages:
            for name, parameter in stage.module.named_parameters():
                if name in ("lm_head.weight", "model.embed_tokens.weight"):
                    dist.all_reduce(parameter.grad, group=self.ends)


def run_plan(plan: Plan, stages: PlanStages, batch: Mapping[int, Pack]) -> float:
    """Executes one step: forward, loss, backward, and the sums over data-parallel ranks.

    Afterwards `grad` of each parameter of `stages` is the gradient of the step's loss, the same on all
    data-parallel ranks: fp32 for parameters of half precision. It stays until the next step.

    Args:
        plan: of `slimpack.plan(..., runtime="torch")`, the same on all ranks.
        stages: what this rank holds.
        batch: of `collate(plan, documents, dp_rank)`: tensors by number of forward MicroPack.

    Returns:
        The step's loss, on every rank: the mean over all targets.

    Raises:
        InvalidInput: the plan cannot be executed as it is, on this rank.
        StepFailed: on all ranks, where plans differ, a batch does not match its plan or a rank died.
    """
    problem, layout, labels = "", None, 0
    try:
        if not stages.holds(plan):
            raise InvalidInput("plan: its stages hold other layers than those of this run")
        layout = Layout(plan, stages.dp_rank)
        labels = _check_batch(layout, batch)
    except InvalidInput as error:
        problem = str(error)
    try:
        targets = _agree(plan, problem, labels if stages.pp_rank == 0 else 0, stages.device)
        assert layout is not None
        stages.load(layout, batch, targets)
        stages.schedule.run()
        return float(stages.finish())
    except (dist.DistError, RuntimeError) as error:
        if isinstance(error, StepFailed):
            raise
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise StepFailed(f"rank {dist.get_rank()}: step {plan.step} ended early: {first[0]}") from error


def _placement(plan: Plan) -> list[tuple[int, int]]:
    placed = sorted(plan.to_dict()["stages"], key=lambda stage: (stage["chunk"], stage["pp"]))
    return [tuple(stage["layers"]) for stage in placed]


def _check_batch(layout: Layout, batch: Mapping[int, Pack]) -> int:
    """How many labels this rank's packs have."""
    labels = 0
    vocabulary = layout.dict["model"]["vocab"]
    for pack in layout.forward:
        if pack.id not in batch:
            raise InvalidInput(f"batch: forward MicroPack {pack.id} is missing")
        for name, least in (("input_ids", 0), ("labels", -100)):
            tensor = getattr(batch[pack.id], name)
            if tuple(tensor.shape) != (1, pack.rows):
                raise InvalidInput(f"batch: {name} of MicroPack {pack.id} must have shape [1, {pack.rows}], "
                                   f"got {list(tensor.shape)}")
            if pack.rows and not (least <= int(tensor.min()) and int(tensor.max()) < vocabulary):
                raise InvalidInput(f"batch: {name} of MicroPack {pack.id} must be from {least} to {vocabulary - 1}")
        labels += int((batch[pack.id].labels >= 0).sum())
    return labels


def _agree(plan: Plan, problem: str, labels: int, device: torch.device) -> int:
    """All ranks go on with the same plan, or all raise StepFailed. One small gather. Gives the sum of `labels`."""
    mine = np.frombuffer(bytes.fromhex(plan.hash), np.int64)
    sent = torch.tensor([*mine.tolist(), bool(problem), labels], device=device)
    every = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    dist.all_gather(every, sent)
    rows = torch.stack(every).tolist()
    if all(row[:3] == [*rows[0][:2], 0] for row in rows):
        targets = sum(row[3] for row in rows)
        if targets == 0:
            raise StepFailed(f"batch: step {plan.step} has no label")
        return targets
    told: list[Any] = [None] * len(rows)
    dist.all_gather_object(told, (plan.hash, problem))
    for rank, (_, why) in enumerate(told):
        if why:
            raise StepFailed(f"rank {rank}: {why}")
    other = next(rank for rank, (digest, _) in enumerate(told) if digest != told[0][0])
    raise StepFailed(f"plan: rank {other} has the plan {told[other][0]}, rank 0 has {told[0][0]}")
