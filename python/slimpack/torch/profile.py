# SPDX-License-Identifier: Apache-2.0
"""Measures in PyTorch what `slimpack calibrate` fits prices to: python -m slimpack.torch.profile."""
from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import sys
import time
from functools import partial
from types import SimpleNamespace
from typing import Any, Callable, Iterator, Optional, Sequence, Union

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from .. import InvalidInput, _core, plan, presets
from ._attention import Keys
from ._layout import Cell, OwnPack, Share, make_cell
from ._model import StageModule, use_slices
from ._stage import PlanStage

COLUMNS = ("kind", "pass", "tokens", "pairs", "segments", "layers", "ranks", "bytes", "seconds", "keys",
           "accumulator_bytes", "weight_bytes", "own_pairs")
_SHAPE = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
_DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
_HEAD_TILE = 1024  # rows whose logits are held at once
_MESSAGES = tuple(1 << power for power in range(14, 25, 2))  # bytes
_REPETITIONS = 3  # of a message in a round
_KINDS = ("layer", "apart", "weight", "cp", "light", "embedding", "head", "optimizer", "p2p", "reduce")

Row = dict[str, Union[str, int, float]]
Step = Callable[[], list[tuple[Row, float]]]  # runs its units once, and gives their rows with seconds
Slices = list[tuple[int, int, int]]  # (sample, begin, end) of a pack


class _Packs:
    """Packs of a step, over samples of its own."""

    def __init__(self) -> None:
        self.packs: list[Slices] = []
        self.samples = 0

    def cut(self, length: int, step: int) -> None:
        """Packs of `step` tokens of one sample."""
        self.packs += [[(self.samples, begin, min(begin + step, length))] for begin in range(0, length, step)]
        self.samples += 1

    def whole(self, lengths: Sequence[int], behind: Optional[tuple[int, int, int]] = None) -> None:
        """One pack of whole samples, and behind them a slice."""
        self.packs.append([(self.samples + i, 0, length) for i, length in enumerate(lengths)])
        self.packs[-1] += [behind] if behind else []
        self.samples += len(lengths)


def steps_to_measure(context: int) -> list[tuple[int, list[Slices]]]:
    """Layers and packs of steps. One sample in slices with growing prefixes, coarse and fine; 1 to 256 whole samples;
    both together; up to `context` tokens. Small packs are on 1 and on 4 layers, else what a unit costs beyond its layers
    could not be told from what more tokens cost; many samples are on 4, as a unit of a plan has several layers, and each is
    a little cheaper than alone. All packs of a step are kept between their F and B: at most 5 contexts on one layer."""
    most = max(context, 128)

    def part(parts: float) -> int:
        return max(int(most / parts), 2)

    def about(count: int, length: int) -> list[int]:
        # From a half to one and a half of `length`: documents fill no tiles.
        return [max(2, length // 2 + i * 7919 % (length + 1)) for i in range(count)]

    coarse, whole, mixed, many, small, fine, eighths = (_Packs() for _ in range(7))
    coarse.cut(most, part(4))
    coarse.whole(about(128, part(512)))
    coarse.whole(about(64, part(200)))
    whole.whole([most])
    whole.cut(part(4), part(4))
    whole.whole([*about(16, part(100)), part(8)], (1, part(4), 2 * part(4)))
    mixed.whole([part(3)])
    mixed.whole(about(16, part(32)))
    mixed.whole(about(256, part(1000)))
    many.whole(about(64, part(128)))
    many.whole([*about(32, part(128)), part(2)])
    for length in (part(8), part(30), part(60), part(128)):
        small.whole([length])
    small.whole(about(32, part(64)))
    small.whole(about(8, part(64)))
    fine.cut(part(2), part(16))
    eighths.cut(most, part(8))
    eighths.whole(about(4, part(8)))
    return [(1, whole.packs), (1, small.packs), (1, fine.packs), (2, coarse.packs), (2, eighths.packs),
            (4, mixed.packs), (4, many.packs), (4, small.packs), (4, fine.packs)]


def light_to_measure(context: int) -> list[tuple[int, list[Slices]]]:
    """Layers and packs of steps that compute again what is cheap: few tokens on 1 and 4 layers, many on 2."""
    few, more = _Packs(), _Packs()
    for parts in (4, 8, 16, 32, 64):
        few.whole([max(context // parts, 2)])
    more.whole([max(context, 2)])
    more.whole([max(context // 2, 2)])
    more.whole([max(context // 64, 2)] * 32)
    return [(1, few.packs), (2, more.packs), (4, few.packs)]


def groups_to_measure(context: int, ranks: int) -> list[tuple[int, list[Slices]]]:
    """Tokens of a block and packs of steps of a group of so many ranks, who have equal parts of each."""
    steps = []
    for parts in (16, 4):
        block = max(context // (parts * 2 * ranks), 1)
        least, packs = 2 * ranks * block, _Packs()
        packs.cut(parts * least, parts // 2 * least)
        packs.whole([parts // 2 * least])
        packs.whole([parts // 4 * least] * 2)
        packs.whole([least] * (parts // 4))
        if parts > 4:
            packs.whole([least])
        steps.append((block, packs.packs))
    return steps


class Bench:
    """Where one rank measures. Every step runs once a round, on all ranks at the same time."""

    def __init__(self, shape: dict[str, Any], device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        self.element = dtype.itemsize
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1

    def timed(self, work: Callable[[], Any]) -> float:
        """Seconds of some work, on the device."""
        if self.device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def measure(self, steps: Sequence[Step], rounds: int, budget: float,
                before: Callable[[int], Any] = lambda _: None) -> list[Row]:
        """The rows of all steps, sorted by kind and pass. A row has its median over rounds, longer by what the median
        of its step is above the sum of its rows' medians, and of that the mean over ranks. No round but the first
        begins that would end after `budget` seconds."""
        start = time.perf_counter()
        measured: list[list[list[tuple[Row, float]]]] = []
        for round_ in range(rounds + 1):
            begin = time.perf_counter()
            measured.append([])
            for step in steps:
                before(round_)
                if self.ranks > 1:
                    dist.barrier()
                measured[-1].append(step())
            now = time.perf_counter()
            if round_ > 0 and self._slowest(now - start + now - begin) > budget:
                break
        times = []
        for runs in zip(*measured[1:]):  # the first round touched memory for the first time
            took = [[seconds for _, seconds in run] for run in runs]
            medians = [statistics.median(row) for row in zip(*took)]
            longer = statistics.median(map(sum, took)) / max(sum(medians), 1e-9)
            times += [longer * seconds for seconds in medians]
        seconds = torch.tensor(times, dtype=torch.float64, device=self.device)
        if self.ranks > 1:
            dist.all_reduce(seconds)
        rows = [row for step in measured[0] for row, _ in step]
        rows = [{**row, "seconds": max(took / self.ranks, 1e-9)} for row, took in zip(rows, seconds.tolist())]
        return sorted(rows, key=lambda row: (_KINDS.index(str(row["kind"])), row.get("pass") == "backward"))

    def _slowest(self, seconds: float) -> float:
        if self.ranks == 1:
            return seconds
        slowest = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.item()


class Units:
    """Units of `run_plan` on a stage of Hugging Face's own Llama with random weights, and updates."""

    def __init__(self, bench: Bench, context: int, pipeline: bool) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        self.bench, shape = bench, bench.shape
        most = min(4, shape["layers"])
        config = LlamaConfig(
            hidden_size=shape["hidden"], intermediate_size=shape["ffn"], num_attention_heads=shape["heads"],
            num_key_value_heads=shape["kv_heads"], head_dim=shape["head_dim"], rms_norm_eps=shape["norm_eps"],
            rope_parameters={"rope_type": "default", "rope_theta": shape["rope_theta"]}, num_hidden_layers=most,
            vocab_size=shape["vocab"], tie_word_embeddings=False, dtype=bench.dtype)
        with torch.device(bench.device):
            model = LlamaForCausalLM(config).to(bench.dtype)
        use_slices(model)
        self.whole = StageModule(model, 0, most, embedding=True, head=True)
        # In the middle of a pipeline, alone in its group: it receives and sends nothing.
        mesh = SimpleNamespace(get_group=lambda _: dist.new_subgroups(1)[0])
        self.stage = PlanStage(self.whole, 1, 3, bench.device, mesh)
        self.weights = shape["hidden"] * (2 * (shape["heads"] + shape["kv_heads"]) * shape["head_dim"]
                                          + 3 * shape["ffn"])
        self.neighbour = dist.get_rank() ^ 1 if pipeline else None
        alone = Share(0, 1, 1)
        self.steps: list[Step] = [partial(self.layers, layers, packs, apart, alone)
                                  for apart in (False, True) for layers, packs in steps_to_measure(context)]
        if bench.ranks > 1:
            self.steps += [partial(self.layers, 4, packs, False, Share(dist.get_rank(), bench.ranks, block))
                           for block, packs in groups_to_measure(context, bench.ranks)]
        self.steps += [partial(self.light, layers, packs) for layers, packs in light_to_measure(context)]
        counts = sorted({max(context // parts, 2) for parts in (96, 64, 48, 32, 24, 16, 12, 8, 4, 2)})
        self.steps += [partial(run, count) for run in (self.embed, self.head) for count in counts]
        for count in sorted({min(count, most) for count in (1, 2, 4)}):
            self.steps.append(self.update([one for layer in self.whole.layers[:count] for one in layer.parameters()]))
        self.steps.append(self.update([model.model.embed_tokens.weight]))

    def load(self, packs: list[Slices], layers: int, apart: bool, share: Share, recompute: str = "none") -> list[Cell]:
        """Gives the stage a step of packs, each backward as it was forward; gives their cells."""
        stage = self.stage
        count = 1 + max(sample for pack in packs for sample, _, _ in pack)
        samples = np.zeros(count, np.int64)
        own, cells, batch = [], [], {}
        for number, pack in enumerate(packs):
            parts, row = [], 0
            for sample, begin, end in pack:
                samples[sample] = max(samples[sample], end)
                parts.append((sample, begin, end, row, row))
                row += share.count(end) - share.count(begin)
            cells.append((number, parts))
            own.append(OwnPack(number, 0, row, np.empty(0, np.int64), np.empty(0, np.int64), apart))
            ids = torch.randint(self.bench.shape["vocab"], (1, row), device=self.bench.device)
            batch[number] = SimpleNamespace(input_ids=ids, labels=ids)
        made = [make_cell(number, number, number, 0, parts, share, samples, [0] * count, recompute, apart)
                for number, parts in cells]
        layout: Any = SimpleNamespace(
            plan=SimpleNamespace(samples=samples), forward=own, backward=own, shares=[share], head_tile=_HEAD_TILE,
            weight_packs=[[number] for number in range(len(packs))], forward_cells=[[cell] for cell in made],
            backward_cells=[[cell] for cell in made])
        groups = {0: dist.group.WORLD} if share.ranks > 1 else {}
        stage.load(layout, batch, own[0].rows, _no_channel, groups, -1)  # type: ignore[arg-type]
        stage.module = SimpleNamespace(  # type: ignore[assignment]
            layers=self.whole.layers[:layers], positions=self.whole.positions, embedding=None)
        return made

    def random(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, device=self.bench.device, dtype=self.bench.dtype)

    def layers(self, layers: int, packs: list[Slices], apart: bool, share: Share) -> list[tuple[Row, float]]:
        """Rows and seconds of F of all packs, everything kept, then of each B, last first, or of B that leaves
        gradients of weights apart and W."""
        stage = self.stage
        layers = min(layers, len(self.whole.layers))
        cells = self.load(packs, layers, apart, share)
        width = stage.gradients.buffer.element_size()
        accumulators = 2 * layers * self.weights * width
        found: list[tuple[Row, float]] = []
        for number, cell in enumerate(cells):
            stage.inputs[number] = self.random(len(cell.positions), stage.width)
            took = self.passing(partial(stage.forward_one_chunk, number, None))
            if not apart:
                found.append(({**self.row(cell, layers, share, self.bench.element), "pass": "forward"}, took))
        for number, cell in reversed(list(enumerate(cells))):
            stage.output_gradients[number] = self.random(len(cell.positions), stage.width)
            took = self.passing(partial(self.backward, number))
            row = self.row(cell, layers, share, self.bench.element + max(self.bench.element, width))
            if not apart:
                found.append(({**row, "pass": "backward", "accumulator_bytes": accumulators}, took))
                continue
            found.append(({**row, "kind": "apart"}, took))
            found.append((dict(kind="weight", tokens=row["tokens"], layers=layers, accumulator_bytes=accumulators),
                          self.bench.timed(lambda: stage.backward_weight_one_chunk(number))))
        return found

    def light(self, layers: int, packs: list[Slices]) -> list[tuple[Row, float]]:
        """Rows and seconds of F and B together of packs whose B computes again what is cheap."""
        stage, alone = self.stage, Share(0, 1, 1)
        layers = min(layers, len(self.whole.layers))
        cells = self.load(packs, layers, False, alone, "light")
        accumulators = 2 * layers * self.weights * stage.gradients.buffer.element_size()
        took = []
        for number, cell in enumerate(cells):
            stage.inputs[number] = self.random(len(cell.positions), stage.width)
            took.append(self.passing(partial(stage.forward_one_chunk, number, None)))
        for number, cell in reversed(list(enumerate(cells))):
            stage.output_gradients[number] = self.random(len(cell.positions), stage.width)
            took[number] += self.passing(partial(self.backward, number))
        return [({**self.row(cell, layers, alone, 0), "kind": "light", "accumulator_bytes": accumulators}, seconds)
                for cell, seconds in zip(cells, took)]

    def row(self, cell: Cell, layers: int, share: Share, width: int) -> Row:
        """What this rank has of a cell; `width` bytes of an element travel in the exchange of a group."""
        row: Row = dict(kind="layer", tokens=len(cell.positions), layers=layers, segments=len(cell.runs),
                        keys=sum(piece.end for piece in cell.pieces if piece.low < piece.high),
                        pairs=sum((run.high - run.low) * (run.keys - (run.high - run.low) / 2) for run in cell.runs),
                        own_pairs=sum((run.high - run.low) ** 2 / 2 for run in cell.runs),
                        weight_bytes=layers * self.weights * self.bench.element)
        if share.ranks > 1:
            others = sum(piece.end - share.count(piece.end) for piece in cell.pieces)
            shape = self.bench.shape
            row.update(kind="cp", ranks=share.ranks,
                       bytes=layers * others * 2 * shape["kv_heads"] * shape["head_dim"] * width)
        return row

    def backward(self, number: int) -> Tensor:
        """B of a pack, and what it passes on."""
        self.stage.backward_one_chunk(number)
        return self.stage.input_gradients.pop(number)

    def passing(self, unit: Callable[[], Tensor]) -> float:
        """Seconds of a unit. In a pipeline its thread sends what it made to a neighbour, who sends as much; transfers go
        on beside the next unit, which is not timed."""
        works: list[Optional[dist.Work]] = []

        def run() -> None:
            out = unit()
            if self.neighbour is not None:
                sends = [partial(dist.isend, out), partial(dist.irecv, torch.empty_like(out))]
                for work in sends if dist.get_rank() % 2 == 0 else sends[::-1]:
                    works.append(work(self.neighbour))

        seconds = self.bench.timed(run)
        for work in works:
            assert work is not None
            work.wait()
        return seconds

    def embed(self, tokens: int) -> list[tuple[Row, float]]:
        """Lookup, and the sum of its gradients."""
        stage = self.stage
        self.load([[(0, 0, tokens)]], 0, False, Share(0, 1, 1))
        stage.module.embedding = embedding = self.whole.embedding  # type: ignore[misc]
        gradient = self.random(tokens, self.bench.shape["hidden"])
        row: Row = dict(kind="embedding", tokens=tokens)

        def forward() -> None:
            with torch.no_grad():
                embedding(stage.batch[0].input_ids[0])  # type: ignore[misc]

        return [({**row, "pass": "forward"}, self.bench.timed(forward)),
                ({**row, "pass": "backward"},
                 self.bench.timed(lambda: stage._embedding(stage.layout.forward_cells[0][0], gradient)))]

    def head(self, tokens: int) -> list[tuple[Row, float]]:
        """Final norm, whole vocabulary, loss and all gradients."""
        self.load([[(0, 0, tokens)]], 0, False, Share(0, 1, 1))
        self.stage.module = self.whole
        hidden = self.random(tokens, self.bench.shape["hidden"])
        took = self.bench.timed(lambda: self.stage._head(0, hidden, self.stage.batch[0].labels[0]))
        return [(dict(kind="head", tokens=tokens), took)]

    def update(self, like: Sequence[Tensor]) -> Step:
        """AdamW of weights of these sizes, with both moments in their type, and the next step's clearing of their
        gradients."""
        weights = [torch.zeros_like(weight, requires_grad=True) for weight in like]
        # In one buffer, as a stage has them, and written: pages that never were are read for nothing.
        gradients = self.random(sum(weight.numel() for weight in weights))
        for weight, part in zip(weights, gradients.split([weight.numel() for weight in weights])):
            weight.grad = part.view_as(weight)
        optimizer = torch.optim.AdamW(weights, fused=True)
        element = self.bench.element
        touched = len(gradients) * (2 * 2 * element + element + element)

        def run() -> None:
            optimizer.step()
            gradients.zero_()

        return lambda: [(dict(kind="optimizer", bytes=touched), self.bench.timed(run))]


def traffic(bench: Bench) -> list[Step]:
    """Messages between two ranks, and collectives of all. One collective is half of gloo's all-reduce, which has no
    reduce-scatter."""
    rank, ranks = dist.get_rank(), bench.ranks
    other = rank + 1 if rank % 2 == 0 else rank - 1
    scatters = dist.get_backend() == "nccl"

    def message(size: int) -> list[tuple[Row, float]]:
        buffer = torch.zeros(size // 4, device=bench.device)

        def there_and_back() -> None:
            for first in (True, False):
                if other < ranks:
                    (dist.send if (rank % 2 == 0) == first else dist.recv)(buffer, other)

        return [(dict(kind="p2p", ranks=2, bytes=size), _median(bench, there_and_back) / 2)]

    def collective(size: int) -> list[tuple[Row, float]]:
        whole = torch.zeros(size // 4 // ranks * ranks, device=bench.device)
        part = torch.empty(len(whole) // ranks, device=bench.device)
        took = _median(bench, (lambda: dist.reduce_scatter_tensor(part, whole)) if scatters
                       else (lambda: dist.all_reduce(whole)))
        return [(dict(kind="reduce", ranks=ranks, bytes=len(part) * 4 * (ranks - 1)), took if scatters else took / 2)]

    return [partial(run, size) for run in (message, collective) for size in _MESSAGES]


def profile(model: Any, *, device: str = "cpu", dtype: Optional[str] = None, context: int = 8192, rounds: int = 5,
            budget: float = 60.0, cluster: Optional[str] = None, pipeline: bool = False,
            before: Callable[[int], Any] = lambda _: None) -> str:
    """Times a model's units and gives the text of profile.csv (docs/schemas.md).

    Layers are Hugging Face's own, with random weights; up to four are held. Where torch.distributed is initialized,
    all ranks have to call it: they are loaded at the same time, and messages and collectives are timed too.

    Args:
        model: a preset or a Hugging Face config.json, as `slimpack.plan` takes it.
        device: "cpu" or "cuda".
        dtype: of weights and activations, as "bfloat16"; None: what the model's `bytes_per_element` says.
        context: the most tokens of a unit.
        rounds: how often each unit is timed at most; the median counts.
        budget: seconds after which no round begins.
        cluster: the name of the cluster that stands for the device; None: the preset that the GPU's name holds, "cpu"
            on CPUs.
        pipeline: whether F and B send what they made to a neighbour and receive as much, for plans of several stages:
            that takes time of the thread that computes. Needs an even number of ranks.
        before: called on all ranks before each step of some units, with the number of the round, of which 0 does not
            count: what it measures is beside them.

    Raises InvalidInput before any work.
    """
    for name, value in (("context", context), ("rounds", rounds)):
        if value < 1:
            raise InvalidInput(f"{name}: must be at least 1, got {value}")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InvalidInput(f"device: must be one that is there, cpu or cuda, got {device!r}")
    found = getattr(torch, dtype or "", None)
    if dtype is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise InvalidInput(f"dtype: must be a type of torch's floating-point numbers, got {dtype!r}")
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if pipeline and ranks % 2:
        raise InvalidInput(f"pipeline: needs an even number of ranks, got {ranks}")
    # By the planner's own reader, on a device that holds any model.
    shape = plan([2], model=model, memory=1e14, effort="fast", threads=1).model
    _check_transformers()
    wanted = found or _DTYPES.get(shape["bytes_per_element"])
    if wanted is None:
        raise InvalidInput(f"dtype: must be given where a model has {shape['bytes_per_element']} bytes an element")
    place = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    bench = Bench(shape, place, wanted)
    with _process_group():
        steps = Units(bench, context, pipeline).steps + (traffic(bench) if bench.ranks > 1 else [])
        rows = bench.measure(steps, rounds, budget, before)
    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    told = {"model": shape["name"], **{key: shape[key] for key in _SHAPE}, "bytes_per_element": bench.element,
            "device": name, "cluster": cluster or _cluster_of(name, device), "ranks": bench.ranks}
    absent: Row = {"pass": "-", "ranks": 1}
    lines = [f"# {key}: {value}" for key, value in told.items()] + [",".join(COLUMNS)]
    lines += [",".join(str({**absent, **row}.get(column, 0)) for column in COLUMNS) for row in rows]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def _process_group() -> Iterator[None]:
    """A process alone has a group of itself meanwhile, which stages ask for."""
    if dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _no_channel(kind: str, group: int) -> Any:
    raise AssertionError("units are measured without messages")


def _median(bench: Bench, work: Callable[[], Any]) -> float:
    times = []
    for _ in range(_REPETITIONS + 1):
        dist.barrier()
        times.append(bench.timed(work))
    return statistics.median(times[1:])


def _check_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise InvalidInput(f"profile: needs the package transformers, which cannot be imported: {error}") from error


def _processor() -> str:
    name = "a processor"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    except OSError:
        pass
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def _cluster_of(name: str, device: str) -> str:
    found = [known for known in presets()["clusters"] if known in name.lower()]
    return "cpu" if device == "cpu" else found[0] if found else name


def main(words: Optional[Sequence[str]] = None) -> int:
    """The program. Ends with status 2 and a sentence on standard error for bad input."""
    parser = argparse.ArgumentParser(prog="python -m slimpack.torch.profile", description=__doc__)
    parser.add_argument("--model", required=True, help="a preset or a Hugging Face config.json")
    parser.add_argument("-o", "--output", default="profile.csv", help="what is written [profile.csv]")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--dtype", help="of weights and activations [the model's]")
    parser.add_argument("--context", type=int, default=8192, help="most tokens of a unit [8192]")
    parser.add_argument("--rounds", type=int, default=5, help="how often a unit is timed at most [5]")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds after which no round begins [60]")
    parser.add_argument("--cluster", help="the cluster that stands for the device [the preset of the GPU, or cpu]")
    parser.add_argument("--pipeline", action="store_true", help="F and B send to a neighbour, for plans of several stages")
    options = vars(parser.parse_args(words))
    output = options.pop("output")
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1  # torchrun's
    try:
        if not os.access(os.path.dirname(output) or ".", os.W_OK):
            raise InvalidInput(f"output: cannot write {output!r}")
        if together:
            if options["device"] == "cuda" and torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("nccl" if options["device"] == "cuda" else "gloo")
        text = profile(**options)
        if not together or dist.get_rank() == 0:
            _core.write_text(output, text)
            print(f"{output}: {sum(not line.startswith('#') for line in text.splitlines()) - 1} measurements")
    except InvalidInput as error:
        print(f"slimpack: {error}", file=sys.stderr)
        return 2
    finally:
        if together and dist.is_initialized():
            dist.destroy_process_group()
            gc.collect()  # else gloo's threads may outlive the interpreter, which then aborts
    return 0


if __name__ == "__main__":
    sys.exit(main())
