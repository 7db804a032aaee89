# SPDX-License-Identifier: Apache-2.0
"""A stage of torch's pipeline runtime that computes a plan's MicroPacks."""
from __future__ import annotations

from functools import partial
from typing import Any, Callable, Mapping, Optional

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ._attention import Exchange, Rows, Store, running
from ._data import Pack
from ._layout import Cell, Layout
from ._linear import accumulate
from ._model import StageModule
from ._reduce import Gradients

Channel = Callable[[str, int], tuple[dist.ProcessGroup, int]]


class PlanStage(_PipelineStageBase):
    """Layers of one (stage, chunk), for one plan after another.

    Forward packs, backward packs and weight packs are the runtime's micro-batches, each numbered by itself.
    A cell, the rows that a forward and a backward pack share, is one autograd graph; where both passes are
    cut alike that is the whole pack.
    """

    def __init__(self, module: StageModule, index: int, stages: int, device: torch.device, mesh: Any) -> None:
        super().__init__(module, index, stages, device, mesh.get_group("pp"))
        self.module = module
        self.gradients = Gradients(module, mesh.get_group("dp"))
        self.hidden = next(module.model.layers.parameters()).new_empty(0)
        self.width: int = module.rotary[0].config.hidden_size

    def load(self, layout: Layout, batch: Mapping[int, Pack], targets: int, channel: Channel,
             groups: Mapping[int, dist.ProcessGroup], last_backward: int) -> None:
        """Takes the plan of the next step: `batch` holds tensors by number of MicroPack, `targets` how many labels
        all ranks have, `groups` the process groups of groups with several ranks, `last_backward` the backward
        pack that this stage runs last, or -1 where weight packs come after it."""
        self.targets = targets
        self.layout, self.batch, self.channel, self.groups = layout, batch, channel, groups
        self.store = Store()
        self.exchanges: dict[int, Exchange] = {}
        self.last_backward = last_backward
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self.inputs: dict[int, Tensor] = {}
        self.outputs: dict[int, Tensor] = {}
        self.output_gradients: dict[int, Tensor] = {}
        self.input_gradients: dict[int, Tensor] = {}
        self.graphs: dict[int, tuple[Tensor, Tensor, Rows]] = {}
        self.head_gradients: dict[int, Tensor] = {}
        self.cells_left = [len(cells) for cells in layout.forward_cells]  # whose B is to come
        self.waiting: dict[int, list[Any]] = {}

    # Transfers: whole packs, rows in the plan's order.

    def _transfer(self, op: Any, kind: str, tensor: Tensor, stage: int, group: int) -> list[dist.P2POp]:
        if tensor.shape[0] == 0:
            return []
        channel, tag = self.channel(kind, group)
        return [dist.P2POp(op, tensor, group=channel, tag=tag, group_peer=self.stage_index_to_group_rank[stage])]

    def _buffer(self, rows: int) -> Tensor:
        return self.hidden.new_empty(rows, self.width)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        pack = self.layout.forward[fwd_chunk_id]
        self.inputs[fwd_chunk_id] = buffer = self._buffer(pack.rows)
        return self._transfer(dist.irecv, "F", buffer, self.stage_index - 1, pack.group)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        pack = self.layout.backward[bwd_chunk_id]
        self.output_gradients[bwd_chunk_id] = buffer = self._buffer(pack.rows)
        return self._transfer(dist.irecv, "B", buffer, self.stage_index + 1, pack.group)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        group = self.layout.forward[fwd_chunk_id].group
        return self._transfer(dist.isend, "F", self.outputs.pop(fwd_chunk_id), self.stage_index + 1, group)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        group = self.layout.backward[bwd_chunk_id].group
        return self._transfer(dist.isend, "B", self.input_gradients.pop(bwd_chunk_id), self.stage_index - 1, group)

    def release_fwd_send_outputs(self, fwd_chunk_id: int) -> None:
        """The runtime holds what it sends until then; nothing is left to release."""

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        self.inputs[mb_index] = prev_stage_outputs

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return self.input_gradients.pop(mb_index)

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        self.output_gradients[mb_index] = next_stage_bwd_outputs

    # Units.

    def forward_one_chunk(self, fwd_chunk_id: int, args: Any, kwargs: Any = None,
                          save_forward_output: bool = True) -> Tensor:
        pack = self.layout.forward[fwd_chunk_id]
        tensors = self.batch[pack.id]
        if self.is_first:
            with torch.no_grad():
                x = self.module.embedding(tensors.input_ids[0])  # type: ignore[misc]
        else:
            x = self.inputs.pop(fwd_chunk_id)
        cells = self.layout.forward_cells[fwd_chunk_id]
        parts = [(cell.forward_rows, self._forward(cell, _take(x, cell.forward_rows))) for cell in cells]
        out = _assemble(parts, pack.rows, self._buffer)
        if self.is_last:
            self._head(fwd_chunk_id, out, tensors.labels[0])
        elif not self._next_is_here():
            self.outputs[fwd_chunk_id] = out
        return out

    def _forward(self, cell: Cell, x: Tensor) -> Tensor:
        keep = cell.recompute in ("light", "layer")
        rows = Rows(cell, self.layout.shares[cell.group], self.store, self._exchange(cell),
                    self.layout.plan.samples, keep)
        positions = torch.from_numpy(cell.positions).to(self.device)[None]
        if x.shape[0] == 0:  # modules take no empty batch: one row that no attention sees and no gradient reaches
            x, positions = x.new_ones(1, self.width), positions.new_zeros(1, 1)
        leaf = x.detach().requires_grad_()
        hidden = leaf[None]
        rotary = self.module.positions(hidden, positions)
        is_last = cell.backward == self.last_backward and cell is self.layout.backward_cells[cell.backward][-1]
        for number, layer in enumerate(self.module.layers):
            if is_last:
                hidden.register_hook(partial(self._layer_is_done, number))
            call = partial(_run_layer, layer, rows, positions, rotary)
            if cell.recompute == "none":
                hidden = call(hidden)
            elif cell.recompute == "light":
                context = partial(create_selective_checkpoint_contexts, _keep_products)
                hidden = checkpoint(call, hidden, use_reentrant=False, context_fn=context, preserve_rng_state=False)
            else:
                hidden = checkpoint(call, hidden, use_reentrant=False, preserve_rng_state=False)
        self.graphs[cell.number] = (leaf, hidden, rows)
        return hidden.detach()[0, : len(cell.positions)]

    def _exchange(self, cell: Cell) -> Optional[Exchange]:
        group = self.groups.get(cell.group)
        if group is None:
            return None
        if cell.number not in self.exchanges:
            self.exchanges[cell.number] = Exchange(cell, self.layout.shares[cell.group], group, self.device)
        return self.exchanges[cell.number]

    def _layer_is_done(self, number: int, _: Tensor) -> None:
        self.gradients.layer_is_done(number)

    def _head(self, f: int, hidden: Tensor, labels: Tensor) -> None:
        """H: loss and gradient of the hidden states, a tile of rows at a time, so that logits stay small."""
        gradient = torch.empty_like(hidden)
        for begin in range(0, len(hidden), self.layout.head_tile):
            rows = slice(begin, begin + self.layout.head_tile)
            with torch.enable_grad():
                x = hidden[rows].detach().requires_grad_()
                logits = self.module.logits(x)
                if logits.dtype in (torch.float16, torch.bfloat16):
                    logits = logits.float()
                loss = torch.nn.functional.cross_entropy(logits, labels[rows], ignore_index=-100, reduction="sum")
                loss = loss / self.targets
            loss.backward()
            self.loss += loss.detach()
            gradient[rows] = x.grad
        self.head_gradients[f] = gradient

    def backward_one_chunk(self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True,
                           last_backward: bool = False) -> None:
        pack = self.layout.backward[bwd_chunk_id]
        incoming = None if self.is_last else self.output_gradients.pop(bwd_chunk_id)
        parts, waiting = [], []
        for cell in self.layout.backward_cells[bwd_chunk_id]:
            leaf, out, rows = self.graphs.pop(cell.number)
            if incoming is None:
                gradient = _take(self.head_gradients[cell.forward], cell.forward_rows)
                self.cells_left[cell.forward] -= 1
                if self.cells_left[cell.forward] == 0:
                    del self.head_gradients[cell.forward]
            else:
                gradient = _take(incoming, cell.backward_rows)
            if len(cell.positions) == 0:
                gradient = torch.zeros_like(out[0])
            torch.autograd.backward((out,), (gradient[None],))
            assert leaf.grad is not None
            parts.append((cell.backward_rows, leaf.grad[: len(cell.positions)]))
            if self.is_first:
                self._embedding(cell, leaf.grad)
            if rows.deferred:
                waiting.append(rows.deferred)
        if pack.apart:
            self.waiting[bwd_chunk_id] = waiting
        if not self.is_first:
            self.input_gradients[bwd_chunk_id] = _assemble(parts, pack.rows, self._buffer)

    def _embedding(self, cell: Cell, gradient: Tensor) -> None:
        embedding: Any = self.module.embedding
        if embedding.weight.requires_grad and len(cell.positions):
            ids = _take(self.batch[self.layout.forward[cell.forward].id].input_ids[0], cell.forward_rows)
            total = embedding.weight.grad
            total.index_add_(0, ids, gradient.to(total.dtype))

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        parts = [deferred for b in self.layout.weight_packs[bwd_chunk_id] for deferred in self.waiting.pop(b)]
        accumulate(part for deferred in parts for part in deferred)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        self.gradients.reduce()

    def _next_is_here(self) -> bool:
        return self.stage_index_to_group_rank[self.stage_index + 1] == self.group_rank

    # What the runtime's own set-up would do: sizes come from plans, so there is nothing to find out.

    def _prepare_forward_infra(self, *_: Any, **__: Any) -> None:
        return None

    def _prepare_backward_infra(self, *_: Any, **__: Any) -> None:
        return None

    def _create_grad_recv_info(self, act_send_info: Any) -> tuple[Any, ...]:
        return ()


def _run_layer(layer: Any, rows: Rows, positions: Tensor, rotary: Any, hidden: Tensor) -> Tensor:
    with running(rows):
        out = layer(hidden, attention_mask=None, position_ids=positions, use_cache=False,
                    position_embeddings=rotary)
    return out[0] if isinstance(out, tuple) else out


def _keep_products(_: Any, op: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE


def _take(x: Tensor, rows: Any) -> Tensor:
    """Rows of x, in this order; x itself where these are all."""
    count = len(rows)
    if count and rows[-1] - rows[0] == count - 1 and (rows[1:] > rows[:-1]).all():
        return x[int(rows[0]) : int(rows[-1]) + 1]
    return x[torch.from_numpy(rows).to(x.device)]


def _assemble(parts: list[tuple[Any, Tensor]], rows: int, buffer: Callable[[int], Tensor]) -> Tensor:
    if len(parts) == 1 and len(parts[0][0]) == rows and (parts[0][0][1:] > parts[0][0][:-1]).all():
        return parts[0][1].contiguous()
    out = buffer(rows)
    for where, part in parts:
        out[torch.from_numpy(where).to(out.device)] = part
    return out
