# SPDX-License-Identifier: Apache-2.0
"""Matrix products whose gradients of weights accumulate in `weight.grad`, at once or in a weight unit."""
from __future__ import annotations

from functools import partial
from typing import Any, Callable, Iterable, Optional

import torch
from torch import Tensor

from ._attention import Rows, current

Deferred = tuple[Tensor, Optional[Tensor], Tensor, Tensor]  # weight, bias, input, gradient of output

_ALONE = 128  # rows from which a product on a CPU is as fast as a larger one


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor], rows: Optional[Rows]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.rows = weight, bias, rows
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        if ctx.rows is None or ctx.rows.deferred is None:
            accumulate([(ctx.weight, ctx.bias, x, gradient)])
        else:
            # Detached: x would hold the graph, which holds `rows`.
            ctx.rows.deferred.append((ctx.weight, ctx.bias, x.detach(), gradient))
        return (gradient @ ctx.weight if ctx.needs_input_grad[0] else None), None, None, None


@torch.no_grad()
def accumulate(parts: Iterable[Deferred]) -> None:
    """Adds to `weight.grad` and `bias.grad`: one product a weight, over the rows of all its parts, unless those are large on a
    CPU."""
    by_weight: dict[int, list[Deferred]] = {}
    for part in parts:
        by_weight.setdefault(id(part[0]), []).append(part)
    for weight, bias, x, gradient in (one for found in by_weight.values() for one in _joined(found)):
        if weight.requires_grad:
            assert weight.grad is not None
            if weight.grad.dtype == x.dtype:
                weight.grad.addmm_(gradient.T, x)
            elif x.is_cuda:
                weight.grad.add_(torch.mm(gradient.T, x, out_dtype=weight.grad.dtype))
            else:
                weight.grad.add_(gradient.T @ x)
        if bias is not None and bias.requires_grad:
            assert bias.grad is not None
            bias.grad.add_(gradient.sum(0, dtype=bias.grad.dtype))


def _joined(parts: list[Deferred]) -> list[Deferred]:
    """Parts of one weight as the products that are made. On CPUs copying many rows together takes longer than a
    product of their own saves."""
    weight, bias, x, _ = parts[0]
    if not x.is_cuda and all(part[2].shape[-2] >= _ALONE for part in parts):
        return [(weight, bias, part[2].flatten(0, -2), part[3].flatten(0, -2)) for part in parts]
    return [(weight, bias, _rows([part[2] for part in parts]), _rows([part[3] for part in parts]))]


def _rows(parts: list[Tensor]) -> Tensor:
    flat = [part.flatten(0, -2) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def hold_products(module: torch.nn.Module) -> None:
    """Makes every plain linear module of `module` accumulate as above while a plan runs. Its parameters and
    state dict stay as they are; other kinds of module are left to autograd, within backward units."""
    for part in module.modules():
        if type(part) is torch.nn.Linear and not isinstance(part.forward, partial):
            part.forward = partial(_product, part, part.forward)  # type: ignore[method-assign]


def _product(module: torch.nn.Linear, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    rows = current()
    if rows is None and not getattr(module, "_slimpack_head", False):
        return forward(x)
    apply: Callable[..., Tensor] = _Product.apply
    return apply(x, module.weight, module.bias, rows)
