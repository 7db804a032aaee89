# SPDX-License-Identifier: Apache-2.0
"""Gradients of a stage in one flat buffer, summed over data-parallel ranks layer by layer."""
from __future__ import annotations

from typing import Optional

import torch
import torch.distributed as dist

from ._model import StageModule


class Gradients:
    """`parameter.grad` of all of a stage's parameters are views of one buffer, fp32 for parameters of half
    precision. Buckets are the layers, last first, and then what is neither: that is the order in which they
    are summed on every rank, each as soon as the step's last backward unit has passed it."""

    def __init__(self, module: StageModule, group: dist.ProcessGroup) -> None:
        self.group = group
        layers = module.layers
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        of_layer = {id(p): i for i, layer in enumerate(layers) for p in layer.parameters()}
        self.parameters.sort(key=lambda p: -of_layer.get(id(p), -1))  # stable
        sizes = [p.numel() for p in self.parameters]
        half = (torch.float16, torch.bfloat16)
        dtypes = {torch.float32 if p.dtype in half else p.dtype for p in self.parameters}
        assert len(dtypes) <= 1, "parameters of a stage have one precision"
        like = self.parameters[0]
        self.buffer = torch.zeros(sum(sizes), dtype=dtypes.pop(), device=like.device)
        self.ends = [0] * (len(layers) + 1)
        at = 0
        for parameter, size in zip(self.parameters, sizes):
            if parameter.dtype in half:
                parameter.grad_dtype = torch.float32
            parameter.grad = self.buffer[at : at + size].view_as(parameter)
            at += size
            bucket = len(layers) - 1 - of_layer.get(id(parameter), -1)
            self.ends[bucket] = at
        for i in range(1, len(self.ends)):
            self.ends[i] = max(self.ends[i], self.ends[i - 1])
        self.layers = len(layers)
        self.begin_step()

    def begin_step(self, before: Optional[Gradients] = None) -> None:
        """Zeroes all gradients. `before`: those of its device that are summed before these."""
        at = 0
        for parameter in self.parameters:  # a gradient that the user set to None comes back
            if parameter.grad is None:
                parameter.grad = self.buffer[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        self.buffer.zero_()
        self.sent = 0
        self.before = before
        self.works: list[Optional[dist.Work]] = []

    def layer_is_done(self, layer: int) -> None:
        """The last backward unit has passed this layer of the stage, from 0: sums its bucket."""
        if self.before is None or self.before.sent == len(self.before.ends):
            self._send(self.layers - layer)

    def reduce(self) -> None:
        """R: sums all that has not been yet."""
        self._send(len(self.ends))

    def wait(self) -> None:
        """Returns when all sums are there."""
        for work in self.works:
            if work is not None:
                work.wait()
        self.works = []

    def _send(self, buckets: int) -> None:
        while self.sent < buckets:
            begin = self.ends[self.sent - 1] if self.sent else 0
            end = self.ends[self.sent]
            self.sent += 1
            if begin < end and dist.get_world_size(self.group) > 1:
                self.works.append(dist.all_reduce(self.buffer[begin:end], group=self.group, async_op=True))
