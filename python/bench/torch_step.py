# SPDX-License-Identifier: Apache-2.0
"""Steps of planned pipelines beside torch's own schedules, on two processes of this machine.

    python python/bench/torch_step.py --settings 6 --rounds 5

Prices are fitted to a profile made here first. Settings are drawn by seed. All contenders train the same model on the
same documents, with the same attention, and take turns; their losses must agree. Prints, for each setting, medians with
the least and most, and times over slimpack's, measured and predicted.
"""
from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import torch_plans  # noqa: E402

import slimpack  # noqa: E402
from slimpack.balance import micro_batches  # noqa: E402
from slimpack.torch import PlanStages, collate, run_plan  # noqa: E402
from slimpack.torch._attention import Rows, Store, running  # noqa: E402
from slimpack.torch._layout import Share, cell_of  # noqa: E402
from slimpack.torch._model import StageModule, parts_of, use_slices  # noqa: E402
from slimpack.torch.profile import profile  # noqa: E402

SIZES = dict(vocab_size=1024, hidden_size=256, intermediate_size=688, num_hidden_layers=8, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=4096, rms_norm_eps=1e-6)
PLANNERS = {1: ("megatron", "slimpipe-order", "kk", "slimpack"), 2: ("megatron-interleaved", "slimpipe-order", "kk", "slimpack")}
SETS = {"web": (5.8, 1.1), "long tail": (5.2, 1.7), "code": (6.4, 0.9), "even": (6.2, 0.2)}


def draw(seed: int) -> dict[str, Any]:
    """A setting: lengths of one step, context and chunks."""
    rng = np.random.default_rng(seed)
    name = list(SETS)[seed % len(SETS)]
    mean, sigma = SETS[name]
    context, tokens = int(rng.choice([2048, 4096])), int(rng.choice([4096, 8192]))
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(np.clip(rng.lognormal(mean, sigma), 16, min(context, tokens // 2))))
    return dict(name=name, lengths=lengths, context=context, chunks=int(rng.choice([1, 2])))


class Padded(torch.nn.Module):
    """A stage of torch's own runtime: whole documents packed without padding between them, rows filled up at the end."""

    def __init__(self, module: StageModule, packs: list[list[int]], rows: int) -> None:
        super().__init__()
        self.module, self.packs, self.rows = module, packs, rows

    def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
        number = int(number)
        cell = cell_of([(0, length) for length in self.packs[number]])
        rows = Rows(cell, Share(0, 1, 1), Store(), None, np.array(self.packs[number]), False)
        positions = torch.zeros(1, self.rows, dtype=torch.long)
        positions[0, : len(cell.positions)] = torch.from_numpy(cell.positions)
        hidden = x if self.module.embedding is None else self.module.embedding(x)
        rotary = self.module.positions(hidden, positions)
        with running(rows):
            for layer in self.module.layers:
                hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary)
        return self.module.logits(hidden[0])[None] if self.module.has_head else hidden


class Torch:
    """torch's own schedule, with micro-batches of as many rows each."""

    def __init__(self, model: Any, setting: dict[str, Any], documents: dict[int, Any], count: int, rank: int) -> None:
        lengths, chunks = setting["lengths"], setting["chunks"]
        cap = max(max(lengths), -(-sum(lengths) // count))
        packs = micro_batches(lengths, cap, min_num_micro_batch=count, num_batches_divided_by=2)
        while len(packs) > count:  # fewer and larger ones
            cap = int(cap * 1.02) + 1
            packs = micro_batches(lengths, cap, min_num_micro_batch=count, num_batches_divided_by=2)
        rows = max(sum(lengths[i] for i in pack) for pack in packs)
        self.count = len(packs)
        use_slices(model)
        layers, total = len(parts_of(model).layers), 2 * chunks
        stages = []
        for chunk in range(chunks):
            index = chunk * 2 + rank
            module = StageModule(model, index * layers // total, (index + 1) * layers // total, index == 0, index == total - 1)
            for weight in module.parameters():
                weight.grad = torch.zeros_like(weight)
            ids = torch.zeros(1, rows, dtype=torch.long)
            hidden, logits = (torch.zeros(1, rows, SIZES[width], requires_grad=True) for width in ("hidden_size", "vocab_size"))
            stages.append(PipelineStage(Padded(module, [[lengths[i] for i in pack] for pack in packs], rows), index, total,
                                        torch.device("cpu"), input_args=(ids if index == 0 else hidden,),
                                        output_args=(logits if index == total - 1 else hidden,)))
        self.weights = [weight for stage in stages for weight in stage.submod.parameters()]
        targets = sum(length - 1 for length in lengths)

        def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(logits[0], labels[0], ignore_index=-100, reduction="sum") / targets

        kind: Any = Schedule1F1B if chunks == 1 else ScheduleInterleaved1F1B
        self.schedule = kind(stages[0] if chunks == 1 else stages, self.count, loss_fn=loss, scale_grads=False)
        self.ids, self.labels = [], []
        for pack in packs:
            ids = torch.zeros(1, rows, dtype=torch.long)
            labels = torch.full((1, rows), -100)
            at = 0
            for i in pack:
                ids[0, at : at + lengths[i]] = torch.from_numpy(documents[i])
                labels[0, at : at + lengths[i] - 1] = torch.from_numpy(documents[i][1:])
                at += lengths[i]
            self.ids.append(ids)
            self.labels.append(labels)
        self.rank = rank

    def step(self) -> float:
        for weight in self.weights:
            weight.grad.zero_()
        losses: Optional[list[torch.Tensor]] = [] if self.rank == 1 else None
        several = [{"number": torch.tensor(i)} for i in range(self.count)]
        self.schedule.step(arg_mbs=[(ids,) if self.rank == 0 else () for ids in self.ids], kwarg_mbs=several,
                           target_mbs=self.labels if self.rank == 1 else None, losses=losses, return_outputs=False)
        total = torch.stack(losses).sum().detach() if losses else torch.zeros(())
        dist.all_reduce(total)
        return float(total)


def measure(rank: int, config: str, cost: str, cluster: str, seeds: list[int], rounds: int) -> list[dict[str, Any]]:
    """The table's rows."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    whole = LlamaForCausalLM(LlamaConfig(**SIZES))
    told = []
    for seed in seeds:
        setting = draw(seed)
        rng = np.random.default_rng(seed)
        documents = {i: rng.integers(0, SIZES["vocab_size"], n) for i, n in enumerate(setting["lengths"])}
        request: dict[str, Any] = dict(model=config, cluster=cluster, cost=cost, pp=2, chunks=setting["chunks"],
                                       context=setting["context"], granularity=32, runtime="torch", threads=1)
        run: dict[str, Any] = {}
        predicted: dict[str, float] = {}
        stages = None
        for planner in PLANNERS[setting["chunks"]]:
            try:
                plan = slimpack.plan(setting["lengths"], planner=planner, **request)
            except (slimpack.Infeasible, slimpack.InvalidInput) as error:
                if rank == 0:
                    print(f"setting {seed}: {planner} has no plan: {error}", flush=True)
                continue
            if stages is None:
                stages = PlanStages(copy.deepcopy(whole), plan)
            batch = collate(plan, documents, 0)
            run[planner] = lambda plan=plan, batch=batch, stages=stages: run_plan(plan, stages, batch)
            predicted[planner] = plan.iteration_s
        own = {}
        for count in (2, 4, 8, 16):
            if count * 2 <= len(setting["lengths"]):
                own[count] = Torch(copy.deepcopy(whole), setting, documents, count, rank)
        for count, contender in own.items():  # the fastest of two turns each stands for torch
            contender.step()
        once = {count: min(timed(contender.step)[0] for _ in range(2)) for count, contender in own.items()}
        count = min(once, key=lambda c: once[c])
        run[f"torch's {'1F1B' if setting['chunks'] == 1 else 'interleaved 1F1B'}, {own[count].count} micro-batches"] = own[count].step
        times: dict[str, list[float]] = {name: [] for name in run}
        losses = {name: call() for name, call in run.items()}  # warm
        for _ in range(rounds):
            for name, call in run.items():
                times[name].append(timed(call)[0])
        assert max(losses.values()) - min(losses.values()) < 1e-4 * max(losses.values()), losses
        told.append(dict(setting=seed, **{key: setting[key] for key in ("name", "context", "chunks")},
                         samples=len(setting["lengths"]), tokens=sum(setting["lengths"]), times=times, predicted=predicted))
    return told


def timed(call: Any) -> tuple[float, float]:
    """Seconds of a step, the same on both ranks, and its loss."""
    dist.barrier()
    start = time.perf_counter()
    loss = call()
    took = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took), loss


def profiled(rank: int, config: str, context: int, budget: float) -> str:
    return profile(config, context=context, budget=budget)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--settings", type=int, default=6)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--budget", type=float, default=60.0, help="seconds of the profile [60]")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config, cost, cluster = (str(folder / file) for file in ("config.json", "cost.json", "cluster.json"))
        Path(config).write_text(json.dumps(dict(SIZES, architectures=["LlamaForCausalLM"], model_type="llama",
                                                torch_dtype="float32", rope_theta=10000.0)))
        Path(cluster).write_text(json.dumps(dict(base="h100", name="cpu", memory=16e9, reserved=1e9)))
        text = told(torch_plans.spawn(2, profiled, config, 4096, asked.budget, timeout=600))[0]
        (folder / "profile.csv").write_text(text)
        fit = subprocess.run([sys.executable, "-m", "slimpack", "calibrate", folder / "profile.csv", "-o", cost], check=True,
                             capture_output=True, text=True)
        print(fit.stdout)
        seeds = list(range(asked.seed, asked.seed + asked.settings))
        rows = told(torch_plans.spawn(2, measure, config, cost, cluster, seeds, asked.rounds, timeout=3000))[0]
    print("| setting | schedule | seconds (least to most) | over slimpack's | predicted | predicted over measured |")
    print("|---|---|---:|---:|---:|---:|")
    for row in rows:
        own = statistics.median(row["times"]["slimpack"])
        label = (f"{row['setting']}: {row['name']}, {row['samples']} documents, {row['tokens']} tokens, "
                 f"context {row['context']}, chunks {row['chunks']}")
        for contender, times in sorted(row["times"].items(), key=lambda one: statistics.median(one[1])):
            median, predicted = statistics.median(times), row["predicted"].get(contender)
            guess = f"{predicted / row['predicted']['slimpack']:.3f} | {predicted / median:.2f}" if predicted else "| "
            print(f"| {label} | {contender} | {median:.2f} ({min(times):.2f} to {max(times):.2f}) | {median / own:.3f} | {guess} |")
            label = ""


def told(found: list[Any]) -> list[Any]:
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


if __name__ == "__main__":
    main()
