# SPDX-License-Identifier: Apache-2.0
"""Plans drawn by seed, executed on processes of this machine beside the unsliced model.

    python python/tests/torch_plans.py --plans 100

prints the largest difference of loss and gradients by what the plans use. Tests import it.
"""
from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import slimpack
from slimpack import Plan
from slimpack.torch import PlanStages, collate, run_plan

LAYERS, VOCABULARY = 8, 97
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, rms_norm_eps=1e-6)
LARGE = dict(SIZES, hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8,
             vocab_size=32000)
SCALE = 64  # a plan is made for the large model and samples so many times as long, then scaled down
DEGREES = [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (1, 4)]


def model(kind: str = "llama", attention: str = "sdpa", tied: bool = False, dtype: torch.dtype = torch.float64) -> Any:
    """A small Hugging Face model, the same weights in every process."""
    import transformers

    torch.manual_seed(0)
    config = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[kind]
    made = {"llama": transformers.LlamaForCausalLM, "qwen3": transformers.Qwen3ForCausalLM}[kind]
    extra = {"head_dim": 8} if kind == "qwen3" else {}
    return made._from_config(config(**SIZES, tie_word_embeddings=tied, **extra), attn_implementation=attention).to(dtype)


def scaled_down(plan: Plan, block: int = 8) -> Plan:
    """The plan for the small model, every length divided by SCALE."""
    made = plan.to_dict()
    made["model"].update(hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=VOCABULARY)
    made["samples"] = [tokens // SCALE for tokens in made["samples"]]
    made["origin"] = [[source, document, first // SCALE] for source, document, first in made["origin"]]
    made["step"]["target_tokens"] = sum(made["samples"]) - len(made["samples"])  # a document has one sample
    made["parallel"]["granularity"] //= SCALE
    made["memory"].update(share_tokens=block, head_tile=40)
    for pack in made["micropacks"]:
        pack["slices"] = [[sample, begin // SCALE, end // SCALE] for sample, begin, end in pack["slices"]]
    return Plan.from_dict(made)


def with_halved_backward(plan: Plan) -> Plan:
    """The plan with backward packs of several slices in two, one after the other: passes differ then, and weight
    packs are unions."""
    made = plan.to_dict()
    packs = made["micropacks"]
    halves: dict[int, list[int]] = {}
    for pack in [one for one in packs if one["pass"] == "backward" and len(one["slices"]) > 1]:
        middle = len(pack["slices"]) // 2
        other = dict(pack, id=len(packs), slices=pack["slices"][middle:])
        pack["slices"] = pack["slices"][:middle]
        if "exchange" in pack:
            other["exchange"], pack["exchange"] = pack["exchange"][middle:], pack["exchange"][:middle]
        halves[pack["id"]] = [pack["id"], other["id"]]
        packs.append(other)
    for device in made["schedule"]:
        order: list[Any] = []
        for unit in device["order"]:
            order += [["B", pack, *unit[2:]] for pack in halves.get(unit[1], [unit[1]])] if unit[0] == "B" else [unit]
        device["order"] = order
    halved = Plan.from_dict(made)
    assert slimpack.validate(halved) == []
    return halved


def by_heads(plan: Plan) -> Plan:
    """The plan with all slices of context-parallel groups exchanged by heads."""
    made = plan.to_dict()
    groups = [pack for pack in made["micropacks"] if "exchange" in pack]
    if not groups:
        return plan
    made["version"] = 3
    for pack in groups:
        pack["exchange"] = ["heads"] * len(pack["exchange"])
    changed = Plan.from_dict(made)
    assert slimpack.validate(changed) == []
    return changed


def draw(seed: int, dp: int, pp: int, tied: bool = False) -> tuple[Plan, dict[str, Any]]:
    """A plan, and what it was asked with."""
    rng = np.random.default_rng([seed, dp, pp])
    effort = str(rng.choice(["fast", "normal"]))
    lengths = np.minimum(rng.lognormal(3.5, 1.0, int(rng.integers(2 * dp, 14))).astype(int) + 2, 200)
    asked: dict[str, Any] = dict(dp=dp, pp=pp, chunks=int(rng.choice([1, 1, 2])) if pp > 1 else 1,
                                 weights=str(rng.choice(["with", "apart"])), head="last",
                                 recompute=str(rng.choice(["none", "none", "light", "layer", "full"])))
    if dp > 1 and rng.random() < 0.6:
        asked["merge"] = 2
        lengths[int(rng.integers(len(lengths)))] = int(lengths.sum() * rng.uniform(1.5, 3)) + 64
    if rng.random() < 0.35:
        asked["planner"] = str(rng.choice(["slimpipe-order", "kk", "chunkflow", "wlb-llm"]))
        asked["weights"] = "with"
    while True:
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "config.json")
                path.write_text(json.dumps(dict(LARGE, architectures=["LlamaForCausalLM"], model_type="llama",
                                                tie_word_embeddings=tied, rope_theta=10000.0)))
                plan = slimpack.plan(lengths * SCALE, model=str(path), cluster="h100", context=4096 * SCALE, effort=effort,
                                     granularity=8 * SCALE, memory="400G", threads=1, runtime="torch", **asked)
            break
        except (slimpack.Infeasible, slimpack.InvalidInput):
            asked.pop("planner", None)  # a rival may have no such plan
            if asked.pop("recompute", None) is None:
                raise
    plan = scaled_down(plan)
    if seed % 2:
        plan = by_heads(plan)
    return with_halved_backward(plan) if rng.random() < 0.3 else plan, asked


def features(plan: Plan) -> list[str]:
    """What of the format a plan uses."""
    def cuts(pass_: str) -> set[tuple[tuple[int, ...], ...]]:
        return {tuple(map(tuple, pack.slices.tolist())) for pack in plan.micropacks if pack.pass_ == pass_}

    found = [f"dp {plan.dp} pp {plan.pp}"]
    found += ["chunks"] if plan.chunks > 1 else []
    found += ["merged"] if any(len(plan.groups[pack.group]) > 1 for pack in plan.micropacks) else []
    found += ["by heads"] if any("heads" in pack.get("exchange", []) for pack in plan.to_dict()["micropacks"]) else []
    found += ["passes differ"] if cuts("forward") != cuts("backward") else []
    found += ["prefixes"] if any(pack.slices[:, 1].any() for pack in plan.micropacks) else []
    found += ["weights apart"] if any(pack.weights == "apart" for pack in plan.micropacks) else []
    found += [f"recompute {mode}" for mode in sorted({pack.recompute for pack in plan.micropacks} - {None})]
    return found


def documents_of(plan: Plan, seed: int) -> dict[int, Any]:
    """Tokens of the plan's documents."""
    ends: dict[int, int] = {}
    for (_, document, first), tokens in zip(plan.origin.tolist(), plan.samples.tolist()):
        ends[document] = max(ends.get(document, 0), first + tokens)
    rng = np.random.default_rng(seed)
    return {document: rng.integers(0, VOCABULARY, end) for document, end in sorted(ends.items())}


def reference(plan: Plan, documents: dict[int, Any], whole: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the unsliced Hugging Face model, sample by sample."""
    whole.zero_grad()
    total = 0.0
    for (_, document, first), tokens in zip(plan.origin.tolist(), plan.samples.tolist()):
        ids = torch.from_numpy(documents[document])
        after = torch.cat([ids[1:], torch.tensor([-100])])[first : first + tokens]
        logits = whole(ids[None, first : first + tokens], use_cache=False).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, after, ignore_index=-100, reduction="sum") / plan.target_tokens
        loss.backward()
        total += loss.item()
    return total, {name: parameter.grad for name, parameter in whole.named_parameters()}


def difference(plan: Plan, seed: int, stages: PlanStages, whole: Any) -> float:
    """The largest relative difference of loss and of each parameter's gradient."""
    documents = documents_of(plan, seed)
    loss = run_plan(plan, stages, collate(plan, documents.__getitem__, stages.dp_rank))
    expected, gradients = reference(plan, documents, whole)
    worst = abs(loss - expected) / expected
    for name, parameter in stages.named_parameters():
        of = gradients.get(name, gradients.get("model.embed_tokens.weight"))
        worst = max(worst, float((parameter.grad - of).norm() / of.norm()))
    return worst


def compare(rank: int, plans: list[tuple[int, dict[str, Any]]], kind: str, tied: bool) -> list[float]:
    """`difference` of each plan, on this rank."""
    whole = model(kind, tied=tied)
    found, stages = [], None
    for seed, made in plans:
        plan = Plan.from_dict(made)
        if stages is None or not stages.holds(plan):
            stages = PlanStages(model(kind, tied=tied), plan)
        found.append(difference(plan, seed, stages, whole))
    return found


def _start(ranks: int, call: Callable[..., Any], arguments: tuple[Any, ...], method: str) -> tuple[list[Any], Any]:
    """The processes, and the queue of what `call` gives on each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context(method)
    if method == "forkserver":  # importing these takes longer than most tests
        context.set_forkserver_preload(["torch", "transformers.models.llama.modeling_llama", "transformers.models.qwen3.modeling_qwen3"])
    queue = context.Queue()
    every = [context.Process(target=_enter, args=(rank, ranks, port, queue, call, arguments)) for rank in range(ranks)]
    for process in every:
        process.start()
    return every, queue


def spawn(ranks: int, call: Callable[..., Any], *arguments: Any, timeout: float = 300) -> list[Any]:
    """What `call(rank, *arguments)` gives on each of so many gloo processes."""
    every, queue = _start(ranks, call, arguments, "forkserver")
    try:
        told = dict(queue.get(timeout=timeout) for _ in every)
    finally:
        for process in every:
            process.join(timeout=20)
            process.kill()
    return [told[rank] for rank in range(ranks)]


def run_to_the_end(ranks: int, call: Callable[..., Any], *arguments: Any, timeout: float = 120) -> list[Any]:
    """The exit status of each process that runs `call(rank, *arguments)`; None: it had to be killed."""
    every, _ = _start(ranks, call, arguments, "spawn")  # what they write goes where this process writes
    codes = []
    for process in every:
        process.join(timeout=timeout)
        codes.append(process.exitcode)
        process.kill()
    return codes


def _enter(rank: int, ranks: int, port: int, queue: Any, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        told = call(rank, *arguments)
    except Exception as error:  # told to the test, which fails with it
        told = error
    queue.put((rank, told))
    if not isinstance(told, Exception):
        dist.barrier()
        dist.destroy_process_group()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--plans", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--model", choices=["llama", "qwen3"], default="llama")
    options.add_argument("--tied", action="store_true")
    asked = options.parse_args()
    worst: dict[str, list[float]] = {}
    for i, (dp, pp) in enumerate(DEGREES):
        seeds = range(asked.seed + i, asked.seed + asked.plans, len(DEGREES))
        plans = [(seed, draw(seed, dp, pp, asked.tied)[0]) for seed in seeds]
        plans.sort(key=lambda one: one[1].chunks)
        told = spawn(dp * pp, compare, [(seed, plan.to_dict()) for seed, plan in plans], asked.model, asked.tied)
        for rank in told:
            if isinstance(rank, Exception):
                raise rank
        for j, (_, plan) in enumerate(plans):
            for name in ["all", *features(plan)]:
                worst.setdefault(name, []).append(max(rank[j] for rank in told))
    print("| plans with | plans | largest relative difference |\n|---|---:|---:|")
    for name, found in sorted(worst.items(), key=lambda one: (one[0] != "all", one[0])):
        print(f"| {name} | {len(found)} | {max(found):.1e} |")


if __name__ == "__main__":
    main()
