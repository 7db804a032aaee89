# SPDX-License-Identifier: Apache-2.0
"""Steps by torch's own pipeline schedules: whole documents, micro-batches of one size, slimpack's layers."""
from __future__ import annotations

from typing import Any, Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from slimpack.torch._attention import Rows, Store, running
from slimpack.torch._layout import Share, cell_of
from slimpack.torch._model import StageModule, use_slices

Bins = list[list[int]]


def best_fit(lengths: list[int], multiple: int) -> list[Bins]:
    """Document numbers of micro-batches, for several numbers of these: longest first, each where there is most room.
    Numbers that only add padding are left out."""
    found, largest = [], None
    for count in (2, 4, 6, 8, 12, 16):
        if count % multiple or count > len(lengths):
            continue
        bins: Bins = [[] for _ in range(count)]
        filled = [0] * count
        for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            least = min(range(count), key=filled.__getitem__)
            bins[least].append(number)
            filled[least] += lengths[number]
        if largest is not None and max(filled) >= largest:
            break
        largest = max(filled)
        found.append(bins)
    return found


class _Whole(torch.nn.Module):
    """A stage for torch's runtime. Micro-batches come in order, forward, as all of torch's schedules have it."""

    def __init__(self, stage: StageModule) -> None:
        super().__init__()
        self.stage = stage
        self.packs: list[tuple[Rows, Tensor]] = []
        self.at = 0

    def forward(self, x: Tensor) -> Tensor:
        rows, positions = self.packs[self.at % len(self.packs)]
        self.at += 1
        if self.stage.embedding is not None:
            x = self.stage.embedding(x)
        hidden = x[None]
        rotary = self.stage.positions(hidden, positions)
        with running(rows):
            for layer in self.stage.layers:
                hidden = layer(hidden, attention_mask=None, position_ids=positions, use_cache=False,
                               position_embeddings=rotary)
        out: Tensor = hidden[0]
        return self.stage.logits(out) if self.stage.has_head else out


class WholeSteps:
    """This rank's stages of a model with `chunks` stages a rank, for steps of torch's 1F1B."""

    def __init__(self, model: Any, chunks: int) -> None:
        use_slices(model)
        self.rank, self.ranks, self.chunks = dist.get_rank(), dist.get_world_size(), chunks
        self.count = chunks * self.ranks
        layers = model.config.num_hidden_layers
        self.config = model.config
        numbers = [chunk * self.ranks + self.rank for chunk in range(chunks)]
        self.modules = [(n, _Whole(StageModule(model, layers * n // self.count, layers * (n + 1) // self.count,
                                               n == 0, n == self.count - 1))) for n in numbers]

    def parameters(self) -> list[torch.nn.Parameter]:
        """Of this rank."""
        return [weight for _, module in self.modules for weight in module.parameters()]

    def step(self, documents: list[Any], bins: Bins) -> Callable[[], float]:
        """A function that runs forward and backward of these micro-batches and gives the mean loss."""
        rows = max(sum(len(documents[i]) for i in one) for one in bins)
        ids, labels = torch.zeros(len(bins) * rows, dtype=torch.int64), torch.full((len(bins) * rows,), -100)
        packs = []
        for number, one in enumerate(bins):
            at = number * rows
            for i in one:
                document = torch.from_numpy(documents[i])
                ids[at : at + len(document)] = document
                labels[at : at + len(document) - 1] = document[1:]
                at += len(document)
            lengths = [len(documents[i]) for i in one]
            cell = cell_of([(0, length) for length in lengths])  # padding is no run: it attends to nothing
            positions = torch.from_numpy(np.concatenate([cell.positions, np.zeros(rows - sum(lengths), np.int64)]))
            packs.append((Rows(cell, Share(0, 1, 1), Store(), None, np.array(lengths), False), positions[None]))
        targets = int((labels >= 0).sum())

        def loss_of(logits: Tensor, wanted: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(logits, wanted, ignore_index=-100, reduction="sum") / targets

        stages = [self._stage(number, module, rows) for number, module in self.modules]
        options: dict[str, Any] = dict(n_microbatches=len(bins), loss_fn=loss_of, scale_grads=False)
        schedule = (Schedule1F1B(stages[0], **options) if self.chunks == 1
                    else ScheduleInterleaved1F1B(stages, **options))
        weights = self.parameters()
        for weight in weights:
            weight.grad = torch.zeros_like(weight)

        def run() -> float:
            for weight in weights:
                weight.grad.zero_()  # type: ignore[union-attr]
            for _, module in self.modules:
                module.packs, module.at = packs, 0
            losses: list[Tensor] = []
            given = (ids,) if self.rank == 0 else ()
            last = self.rank == self.ranks - 1
            schedule.step(*given, **(dict(target=labels, losses=losses) if last else {}), return_outputs=False)
            loss = torch.stack([one.detach() for one in losses]).sum() if last else torch.zeros(())
            dist.all_reduce(loss)
            return loss.item()

        return run

    def _stage(self, number: int, module: _Whole, rows: int) -> PipelineStage:
        hidden = torch.empty(rows, self.config.hidden_size, device="meta", requires_grad=True)
        first, last = number == 0, number == self.count - 1
        given = torch.empty(rows, dtype=torch.int64, device="meta") if first else hidden
        out = torch.empty(rows, self.config.vocab_size, device="meta", requires_grad=True) if last else hidden
        return PipelineStage(module, number, self.count, torch.device("cpu"), input_args=given, output_args=out)
