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
from ._layout import OwnPack, Share, cell_of
from ._model import StageModule, use_slices
from ._stage import PlanStage

COLUMNS = ("kind", "pass", "tokens", "pairs", "segments", "layers", "ranks", "bytes", "seconds", "keys",
           "accumulator_bytes", "weight_bytes")
_SHAPE = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
_DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
_HEAD_TILE = 1024  # rows whose logits are held at once
_MESSAGES = tuple(1 << power for power in range(14, 25, 2))  # bytes
_REPETITIONS = 9  # of a message

Row = dict[str, Union[str, int, float]]
Unit = Callable[[], list[tuple[Row, float]]]  # runs once, and gives rows with their seconds


def slices_to_measure(context: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Layers, and the slices of a pack as (prefix, length): one sample in slices with growing prefixes, coarse and
    fine; 1 to 256 whole samples; both together; up to `context` tokens."""
    most = max(context, 128)

    def part(parts: float) -> int:
        return max(int(most / parts), 2)

    def about(count: int, length: int) -> list[tuple[int, int]]:
        # From a half to one and a half of `length`: documents fill no tiles.
        return [(0, max(2, length // 2 + i * 7919 % (length + 1))) for i in range(count)]

    yield from ((1, [(i * part(4), part(4))]) for i in range(4))
    yield from ((1, [(i * part(16), part(16))]) for i in range(8))
    yield from ((2, [(i * part(8), part(8))]) for i in (0, 1, 2, 3, 7))
    for layers, length in ((1, part(1)), (1, part(30)), (1, part(60)), (2, part(128)), (2, part(3)), (4, part(8))):
        yield layers, [(0, length)]
    for layers, count, length in ((1, 128, part(512)), (1, 64, part(200)), (2, 4, part(8)), (2, 16, part(32)),
                                  (2, 64, part(128)), (2, 256, part(1000)), (4, 32, part(64))):
        yield layers, about(count, length)
    yield 2, [*about(32, part(128)), (0, part(2))]
    yield 4, [*about(50, part(400)), (part(2), part(4))]
    yield 1, [*about(16, part(100)), (part(4), part(4)), (0, part(8))]


class Bench:
    """Where one rank measures. Every unit runs once a round, on all ranks at the same time."""

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

    def measure(self, units: Sequence[Unit], rounds: int, budget: float) -> list[Row]:
        """The rows of all units with the median over rounds, the mean of that over ranks, sorted by kind and pass. No
        round but the first begins that would end after `budget` seconds."""
        start = time.perf_counter()
        measured: list[list[tuple[Row, float]]] = []
        for round_ in range(rounds + 1):
            begin = time.perf_counter()
            measured.append([])
            for unit in units:
                if self.ranks > 1:
                    dist.barrier()
                measured[-1] += unit()
            now = time.perf_counter()
            if round_ > 0 and self._slowest(now - start + now - begin) > budget:
                break
        # The first round touched memory for the first time.
        times = [statistics.median(took for _, took in found) for found in zip(*measured[1:])]
        seconds = torch.tensor(times, dtype=torch.float64, device=self.device)
        if self.ranks > 1:
            dist.all_reduce(seconds)
        rows = [{**row, "seconds": max(took / self.ranks, 1e-9)}
                for (row, _), took in zip(measured[0], seconds.tolist())]
        kinds = ("layer", "apart", "weight", "embedding", "head", "optimizer")
        return sorted(rows, key=lambda row: (kinds.index(str(row["kind"])), row.get("pass") == "backward"))

    def _slowest(self, seconds: float) -> float:
        if self.ranks == 1:
            return seconds
        slowest = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.item()


class Units:
    """Units of `run_plan` on a stage of Hugging Face's own Llama with random weights, and updates."""

    def __init__(self, bench: Bench, context: int) -> None:
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
        self.units: list[Unit] = [partial(self.layers, *one) for one in slices_to_measure(context)]
        counts = sorted({max(context // parts, 2) for parts in (96, 64, 48, 32, 24, 16, 12, 8, 6, 4)})
        self.units += [partial(run, count) for run in (self.embed, self.head) for count in counts]
        for count in sorted({min(count, most) for count in (1, 2, 4)}):
            self.units.append(self.update([one for layer in self.whole.layers[:count] for one in layer.parameters()]))
        self.units.append(self.update([model.model.embed_tokens.weight]))

    def load(self, slices: list[tuple[int, int]], layers: int, apart: bool) -> OwnPack:
        """Gives the stage a step of one pack. Keys of prefixes are there already."""
        shape, stage = self.bench.shape, self.stage
        cell = cell_of(slices)._replace(apart=apart)
        samples = np.array([prefix + length for prefix, length in slices])
        rows = len(cell.positions)
        pack = OwnPack(0, 0, rows, np.repeat(np.arange(len(slices)), [n for _, n in slices]), cell.positions, apart)
        layout: Any = SimpleNamespace(
            plan=SimpleNamespace(samples=samples), forward=[pack], backward=[pack], weight_packs=[[0]],
            forward_cells=[[cell]], backward_cells=[[cell]], shares=[Share(0, 1, 1)], head_tile=_HEAD_TILE)
        ids = torch.randint(shape["vocab"], (1, rows), device=self.bench.device)
        batch: Any = {0: SimpleNamespace(input_ids=ids, labels=ids)}
        stage.load(layout, batch, rows, _no_channel, {}, -1)
        stage.module = SimpleNamespace(  # type: ignore[assignment]
            layers=self.whole.layers[:layers], positions=self.whole.positions, embedding=None)
        for i, (prefix, length) in enumerate(slices):
            for layer in range(layers if prefix else 0):
                stage.store.kept[layer, i] = Keys(*self.random(2, prefix + length, shape["kv_heads"],
                                                               shape["head_dim"]))
        return pack

    def random(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, device=self.bench.device, dtype=self.bench.dtype)

    def layers(self, layers: int, slices: list[tuple[int, int]]) -> list[tuple[Row, float]]:
        """Rows and seconds of F, B, B that leaves gradients of weights apart, and W of a pack, everything kept."""
        bench, stage, hidden = self.bench, self.stage, self.bench.shape["hidden"]
        layers = min(layers, len(self.whole.layers))
        found: list[tuple[Row, float]] = []
        for apart in (False, True):
            pack = self.load(slices, layers, apart)
            accumulators = 2 * layers * self.weights * stage.gradients.buffer.element_size()
            held = dict(tokens=pack.rows, layers=layers)
            row: Row = dict(held, kind="layer", segments=len(slices),
                            keys=sum(prefix + length for prefix, length in slices),
                            pairs=sum(length * (prefix + length / 2) for prefix, length in slices),
                            weight_bytes=layers * self.weights * bench.element)
            stage.inputs[0] = self.random(pack.rows, hidden)
            forward = bench.timed(lambda: stage.forward_one_chunk(0, None))
            stage.output_gradients[0] = self.random(pack.rows, hidden)
            backward = bench.timed(lambda: stage.backward_one_chunk(0))
            if apart:
                found.append(({**row, "kind": "apart"}, backward))
                found.append((dict(held, kind="weight", accumulator_bytes=accumulators),
                              bench.timed(lambda: stage.backward_weight_one_chunk(0))))
            else:
                found.append(({**row, "pass": "forward"}, forward))
                found.append(({**row, "pass": "backward", "accumulator_bytes": accumulators}, backward))
        return found

    def embed(self, tokens: int) -> list[tuple[Row, float]]:
        """Lookup, and the sum of its gradients."""
        stage = self.stage
        self.load([(0, tokens)], 0, False)
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
        self.load([(0, tokens)], 0, False)
        self.stage.module = self.whole
        hidden = self.random(tokens, self.bench.shape["hidden"])
        took = self.bench.timed(lambda: self.stage._head(0, hidden, self.stage.batch[0].labels[0]))
        return [(dict(kind="head", tokens=tokens), took)]

    def update(self, like: Sequence[Tensor]) -> Unit:
        """AdamW of weights of these sizes, with both moments in their type."""
        weights = [torch.zeros_like(weight, requires_grad=True) for weight in like]
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        optimizer = torch.optim.AdamW(weights, fused=True)
        element = self.bench.element
        touched = sum(weight.numel() for weight in weights) * (2 * 2 * element + element + element)
        return lambda: [(dict(kind="optimizer", bytes=touched), self.bench.timed(optimizer.step))]


def traffic(bench: Bench) -> list[Row]:
    """Messages between two ranks, and collectives of all, as rank 0 sees them. One collective is half of gloo's
    all-reduce, which has no reduce-scatter."""
    rank, ranks = dist.get_rank(), bench.ranks
    rows: list[Row] = []
    other = rank + 1 if rank % 2 == 0 else rank - 1
    for size in _MESSAGES:
        buffer = torch.zeros(size // 4, device=bench.device)

        def there_and_back() -> None:
            for first in (True, False):
                if other < ranks:
                    (dist.send if (rank % 2 == 0) == first else dist.recv)(buffer, other)

        rows.append(dict(kind="p2p", ranks=2, bytes=size, seconds=_median(bench, there_and_back) / 2))
    for size in _MESSAGES:
        whole = torch.zeros(size // 4 // ranks * ranks, device=bench.device)
        part = torch.empty(len(whole) // ranks, device=bench.device)
        scatters = dist.get_backend() == "nccl"
        took = _median(bench, (lambda: dist.reduce_scatter_tensor(part, whole)) if scatters
                       else (lambda: dist.all_reduce(whole)))
        rows.append(dict(kind="reduce", ranks=ranks, bytes=len(part) * 4 * (ranks - 1),
                         seconds=took if scatters else took / 2))
    return rows


def profile(model: Any, *, device: str = "cpu", dtype: Optional[str] = None, context: int = 8192, rounds: int = 5,
            budget: float = 60.0, cluster: Optional[str] = None) -> str:
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
    # By the planner's own reader, on a device that holds any model.
    shape = plan([2], model=model, memory=1e14, effort="fast", threads=1).model
    _check_transformers()
    wanted = found or _DTYPES.get(shape["bytes_per_element"])
    if wanted is None:
        raise InvalidInput(f"dtype: must be given where a model has {shape['bytes_per_element']} bytes an element")
    place = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    bench = Bench(shape, place, wanted)
    with _process_group():
        rows = bench.measure(Units(bench, context).units, rounds, budget)
    rows += traffic(bench) if bench.ranks > 1 else []
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
