# SPDX-License-Identifier: Apache-2.0
"""What one data-parallel rank executes of a plan, in rows of its MicroPacks. NumPy alone."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from .. import InvalidInput, Plan

IntArray = np.ndarray[Any, np.dtype[np.int64]]


class Share:
    """Which positions of a sample each rank of a group computes.

    Block k of `block` positions belongs to rank i of n with k mod 2n = i or 2n - 1 - i, ranks counted
    round from the one that owns the first block: in `turned(i)` from rank i on.
    """

    def __init__(self, place: int, ranks: int, block: int) -> None:
        self.place, self.ranks, self.block = place, ranks, block

    def turned(self, first: int) -> "Share":
        """The share of a sample whose first block rank `first` owns; places in it count from that rank."""
        return self if first == 0 else Share((self.place - first) % self.ranks, self.ranks, self.block)

    def positions(self, begin: int, end: int, place: Optional[int] = None) -> IntArray:
        """Those of [begin, end) that rank `place` owns, ascending; None: this rank."""
        every = np.arange(begin, end, dtype=np.int64)
        return every if self.ranks == 1 else every[self.owner(every) == (self.place if place is None else place)]

    def owner(self, positions: IntArray) -> IntArray:
        """The rank of each position."""
        turn = positions // self.block % (2 * self.ranks)
        return np.minimum(turn, 2 * self.ranks - 1 - turn)

    def count(self, end: int, place: Optional[int] = None) -> int:
        """How many of [0, end) a rank owns. O(1)."""
        if self.ranks == 1:
            return end
        place = self.place if place is None else place
        round_of = 2 * self.ranks * self.block
        whole, rest = divmod(end, round_of)
        owned = whole * 2 * self.block
        for turn in (place, 2 * self.ranks - 1 - place):
            owned += min(max(rest - turn * self.block, 0), self.block)
        return owned


class Piece(NamedTuple):
    """Positions [begin, end) of a sample in a cell; this rank's are rows [low, high) of the cell, and
    own positions [first, last) of the sample counted from its start."""

    sample: int
    begin: int
    end: int
    low: int
    high: int
    first: int
    last: int
    alone: bool  # the whole sample, and this rank computes it all: nothing else reads its keys
    turn: int = 0  # place of the rank that owns the sample's first block


class Run(NamedTuple):
    """Consecutive positions: rows [low, high) of a cell see keys [0, keys) of their piece, bottom-right
    causal."""

    piece: int
    low: int
    high: int
    keys: int


class Cell(NamedTuple):
    """The rows that a forward pack and a backward pack have in common: one autograd graph a stage."""

    number: int
    forward: int
    backward: int
    group: int
    pieces: tuple[Piece, ...]
    runs: tuple[Run, ...]
    positions: IntArray
    forward_rows: IntArray
    backward_rows: IntArray
    recompute: str
    apart: bool


Part = tuple[int, int, int, int, int]  # sample, begin, end; its first row in the forward and the backward pack


def make_cell(number: int, forward: int, backward: int, group: int, parts: Sequence[Part], share: Share,
              samples: "Sequence[int] | IntArray", firsts: Sequence[int], recompute: str, apart: bool) -> Cell:
    """The cell of these parts for a rank with this share of a group; `samples` are lengths, `firsts` the places of the
    ranks that own first blocks."""
    pieces, runs, positions, rows, back = [], [], [np.empty(0, np.int64)], [], []
    low = 0
    for sample, begin, end, row, back_row in parts:
        turned = share.turned(firsts[sample])
        own = turned.positions(begin, end)
        count = len(own)
        whole = turned.ranks == 1 and begin == 0 and end == samples[sample]
        breaks = [0, *(np.flatnonzero(np.diff(own) != 1) + 1).tolist(), count] if count else [0]
        for first, last in zip(breaks, breaks[1:]):
            runs.append(Run(len(pieces), low + first, low + last, int(own[last - 1]) + 1))
        pieces.append(Piece(sample, begin, end, low, low + count, turned.count(begin), turned.count(end), whole,
                            firsts[sample]))
        positions.append(own)
        rows.append(np.arange(row, row + count))
        back.append(np.arange(back_row, back_row + count))
        low += count
    none = np.empty(0, np.int64)
    return Cell(number, forward, backward, group, tuple(pieces), tuple(runs), np.concatenate(positions),
                np.concatenate([none, *rows]), np.concatenate([none, *back]), recompute, apart)


def cell_of(slices: Sequence[tuple[int, int]]) -> Cell:
    """A cell of one rank with these (prefix, length) slices, each of another sample that ends with it."""
    parts, row = [], 0
    for sample, (prefix, length) in enumerate(slices):
        parts.append((sample, prefix, prefix + length, row, row))
        row += length
    samples = [prefix + length for prefix, length in slices]
    return make_cell(0, 0, 0, 0, parts, Share(0, 1, 1), samples, [0] * len(parts), "none", False)


class OwnPack(NamedTuple):
    """A MicroPack of a rank: its rows are its slices' own positions, in the plan's order of slices."""

    id: int
    group: int
    rows: int
    samples: IntArray
    positions: IntArray
    apart: bool


class Layout:
    """Packs and cells of one data-parallel rank.

    `forward`, `backward` and `weight` number the MicroPacks of the rank's groups as the plan lists them.
    `forward_cells[f]` are the cells of forward pack f in the order of a forward pass, so that keys of
    earlier tokens come first; `backward_cells[b]` those of backward pack b, later tokens first;
    `weight_packs[w]` the backward packs whose gradients of weights weight pack w computes.

    Raises InvalidInput where torch's runtime cannot execute the plan as it is.
    """

    def __init__(self, plan: Plan, dp_rank: int) -> None:
        self.plan = plan
        self.dict = plan.to_dict()
        self.dp_rank = dp_rank
        parallel = self.dict["parallel"]
        _check_runtime(plan, parallel)
        self.groups: list[list[int]] = plan.groups
        block = self.dict["memory"]["share_tokens"]
        self.shares = [Share(group.index(dp_rank) if dp_rank in group else -1, len(group), block)
                       for group in self.groups]
        self.firsts: list[int] = self.dict.get("sample_first") or [0] * len(plan.samples)
        self.head_tile: int = self.dict["memory"].get("head_tile") or 1024
        self.number: dict[int, int] = {}
        self.forward = self._packs("forward")
        self.backward = self._packs("backward")
        self.weight = self._packs("weight")
        self.cells = self._cells()
        self.forward_cells, self.backward_cells = self._sorted_cells()
        self.weight_packs = self._weight_packs()

    def _share(self, group: int, sample: int) -> Share:
        return self.shares[group].turned(self.firsts[sample])

    def _packs(self, pass_: str) -> list[OwnPack]:
        packs: list[OwnPack] = []
        for pack in self.plan.micropacks:
            share = self.shares[pack.group]
            if pack.pass_ != pass_ or share.place < 0:
                continue
            own = [self._share(pack.group, sample).positions(begin, end) for sample, begin, end in pack.slices.tolist()]
            samples = np.repeat(pack.slices[:, 0], [len(positions) for positions in own])
            self.number[pack.id] = len(packs)
            packs.append(OwnPack(pack.id, pack.group, len(samples), samples, np.concatenate(own),
                              pack.weights == "apart"))
        return packs

    def _cells(self) -> list[Cell]:
        """Cuts each backward slice where forward slices of its sample end. O(slices log slices)."""
        cuts: dict[int, list[tuple[int, int, int, int]]] = {}
        for pack in self.forward:
            at = 0
            for sample, begin, end in self.plan.micropacks[pack.id].slices.tolist():
                share = self._share(pack.group, sample)
                cuts.setdefault(sample, []).append((begin, end, self.number[pack.id], at))
                at += share.count(end) - share.count(begin)
        for slices in cuts.values():
            slices.sort()
        found: dict[tuple[int, int], list[Part]] = {}
        for pack in self.backward:
            at, b = 0, self.number[pack.id]
            for sample, begin, end in self.plan.micropacks[pack.id].slices.tolist():
                share = self._share(pack.group, sample)
                for low, high, f, row in cuts[sample]:
                    first, last = max(begin, low), min(end, high)
                    if first < last:
                        found.setdefault((f, b), []).append(
                            (sample, first, last, row + share.count(first) - share.count(low),
                             at + share.count(first) - share.count(begin)))
                at += share.count(end) - share.count(begin)
        return [self._cell(i, f, b, pieces) for i, ((f, b), pieces) in enumerate(sorted(found.items()))]

    def _cell(self, number: int, f: int, b: int, parts: Sequence[Part]) -> Cell:
        group, pack = self.forward[f].group, self.plan.micropacks[self.backward[b].id]
        return make_cell(number, f, b, group, parts, self.shares[group], self.plan.samples, self.firsts,
                         pack.recompute or "none", pack.weights == "apart")

    def _sorted_cells(self) -> tuple[list[list[Cell]], list[list[Cell]]]:
        # Of each sample forward slices run by rising begin and backward ones by falling begin, so the
        # order in which packs run, the same for every chunk and stage by rule 4, sorts all samples at once.
        ran: dict[str, dict[int, int]] = {"F": {}, "B": {}}
        for kind, pack, *chunk in (unit for unit in self.order(0) if unit[0] in "FB"):
            if chunk[0] == 0:
                ran[kind].setdefault(self.number[pack], len(ran[kind]))
        forward: list[list[Cell]] = [[] for _ in self.forward]
        backward: list[list[Cell]] = [[] for _ in self.backward]
        for cell in self.cells:
            forward[cell.forward].append(cell)
            backward[cell.backward].append(cell)
        for cells in forward:
            cells.sort(key=lambda cell: -ran["B"][cell.backward])
        for cells in backward:
            cells.sort(key=lambda cell: -ran["F"][cell.forward])
        return forward, backward

    def _weight_packs(self) -> list[list[int]]:
        """The backward packs of each weight pack. The planner's `runtime="torch"` makes no others."""
        where: dict[tuple[int, ...], int] = {}
        for b, pack in enumerate(self.backward):
            if pack.apart:
                where.update({tuple(row): b for row in self.plan.micropacks[pack.id].slices.tolist()})
        packs = []
        for pack in self.weight:
            rows = [tuple(row) for row in self.plan.micropacks[pack.id].slices.tolist()]
            parts = {where[row] for row in rows if row in where}
            if {row for row, b in where.items() if b in parts} != set(rows):
                raise InvalidInput(
                    f"plan: weight MicroPack {pack.id} is not a union of backward MicroPacks, which PyTorch's "
                    "runtime needs; ask for plans with runtime=\"torch\"")
            packs.append(sorted(parts))
        return packs

    def order(self, pp: int) -> list[tuple[Any, ...]]:
        """The units of stage `pp` of this rank."""
        return self.plan.order(self.dp_rank, pp)


def _check_runtime(plan: Plan, parallel: dict[str, Any]) -> None:
    if plan.tp != 1:
        raise InvalidInput(f"plan: run_plan needs tp 1, the plan has tp {plan.tp}")
    if plan.memory.get("weights") == "sharded":
        raise InvalidInput("plan: run_plan needs weights whole on every rank, the plan has them sharded; ask for "
                           "plans with runtime=\"torch\" or weight_state=\"replicated\"")
    if parallel["head"] != "last":
        raise InvalidInput(f"plan: run_plan needs the head on the last stage, the plan has head "
                           f"{parallel['head']!r}; ask for plans with runtime=\"torch\"")
    for dp in range(plan.dp):
        order = plan.order(dp, plan.pp - 1)
        for unit, after in zip(order, [*order[1:], ("",)]):
            if unit[0] == "F" and unit[2] == plan.chunks - 1 and after != ("H", unit[1]):
                raise InvalidInput(f"plan: H of MicroPack {unit[1]} does not follow its F on dp {dp}, which "
                                   "PyTorch's runtime needs; ask for plans with runtime=\"torch\"")
