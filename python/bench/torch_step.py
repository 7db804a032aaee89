#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole training steps on two CPU processes, each plan and torch's own schedules in turns.

    python python/bench/torch_step.py FOLDER --settings 8 --rounds 5
    python python/bench/torch_step.py FOLDER --settings 2 --rounds 12 --every --degrees dp2

profiles the machine, calibrates prices, plans settings drawn by seed, runs them, and prints a markdown table: medians
(10th to 90th percentile) of each contender's step with its update by AdamW, the ratio to slimpack's plan as measured
and as predicted, and predicted over measured time. Contenders run in turns that are shuffled anew each round. Before
and behind each step both processes run the same layers in PyTorch alone: a measured ratio is of times over theirs, so
that a machine that changes its speed favours none. Rounds go on until the median of each contender's times over theirs
is known to --reference-limit; where after --tries times as many as are wanted it is not, where half the interquartile
range of the reference's times is more than --reference-spread of their median, or where the profiles do not agree, there is no row of the setting but one sentence that says why, and the status is 1. Rivals are three and the one
of all others that predicts best, or with --every all whose plan run_plan executes. *By the reference* is predicted over
measured time, times taken over those of the same layers in turns with the steps of the profiles; a last line counts
how many of these are within 3 %, and has their medians by planner. torch's schedules run the same layers and the same
attention on whole documents without padding between them; micro-batches are padded at their end to the common size that
torch needs, and the fastest of several numbers of them counts; a setting of one document has none of them, and without
a pipeline there are none. All losses of a setting have to agree. A core whose process waits runs the same layers at the
idle policy.

FOLDER keeps what was made: a call goes on where one before it ended. Where a machine can be had to oneself for a
while at a time only: `--only prices`, then `--only plans`, which needs no quiet, then `--only steps --gate FILE`, whose
timed steps begin within two seconds of the last change of FILE, at last `--only table`.
"""
from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import slimpack
from slimpack import Plan
from slimpack.torch import PlanStages, collate, run_plan
from slimpack.torch.profile import profile
from torch_whole import WholeSteps, best_fit

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))
import reference  # noqa: E402
from trainer import agreement, at_one_speed, disagreement, row_medians  # noqa: E402

VOCABULARY = 1024
SIZES = dict(vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=8,
             num_attention_heads=4, num_key_value_heads=4, head_dim=64, max_position_embeddings=8192,
             rms_norm_eps=1e-6, tie_word_embeddings=False)
# Rates are overruled by the prices that the profile gives.
CLUSTER = dict(base="h100", name="cpu", devices_per_node=2, memory=64e9, reserved=1e9, peak_flops=1e11,
               matrix_flops=8e10, attention_forward_flops=4e10, attention_backward_flops=4e10,
               memory_bytes_per_s=1e10, collective_compute=0.85, inside=dict(bytes_per_s=2e9, latency_s=5e-5), kernel_s=1e-5)
FIXED = ["megatron", "megatron-interleaved", "slimpipe-order"]
# glibc gives no memory back to the system, whose pages would have to be cleared again: docs/torch.md, "On CPUs".
MALLOC = dict(MALLOC_MMAP_THRESHOLD_="1000000000", MALLOC_TRIM_THRESHOLD_="100000000000", MALLOC_TOP_PAD_="67108864")
_PR_SET_PDEATHSIG = 1
DEGREES = {"pp2": dict(pp=2), "dp2": dict(dp=2)}
OTHERS = ["megatron-cp", "hybrid-cp", "fcp", "flexsp", "kk", "bfd", "dynapipe", "chunkflow", "wlb-llm", "infinipipe",
          "slimpipe", "zeppelin"]


def draw(seed: int, tokens: int) -> dict[str, Any]:
    """A setting: lengths of one step of about so many tokens, and what is asked for them."""
    rng = np.random.default_rng(seed)
    context = int(rng.choice([2048, 4096]))
    shape = ["log-normal", "webpages", "wikipedia_en", "longsft_mix", "long tail"][seed % 5]
    if shape == "log-normal":
        drawn = rng.lognormal(5.5, 1.0, 4000)
    elif shape == "long tail":
        drawn = 60 * (1 + rng.pareto(1.1, 4000))
    else:
        drawn = np.loadtxt(ROOT / "examples/data" / f"{shape}.lengths")
        drawn = rng.permutation(drawn) * context / np.quantile(drawn, 0.999)
    drawn = np.clip(drawn, 8, context).astype(int)
    wanted = int(tokens * rng.choice([0.6, 1.0, 1.6]))
    count = int(np.searchsorted(np.cumsum(drawn), wanted)) + 1
    return dict(seed=seed, shape=shape, context=context, chunks=int(rng.choice([1, 2, 4])), lengths=drawn[:count].tolist())


def model(sizes: dict[str, Any], seed: int = 0) -> Any:
    """A Llama in fp32, the same weights in every process."""
    import transformers

    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).float()


def request_of(folder: Path, degrees: str) -> dict[str, Any]:
    """What slimpack.plan takes for the model, machine and prices in a folder."""
    return dict(model=str(folder / "model.json"), cluster=str(folder / "cluster.json"),
                cost=str(folder / f"cost-{degrees}.json"), **DEGREES[degrees],
                runtime="torch", optimizer="replicated", memory=60e9, threads=1)


def measure_prices(folder: Path, degrees: str, sizes: dict[str, Any], context: int, count: int, budget: float) -> None:
    """Writes them, from the medians of profiles of two loaded processes at one speed of the machine, what the fixed work
    takes in turns with these, and how the profiles agree."""
    config = dict(sizes, architectures=["LlamaForCausalLM"], model_type="llama", rope_theta=10000.0,
                  torch_dtype="float32")
    model = folder / "model.json"
    model.write_text(json.dumps(config))
    (folder / "cluster.json").write_text(json.dumps(CLUSTER))

    profiles, beside = [], []
    for _ in range(count):
        lines, seconds = on_two_ranks(measure_profile, str(model), sizes, context, budget / count, "pp" in DEGREES[degrees])
        profiles.append(lines)
        beside.append(seconds)
    measured = folder / f"profile-{degrees}.csv"
    measured.write_text("".join(row_medians(at_one_speed(profiles, beside))))
    done = subprocess.run([sys.executable, "-m", "slimpack", "calibrate", measured, "-o", folder / f"cost-{degrees}.json"],
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    print(done.stdout, file=sys.stderr)
    agreed = agreement(profiles, beside)
    (folder / f"profiles-{degrees}.json").write_text(json.dumps(agreed))
    (folder / f"beside-{degrees}.json").write_text(json.dumps(sum(beside, [])))


def measure_profile(rank: int, model: str, sizes: dict[str, Any], context: int, budget: float,
                    pipeline: bool) -> tuple[list[str], list[float]]:
    """Lines of a profile of both ranks, and seconds of the fixed work before every third of its steps."""
    fixed, taken, steps = _fixed(sizes), [], itertools.count()

    def before(round_: int) -> None:
        if next(steps) % 3 == 0:
            seconds = _timed(fixed, None)[0]
            if round_ > 0:
                taken.append(seconds)

    text = profile(model, dtype="float32", context=context, rounds=99, budget=budget, pipeline=pipeline, before=before)
    return text.splitlines(keepends=True), taken


def plans_of(setting: dict[str, Any], asked: dict[str, Any], effort: str, every: bool) -> dict[str, Plan]:
    """Plans by planner: slimpack's, three rivals, and of all other rivals the one that predicts best, or every one."""
    def plan(planner: str, **options: Any) -> Optional[Plan]:
        try:
            return slimpack.plan(setting["lengths"], context=setting["context"], planner=planner, effort=effort,
                                 granularity=32, **asked, **options)
        except (slimpack.Infeasible, slimpack.InvalidInput):
            return None

    def best(planner: str) -> Optional[Plan]:
        # Interleaving is what that rival is; all others have the same freedom as slimpack.
        free = [n for n in (1, 2, 4) if n <= setting["chunks"]] if asked.get("pp", 1) > 1 else [1]
        made = [plan(planner)] if planner == "megatron-interleaved" else [plan(planner, chunks=n) for n in free]
        return min((one for one in made if one is not None), key=lambda one: one.iteration_s, default=None)

    found = {name: best(name) for name in [*FIXED, "slimpack", *OTHERS]}
    others = [name for name in OTHERS if found[name] is not None]
    others.sort(key=lambda name: found[name].iteration_s)  # type: ignore[union-attr]
    named = [*FIXED, *(others if every else others[:1]), "slimpack"]
    return {name: made for name in named if (made := found[name]) is not None}


def measure(rank: int, setting: dict[str, Any], known: dict[str, Any], enough: Callable[[dict[str, Any]], bool],
            gate: Optional[Path], sizes: dict[str, Any]) -> dict[str, Any]:
    """What is known of a setting with rounds added to it until it is enough: {"torch": numbers of micro-batches,
    "losses": by contender, "seconds": by contender, one a round, "reference": times of the fixed work, one more a
    round than there are contenders, "turns": contenders by round, shuffled}. The slower rank's time counts."""
    rng = np.random.default_rng(setting["seed"])
    documents = [rng.integers(0, sizes["vocab_size"], length) for length in setting["lengths"]]
    contenders: dict[str, Callable[[], float]] = {}
    found: dict[str, Any] = known or {"torch": {}, "losses": {}, "seconds": {}, "reference": [], "turns": []}
    for chunks, name in ((1, "torch 1F1B"), (2, "torch Interleaved1F1B")):
        if setting["degrees"] != "pp2":
            break
        whole = WholeSteps(model(sizes), chunks)
        choices = {len(bins): bins for bins in best_fit(setting["lengths"], multiple=2)}
        if not choices:  # one document cannot be two micro-batches
            break
        if name not in found["torch"]:
            whole.step(documents, next(iter(choices.values())))()
            found["torch"][name] = min(choices, key=lambda count: _timed(whole.step(documents, choices[count]), gate)[0])
        count = found["torch"][name]
        contenders[f"{name}, {count} micro-batches"] = _with_update(whole.step(documents, choices[count]),
                                                                     whole.parameters())
    for name, made in setting["plans"].items():
        plan = Plan.from_dict(made)
        stages = PlanStages(model(sizes), plan)
        batch = collate(plan, documents, stages.dp_rank)
        contenders[name] = _with_update(lambda p=plan, s=stages, b=batch: run_plan(p, s, b), stages.parameters())
    for name, step in contenders.items():
        found["losses"].setdefault(name, step())  # before any update
        found["seconds"].setdefault(name, [])
    fixed = _fixed(sizes)
    fixed()
    while not enough(found):
        turns = list(contenders)
        random.Random(f"{setting['seed']} {len(found['turns'])}").shuffle(turns)
        found["reference"].append(_timed(fixed, gate)[0])
        for name in turns:
            found["seconds"][name].append(_timed(contenders[name], gate)[0])
            found["reference"].append(_timed(fixed, gate)[0])
        found["turns"].append(turns)
    return found


def _fixed(sizes: dict[str, Any]) -> Callable[[], float]:
    """The same work whenever it is called: layers of the model, forward and backward, as PyTorch alone runs them."""
    layers = model(dict(sizes, num_hidden_layers=2)).model
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(sizes["vocab_size"], (1, 512), generator=draw)

    def run() -> float:
        for _ in range(2):
            layers(input_ids=ids, use_cache=False).last_hidden_state.sum().backward()
            layers.zero_grad(set_to_none=False)
        return 0.0

    return run


def _with_update(step: Callable[[], float], parameters: list[Any]) -> Callable[[], float]:
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)

    def run() -> float:
        loss = step()
        optimizer.step()
        return loss

    return run


def _timed(step: Callable[[], float], gate: Optional[Path]) -> tuple[float, float]:
    while gate is not None and dist.get_rank() == 0:
        if gate.exists() and time.time() - gate.stat().st_mtime < 2:
            break
        time.sleep(0.05)
    dist.barrier()
    begin = time.perf_counter()
    loss = step()
    took = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item(), loss


def load_cores(sizes: dict[str, Any]) -> None:
    """Until this process ends both cores of `on_two_ranks` run the fixed work whenever their process waits, at the idle
    policy, which gives way at once: a GPU is ready when a message comes, and a core that sleeps is woken late. Nothing where
    processes have no core to themselves, or the system has no idle policy."""
    cores = _cores()
    if not cores or not hasattr(os, "SCHED_IDLE"):
        return
    context = multiprocessing.get_context("spawn")
    begun = [context.Event() for _ in range(2)]
    for rank in range(2):
        context.Process(target=_load, args=(cores[rank], os.getpid(), begun[rank], sizes), daemon=True).start()
    for one in begun:
        if not one.wait(120):
            raise RuntimeError("a core could not be loaded within two minutes")


def _load(core: int, parent: int, begun: Any, sizes: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {core})
    fixed = _fixed(sizes)
    fixed()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    begun.set()
    while os.getppid() == parent:  # also where that is killed
        fixed()


def _cores() -> list[int]:
    """Where there are enough of them those that processes keep to, by rank, else none."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return cores[:2] if len(cores) > 1 else []


def on_two_ranks(call: Callable[..., Any], *arguments: Any) -> Any:
    """What `call(rank, *arguments)` gives on rank 0 of two gloo processes with one thread each that computes. Where there
    are cores for it each process keeps to one, so that its transfers take time of its own units and of no other's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "told")
        multiprocessing.spawn(_enter, (port, path, call, arguments), nprocs=2)
        return torch.load(path, weights_only=False)


def _enter(rank: int, port: int, path: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    if sys.platform == "linux":  # ends with its parent, however that ends: it would run beside the next measurement
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    if cores := _cores():
        os.sched_setaffinity(0, {cores[rank]})
    dist.init_process_group("gloo")
    told = call(rank, *arguments)
    if rank == 0:
        torch.save(told, path)
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()  # else gloo's threads may outlive the interpreter, which then aborts


def beside(found: dict[str, Any], name: str) -> list[list[float]]:
    """Of each of a contender's times, those of the reference before and behind it."""
    turns = found.get("turns") or [list(found["seconds"])] * len(found["seconds"][name])
    width = len(found["seconds"]) + 1
    return [found["reference"][number * width + one.index(name):][:2] for number, one in enumerate(turns)]


def ratios(found: dict[str, Any], name: str) -> list[float]:
    """A contender's times over the mean of the reference's before and behind each."""
    return [seconds / statistics.mean(turns) for seconds, turns in zip(found["seconds"][name], beside(found, name))]


class Enough:
    """Whether a setting has been measured often enough; the same on every rank, for all know the same times."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.rounds, self.tries, self.limit = asked.rounds, asked.tries, asked.reference_limit / 100
        self.spread = asked.reference_spread / 100

    def __call__(self, found: dict[str, Any]) -> bool:
        taken = len(found["seconds"]["slimpack"])
        return taken >= self.tries * self.rounds or (taken > 0 and self.why_not(found) is None)

    def why_not(self, found: dict[str, Any]) -> Optional[str]:
        """Why nothing may be said of a setting; nothing where it may."""
        every = {name: ratios(found, name) for name in found["seconds"]}
        return reference.unknown(every, self.rounds, self.limit)[1] or reference.unsteady(found["reference"], self.spread)

    def why_not_priced(self, beside_profile: list[float], agreed: dict[str, list[float]]) -> Optional[str]:
        """Why nothing may be said of prices and what they predict; nothing where it may."""
        doubt = reference.doubt(beside_profile)
        if doubt <= self.limit:
            vary = reference.unsteady(beside_profile, self.spread)
            return f"beside the profiles {vary}" if vary else disagreement(agreed, self.limit)
        return (f"the median of the reference beside the profiles is known to {100 * doubt:.2g} %, wanted are "
                f"{100 * self.limit:g} %, so the machine did not keep its speed and nothing is reported")


def check_losses(found: dict[str, Any]) -> None:
    """Raises RuntimeError where those of a setting differ."""
    losses = found["losses"].values()
    if max(losses) - min(losses) > 1e-4 * min(losses):
        raise RuntimeError(f"losses differ: {found['losses']}")


def predictions_of(setting: dict[str, Any], found: dict[str, Any], beside_profile: list[float]) -> dict[str, list[float]]:
    """Predicted over measured times of each plan, by the reference."""
    return {name: [predicted / statistics.median(beside_profile) / each for each in ratios(found, name)]
            for name, predicted in setting["predicted"].items() if name in found["seconds"]}


def priced_by(setting: dict[str, Any], cost: dict[str, Any]) -> dict[str, Any]:
    """A setting with its plans predicted by other prices, of a cost.json."""
    prices = {name: terms for name, terms in cost.items() if name not in ("shape", "device")}
    return dict(setting, predicted={name: slimpack.simulate(Plan.from_dict(dict(plan, cost=prices))).iteration_s
                                    for name, plan in setting["plans"].items()})


def summary_of(predictions: list[dict[str, list[float]]], limit: float = 0.03) -> str:
    """How many of all settings' predictions are so close by their medians, and how many are not by all of their interval;
    the least and the most of medians over all steps of a planner."""
    alone = [each for setting in predictions for each in setting.values()]
    close = sum(abs(statistics.median(each) - 1) <= limit for each in alone)
    intervals = [ends for each in alone if (ends := reference.interval(each))]
    off = sum(low > 1 + limit or high < 1 - limit for low, high in intervals)
    names = dict.fromkeys(name for setting in predictions for name in setting)
    medians = sorted((statistics.median(sum((one.get(name, []) for one in predictions), [])), name) for name in names)
    return (f"{close} of {len(alone)} predictions are within {100 * limit:g} % of measured times, by the reference; "
            f"{off} are further off by all of their interval. Over all steps of a planner the median is "
            f"{medians[0][0]:.3f} ({medians[0][1]}) to {medians[-1][0]:.3f} ({medians[-1][1]}).")


def rows_of(setting: dict[str, Any], found: dict[str, Any], beside_profile: list[float]) -> str:
    """A setting's rows as markdown."""
    lengths = setting["lengths"]
    label = (f"{setting['degrees'][:2]} 2, seed {setting['seed']}, {setting['shape']}: {len(lengths)} documents, "
             f"{sum(lengths):,} tokens, longest "
             f"{max(lengths):,}, chunks up to {setting['chunks']}")
    ours = statistics.median(ratios(found, "slimpack"))
    ours_predicted = setting["predicted"]["slimpack"]
    predictions = predictions_of(setting, found, beside_profile)
    lines = []
    for name, seconds in found["seconds"].items():
        predicted = setting["predicted"].get(name)
        last = "- | - | -"
        if predicted:
            last = (f"{predicted / ours_predicted:.3f} | {predicted / statistics.median(seconds):.2f} | "
                    + reference.of_interval(predictions[name], "{:.3f}".format))
        over = reference.of_interval([each / ours for each in ratios(found, name)], "{:.3f}".format)
        lines.append(f"| {label} | {name} | {len(seconds)} | {reference.of_ranges(seconds, '{:.3f}'.format)} | {over} | {last} |")
        label = ""
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="keeps prices, plans and measured steps")
    options.add_argument("--settings", type=int, default=8)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--rounds", type=int, default=5, help="steps of each contender, at least")
    options.add_argument("--tries", type=int, default=reference.TRIES, help="times as many rounds before it gives up")
    options.add_argument("--tokens", type=int, default=4000, help="of a step, about")
    options.add_argument("--degrees", choices=DEGREES, default="pp2", help="of both processes [pp2]")
    options.add_argument("--every", action="store_true", help="every planner whose plan can be executed")
    options.add_argument("--effort", default="normal")
    options.add_argument("--profiles", type=int, default=4, help="prices are of their medians")
    options.add_argument("--budget", type=float, default=600.0, help="seconds of all profiles")
    options.add_argument("--only", choices=["prices", "plans", "steps", "table"], help="a part of it")
    options.add_argument("--setting", type=int, help="only this one, from 0")
    options.add_argument("--gate", type=Path, help="timed steps begin only where this file changed in the last two seconds")
    options.add_argument("--reference-limit", type=float, default=100 * reference.LIMIT, metavar="PERCENT",
                         help="to which the median of each contender's times over the fixed work's has to be known")
    options.add_argument("--reference-spread", type=float, metavar="PERCENT",
                         help="half the interquartile range of the fixed work's times over their median, at most "
                         "[as --reference-limit]")
    options.add_argument("--cost", type=Path, metavar="FILE",
                         help="prices that predict instead of those that plans were made with: of the same profiles, fitted anew")
    options.add_argument("--tiny", action="store_true", help="a tiny model, to see that it runs")
    asked = options.parse_args()
    for name in ("settings", "rounds", "tries", "profiles"):
        if getattr(asked, name) < 1:
            options.error(f"--{name}: must be >= 1")
    if asked.reference_spread is None:
        asked.reference_spread = asked.reference_limit
    for name in ("reference_limit", "reference_spread"):
        if not getattr(asked, name) >= 0:
            options.error(f"--{name.replace('_', '-')}: must be >= 0")
    sizes = dict(SIZES, hidden_size=64, intermediate_size=64, num_hidden_layers=4, head_dim=16) if asked.tiny else SIZES
    prices = None
    if asked.cost:
        try:
            prices = json.loads(asked.cost.read_text())
        except (OSError, ValueError) as error:
            options.error(f"--cost: must be a cost.json that can be read: {asked.cost}: {error}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    os.environ.update({name: value for name, value in MALLOC.items() if name not in os.environ})
    parts = [asked.only] if asked.only else ["prices", "plans", "steps", "table"]
    numbers = [asked.setting] if asked.setting is not None else list(range(asked.settings))
    if {"prices", "steps"} & set(parts):
        load_cores(sizes)
    request = request_of(asked.folder, asked.degrees)
    beside, profiles = (asked.folder / f"{name}-{asked.degrees}.json" for name in ("beside", "profiles"))
    if "prices" in parts and not beside.exists():
        measure_prices(asked.folder, asked.degrees, sizes, min(4096, 2 * asked.tokens), asked.profiles, asked.budget)
    if "table" in parts and not beside.exists():
        sys.exit(f"torch_step.py: {beside}: must be there, with what the fixed work takes; --only prices writes it")
    if "table" in parts:
        print("| setting | contender | steps | s, median (10 to 90 %) | over slimpack (95 % interval) | predicted | "
              "predicted / measured | by the reference |\n|---|---|---:|---:|---:|---:|---:|---:|")
    refused, enough, predictions = [], Enough(asked), []
    for number in numbers:
        planned, measured = (asked.folder / f"{kind}-{asked.degrees}-{asked.seed + number}.json"
                             for kind in ("plans", "steps"))
        if "plans" in parts and not planned.exists():
            setting = draw(asked.seed + number, asked.tokens)
            setting.update(degrees=asked.degrees, every=asked.every)
            plans = plans_of(setting, request, asked.effort, asked.every)
            setting["plans"] = {name: plan.to_dict() for name, plan in plans.items()}
            setting["predicted"] = {name: plan.iteration_s for name, plan in plans.items()}
            planned.write_text(json.dumps(setting))
        if not planned.exists():
            continue
        setting = json.loads(planned.read_text())
        if "plans" in parts and setting.get("every", False) != asked.every:
            was = "with" if setting.get("every", False) else "without"
            sys.exit(f"torch_step.py: {planned}: was made {was} --every; ask as then, or take another folder")
        known = json.loads(measured.read_text()) if measured.exists() else {}
        if "steps" in parts and not (known and enough(known)):
            known = on_two_ranks(measure, setting, known, enough, asked.gate, sizes)
            measured.write_text(json.dumps(known))
            print(f"setting {setting['seed']}: measured", file=sys.stderr, flush=True)  # steps take long: something to see
        if "table" in parts and known:
            check_losses(known)
            if prices is not None:
                setting = priced_by(setting, prices)
            beside_profile = json.loads(beside.read_text())
            agreed = json.loads(profiles.read_text()) if profiles.exists() else {}
            why = enough.why_not(known) or enough.why_not_priced(beside_profile, agreed)
            if why:
                refused.append(f"setting {setting['seed']}: {why}")
            else:
                print(rows_of(setting, known, beside_profile))
                predictions.append(predictions_of(setting, known, beside_profile))
    if predictions:
        print("\n" + summary_of(predictions))
    if refused:
        sys.exit("torch_step.py: " + "; ".join(refused))


if __name__ == "__main__":
    main()
