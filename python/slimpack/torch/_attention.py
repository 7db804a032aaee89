# SPDX-License-Identifier: Apache-2.0
"""Attention of slices: queries of a cell over all earlier keys of their samples.

A stage keeps keys and values of cut samples, by layer, in a store. Backward slices come last to first,
so what later queries give to a key's gradient waits in the store until the key's own slice is backward.
"""
from __future__ import annotations

import threading
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ._layout import Cell, Piece, Run, Share

_BLOCK = 512  # query rows that the reference computes at once: bounds its score matrix
_CAUSAL = 256  # query rows from which flash attention of CPUs is cut


class Keys(NamedTuple):
    """Keys and values, or their gradients: [rows, kv heads, head dim] each."""

    k: Tensor
    v: Tensor


class Store:
    """Keys and values of a stage's cut samples, by layer and sample, and their gradients. A rank of a
    group holds the rows of its own positions."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, int], Keys] = {}
        self.gradients: dict[tuple[int, int], Keys] = {}

    def write(self, key: tuple[int, int], rows: int, first: int, last: int, k: Tensor, v: Tensor) -> None:
        kept = self.kept.get(key)
        if kept is None:
            kept = self.kept[key] = Keys(k.new_empty(rows, *k.shape[1:]), v.new_empty(rows, *v.shape[1:]))
        kept.k[first:last] = k
        kept.v[first:last] = v

    def add_gradients(self, key: tuple[int, int], rows: int, last: int, dk: Tensor, dv: Tensor) -> None:
        """Adds to those of the sample's own rows [0, last)."""
        if last == 0:
            return
        found = self.gradients.get(key)
        if found is None:
            found = self.gradients[key] = Keys(dk.new_zeros(rows, *dk.shape[1:]), dv.new_zeros(rows, *dv.shape[1:]))
        found.k[:last] += dk
        found.v[:last] += dv


class Exchange:
    """Gathers the keys that a cell's queries read from the ranks of its group, and scatters their
    gradients. Every rank of the group calls it for the same cells in the same order."""

    def __init__(self, cell: Cell, share: Share, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.ranks = group, share.ranks
        counts = np.array([[share.count(piece.end, (rank - piece.turn) % share.ranks) for piece in cell.pieces]
                           for rank in range(share.ranks)])
        begins = np.cumsum(counts, axis=1) - counts
        self.most = max(int(counts.sum(axis=1).max()), 1)
        self.begins: list[int] = begins[share.place].tolist()
        self.counts: list[int] = counts[share.place].tolist()
        # Where position p of a piece lies among the gathered rows of all ranks.
        self.places = []
        for i, piece in enumerate(cell.pieces):
            places = np.empty(piece.end, np.int64)
            for rank in range(share.ranks):
                places[share.positions(0, piece.end, (rank - piece.turn) % share.ranks)] = (
                    rank * self.most + begins[rank, i] + np.arange(counts[rank, i]))
            self.places.append(torch.from_numpy(places).to(device))

    def gather(self, own: list[Keys]) -> list[Keys]:
        """All keys of each piece, by position."""
        k = own[0].k
        send = k.new_zeros(2, self.most, *k.shape[1:])
        for begin, count, keys in zip(self.begins, self.counts, own):
            send[0, begin : begin + count] = keys.k
            send[1, begin : begin + count] = keys.v
        parts = [torch.empty_like(send) for _ in range(self.ranks)]
        dist.all_gather(parts, send, group=self.group)
        k, v = torch.stack(parts, 1).flatten(1, 2)
        return [Keys(k[places], v[places]) for places in self.places]

    def scatter(self, gradients: list[Keys]) -> list[Keys]:
        """The sums over all ranks of the gradients of this rank's rows of each piece."""
        like = gradients[0].k
        send = like.new_zeros(2, self.ranks * self.most, *like.shape[1:])
        for places, keys in zip(self.places, gradients):
            send[0, places] = keys.k
            send[1, places] = keys.v
        parts = send.unflatten(1, (self.ranks, self.most)).transpose(0, 1).contiguous()
        if dist.get_backend(self.group) == "nccl":
            received = torch.empty_like(parts[0])
            dist.reduce_scatter_tensor(received, parts, group=self.group)
        else:  # gloo has no reduce-scatter
            dist.all_reduce(parts, group=self.group)
            received = parts[dist.get_rank(self.group)]
        return [Keys(received[0, begin : begin + count], received[1, begin : begin + count])
                for begin, count in zip(self.begins, self.counts)]


class Rows:
    """A cell on a stage, while its layers run: what attention and matrix products ask for."""

    def __init__(self, cell: Cell, share: Share, store: Store, exchange: Optional[Exchange],
                 lengths: "np.ndarray[Any, Any]", keep_attention: bool) -> None:
        self.cell, self.share, self.store, self.exchange = cell, share, store, exchange
        self.lengths = lengths
        self.keep_attention = keep_attention
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}  # attention output and log-sum-exp, by layer
        # Where gradients of weights are computed later: weight, bias, input, gradient of output.
        self.deferred: Optional[list[tuple[Tensor, Optional[Tensor], Tensor, Tensor]]] = [] if cell.apart else None

    def own_rows(self, piece: Piece) -> int:
        """How many rows of a piece's sample this rank holds."""
        return self.share.turned(piece.turn).count(int(self.lengths[piece.sample]))

    def keys(self, layer: int, k: Tensor, v: Tensor) -> list[Keys]:
        """All keys and values that each piece reads: [end, kv heads, head dim]."""
        own = []
        for piece in self.cell.pieces:
            if piece.alone:
                own.append(Keys(k[piece.low : piece.high], v[piece.low : piece.high]))
            else:
                kept = self.store.kept[layer, piece.sample]
                own.append(Keys(kept.k[: piece.last], kept.v[: piece.last]))
        return own if self.exchange is None else self.exchange.gather(own)


_local = threading.local()


class running:
    """Within it layers run for `rows`. Re-entered by each thread that computes activations again."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __enter__(self) -> None:
        self.before = current()
        _local.rows = self.rows

    def __exit__(self, *_: object) -> None:
        _local.rows = self.before


def current() -> Optional[Rows]:
    """The cell whose layers run in this thread."""
    return getattr(_local, "rows", None)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: Rows, layer: int, scale: float) -> Tensor:
        for piece in rows.cell.pieces:
            if not piece.alone:
                rows.store.write((layer, piece.sample), rows.own_rows(piece), piece.first, piece.last,
                                 k[piece.low : piece.high], v[piece.low : piece.high])
        found = rows.kept.pop(layer, None)
        if found is None:
            keys = rows.keys(layer, k, v)
            out, lse = core_of(q).forward(q, keys, rows.cell.runs, scale)
            if rows.keep_attention:
                rows.kept[layer] = (out.detach(), lse)
        else:
            out, lse = found
            out = out.detach()  # checkpointing knows each operator of the first pass, and a clone need not be one
        alone = any(piece.alone for piece in rows.cell.pieces)
        ctx.save_for_backward(q, out, lse, k if alone else None, v if alone else None)
        ctx.rows, ctx.layer, ctx.scale, ctx.like = rows, layer, scale, (k.shape, k.dtype)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        q, out, lse, k, v = ctx.saved_tensors
        rows, layer = ctx.rows, ctx.layer
        keys = rows.keys(layer, k, v)
        dq, gradients = core_of(q).backward(gradient, q, keys, out, lse, rows.cell.runs, ctx.scale)
        if rows.exchange is not None:
            gradients = rows.exchange.scatter(gradients)
        shape, dtype = ctx.like
        dk, dv = (torch.zeros(shape, dtype=dtype, device=q.device) for _ in range(2))
        for piece, (gk, gv) in zip(rows.cell.pieces, gradients):
            key = (layer, piece.sample)
            low, high = slice(piece.low, piece.high), slice(piece.first, piece.last)
            if not piece.alone:
                rows.store.add_gradients(key, rows.own_rows(piece), piece.first,
                                         gk[: piece.first], gv[: piece.first])
                later = rows.store.gradients.get(key)
                if later is not None:
                    gk[high] += later.k[high]
                    gv[high] += later.v[high]
                if piece.begin == 0:
                    rows.store.kept.pop(key, None)
                    rows.store.gradients.pop(key, None)
            dk[low] = gk[high]
            dv[low] = gv[high]
        return dq, dk, dv, None, None, None


class _Flash:
    """torch's flash attention of CPUs, half precision in fp32. Of a block of a run's rows it is two calls, the causal
    square of its own positions and all keys before them, joined by their log-sum-exp (Milakov and Gimelshein, 2018);
    gradients of both follow from the joined one."""

    @staticmethod
    def forward(q: Tensor, keys: list[Keys], runs: tuple[Any, ...], scale: float) -> tuple[Tensor, Tensor]:
        exact = _exact(q.dtype)
        out, lse = torch.zeros_like(q, dtype=exact), torch.zeros(q.shape[:2], dtype=exact, device=q.device)
        for run, parts in _parts(q, keys, runs):
            rows = slice(run.low, run.high)
            for many, (query, k, v, _, causal) in enumerate(parts):
                one, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, k, v, 0.0, causal, scale=scale)
                one, sums = one[0].transpose(0, 1), sums[0].T
                if many:
                    both = torch.logaddexp(lse[rows], sums)
                    out[rows] *= (lse[rows] - both).exp_()[..., None]
                    out[rows] += one * (sums - both).exp_()[..., None]
                    lse[rows] = both
                else:
                    out[rows], lse[rows] = one, sums
        return out.to(q.dtype), lse

    @staticmethod
    def backward(gradient: Tensor, q: Tensor, keys: list[Keys], out: Tensor, lse: Tensor, runs: tuple[Any, ...],
                 scale: float) -> tuple[Tensor, list[Keys]]:
        exact = _exact(q.dtype)
        dq = torch.zeros_like(q, dtype=exact)
        found = [Keys(torch.zeros_like(k, dtype=exact), torch.zeros_like(v, dtype=exact)) for k, v in keys]
        for run, parts in _parts(q, keys, runs):
            rows = slice(run.low, run.high)
            dout, whole = (_heads_first(x[rows]) for x in (gradient, out))
            sums = lse[rows].T[None]
            for query, k, v, seen, causal in parts:
                made = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    dout, query, k, v, whole, sums, 0.0, causal, scale=scale)
                for total, one in zip((dq[rows], found[run.piece].k[seen], found[run.piece].v[seen]), made):
                    total += one[0].transpose(0, 1)
        return dq.to(q.dtype), found


def _parts(q: Tensor, keys: list[Keys], runs: tuple[Any, ...]) -> Any:
    """Blocks of runs, and of each (queries, keys, values, which rows of its piece's keys these are, causal), heads first,
    a part each. A causal call computes what it hides of tiles of 512 keys, so a square is cut into up to 4."""
    for run in runs:
        rows = run.high - run.low
        step = max(_CAUSAL, -(-rows // 4))
        for low in range(run.low, run.high, step):
            high = min(low + step, run.high)
            last = run.keys - (run.high - high)
            query, before = _heads_first(q[low:high]), last - (high - low)
            seen = [(slice(before, last), True), (slice(0, before), False)]
            yield Run(run.piece, low, high, last), [
                (query, *(_heads_first(x[one]) for x in keys[run.piece]), one, causal)
                for one, causal in seen[: 2 if before else 1]]


def _heads_first(x: Tensor) -> Tensor:
    """[rows, heads, d] as [1, heads, rows, d]."""
    return x.to(_exact(x.dtype)).transpose(0, 1)[None]


class _Reference:
    """Attention and its gradients by matrix products, blocks of queries at a time. Half precision is
    computed in fp32. In place where it can be, for fresh score matrices cost as much as products."""

    @staticmethod
    def forward(q: Tensor, keys: list[Keys], runs: tuple[Any, ...], scale: float) -> tuple[Tensor, Tensor]:
        out, lse = torch.zeros_like(q), torch.zeros(q.shape[:2], dtype=_exact(q.dtype), device=q.device)
        for low, high, k, v in _blocks(runs, keys):
            scores, heads = _scores(q[low:high], k, scale)
            sums = torch.logsumexp(scores, -1, keepdim=True)
            out[low:high] = _rows(scores.sub_(sums).exp_().flatten(1, 2) @ _by_head(v), heads).to(q.dtype)
            lse[low:high] = sums[..., 0].permute(2, 0, 1).flatten(1)
        return out, lse

    @staticmethod
    def backward(gradient: Tensor, q: Tensor, keys: list[Keys], out: Tensor, lse: Tensor, runs: tuple[Any, ...],
                 scale: float) -> tuple[Tensor, list[Keys]]:
        exact = _exact(q.dtype)
        dq = torch.zeros_like(q)
        found = [Keys(torch.zeros_like(k, dtype=exact), torch.zeros_like(v, dtype=exact)) for k, v in keys]
        delta = (gradient.to(exact) * out.to(exact)).sum(-1)
        for (low, high, k, v), (gk, gv) in zip(_blocks(runs, keys), _gradients(runs, found)):
            scores, heads = _scores(q[low:high], k, scale)
            many = (scores.shape[0], heads, high - low)
            by_row = [x[low:high].T.reshape(*many, 1) for x in (lse, delta)]
            p = scores.sub_(by_row[0]).exp_().flatten(1, 2)
            dout = _queries(gradient[low:high], many[0])
            gv += (p.transpose(1, 2) @ dout).transpose(0, 1)
            ds = (dout @ _by_head(v).transpose(1, 2)).sub_(by_row[1].flatten(1, 2)).mul_(p).mul_(scale)
            dq[low:high] = _rows(ds @ _by_head(k), heads).to(q.dtype)
            gk += (ds.transpose(1, 2) @ _queries(q[low:high], many[0])).transpose(0, 1)
        return dq, found


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _blocks(runs: tuple[Any, ...], keys: list[Keys]) -> Any:
    """(low, high, keys, values) of at most _BLOCK rows; the last row sees all of these keys."""
    for piece, low, high, last in runs:
        for begin in range(low, high, _BLOCK):
            end = min(begin + _BLOCK, high)
            seen = last - (high - end)
            yield begin, end, keys[piece].k[:seen], keys[piece].v[:seen]


def _gradients(runs: tuple[Any, ...], found: list[Keys]) -> Any:
    return ((k, v) for _, _, k, v in _blocks(runs, found))


def _by_head(x: Tensor) -> Tensor:
    return x.to(_exact(x.dtype)).transpose(0, 1)


def _queries(x: Tensor, groups: int) -> Tensor:
    """[rows, heads, d] as [kv heads, heads of each x rows, d]."""
    return x.to(_exact(x.dtype)).unflatten(1, (groups, -1)).permute(1, 2, 0, 3).flatten(1, 2)


def _rows(x: Tensor, heads: int) -> Tensor:
    """What `_queries` took apart."""
    return x.unflatten(1, (heads, -1)).permute(2, 0, 1, 3).flatten(1, 2)


def _scores(q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, int]:
    """[kv heads, heads of each, rows, keys], causal: the last row sees all keys."""
    groups, heads, rows, seen = k.shape[1], q.shape[1] // k.shape[1], q.shape[0], k.shape[0]
    scores = (_queries(q, groups) @ _by_head(k).transpose(1, 2)).unflatten(1, (heads, rows)).mul_(scale)
    hidden = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
    scores[..., seen - rows :].masked_fill_(hidden, float("-inf"))
    return scores, heads


class _Varlen:
    """torch's variable-length flash attention: one call for all runs of a cell, or, where several runs
    read one piece's keys (groups of ranks), one for each, so that no key is copied."""

    @staticmethod
    def forward(q: Tensor, keys: list[Keys], runs: tuple[Any, ...], scale: float) -> tuple[Tensor, Tensor]:
        out = torch.zeros_like(q)
        lse = torch.zeros(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
        for low, high, k, v, many in _calls(q, keys, runs):
            out[low:high], lse[:, low:high] = _flash(q[low:high], k, v, many, scale)
        return out, lse

    @staticmethod
    def backward(gradient: Tensor, q: Tensor, keys: list[Keys], out: Tensor, lse: Tensor, runs: tuple[Any, ...],
                 scale: float) -> tuple[Tensor, list[Keys]]:
        dq = torch.zeros_like(q)
        exact = _exact(q.dtype)
        found = [Keys(torch.zeros_like(k, dtype=exact), torch.zeros_like(v, dtype=exact)) for k, v in keys]
        rest = list(runs)
        for low, high, k, v, many in _calls(q, keys, runs):
            dq[low:high], dk, dv = _flash_backward(gradient[low:high].contiguous(), q[low:high], k, v, out[low:high],
                                                   lse[:, low:high].contiguous(), many, scale)
            at = 0
            while rest and rest[0].high <= high:
                run = rest.pop(0)
                found[run.piece].k[: run.keys] += dk[at : at + run.keys]
                found[run.piece].v[: run.keys] += dv[at : at + run.keys]
                at += run.keys
        return dq, found


Lengths = tuple[Tensor, Tensor, int, int]  # cu_seqlens_q, cu_seqlens_k, most queries, most keys


def _flash(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, scale: float) -> tuple[Tensor, Tensor]:
    """Output [rows, heads, head dim] and log-sum-exp [heads, rows], bottom-right causal."""
    import torch.nn.attention.varlen  # registers the operators

    out, lse, _ = torch.ops.torch_attn._varlen_attn(q, k, v, *lengths, True, scale, [-1, 0], k.shape[1] != q.shape[1])
    return out, lse


def _flash_backward(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, lengths: Lengths,
                    scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    import torch.nn.attention.varlen

    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of dropout, which is off
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.torch_attn._varlen_attn_backward(
        gradient, q, k, v, out, lse, *lengths, True, seed, scale, [-1, 0])
    return found


def _calls(q: Tensor, keys: list[Keys], runs: tuple[Any, ...]) -> Any:
    """(low, high, keys, values, (cu_q, cu_k, max_q, max_k)) of each call."""
    pieces = [run.piece for run in runs]
    batches = [tuple(runs)] if len(set(pieces)) == len(pieces) else [(run,) for run in runs]
    for batch in batches:
        if not batch:
            continue
        k, v = (torch.cat([keys[run.piece][i][: run.keys] for run in batch]) for i in (0, 1))
        rows, seen = [run.high - run.low for run in batch], [run.keys for run in batch]
        ends = [torch.tensor(np.concatenate([[0], np.cumsum(x)]), dtype=torch.int32, device=q.device)
                for x in (rows, seen)]
        yield batch[0].low, batch[-1].high, k, v, (*ends, max(rows), max(seen))


def core_of(q: Tensor) -> Any:
    """Flash attention, but on GPUs for half precision alone."""
    if q.is_cpu:
        return _Flash
    return _Varlen if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) else _Reference


def attend(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor],
           scaling: Optional[float] = None, dropout: float = 0.0, **_: Any) -> tuple[Tensor, None]:
    """Hugging Face's attention interface: [1, heads, rows, head dim] each; gives [1, rows, heads, head dim]."""
    rows = current()
    if rows is None:
        raise RuntimeError("slimpack's attention runs within run_plan alone")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    apply: Callable[..., Tensor] = _Attention.apply
    return apply(q, k, v, rows, int(module.layer_idx), scale)[None], None  # type: ignore[arg-type]
