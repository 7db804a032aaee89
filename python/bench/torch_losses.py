#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses of training by run_plan beside those of plain PyTorch: the same weights, steps and AdamW.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 python/bench/torch_losses.py --steps 300

First both processes train a small Llama by run_plan, one stage each. Then each trains the whole model alone, a
document at a time with Hugging Face's own attention: process 0 in the order of the step, process 1 in the reverse
order. Prints losses of all three, and the largest relative difference of the first two to the second: what process 1
differs by is rounding alone, so that run_plan should not differ by much more.
"""
from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
import transformers

import slimpack
from slimpack import Plan
from slimpack.torch import PlanStages, collate, run_plan

SIZES = dict(vocab_size=256, hidden_size=64, intermediate_size=160, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=8192, rms_norm_eps=1e-6,
             tie_word_embeddings=False)
# A slow device, so that the planner cuts samples of a model this small.
CLUSTER = dict(base="h100", name="cpu", devices_per_node=2, memory=64e9, reserved=1e9, peak_flops=1e11,
               matrix_flops=8e10, attention_forward_flops=4e10, attention_backward_flops=4e10,
               memory_bytes_per_s=1e10, inside=dict(bytes_per_s=2e9, latency_s=5e-5), kernel_s=1e-5)
Step = Callable[[Plan], float]  # leaves gradients, gives the mean loss


def documents(context: int) -> list[torch.Tensor]:
    """Walks on a fixed random graph where each of 256 ids has 8 successors, of lengths up to `context`. Enough of them
    that none is learned by heart: near a loss of 0 rounding grows until no two runs are alike."""
    draw = torch.Generator().manual_seed(0)
    after = torch.randint(256, (256, 8), generator=draw).tolist()
    lengths = torch.exp(torch.randn(4000, generator=draw) + 4.5).clamp(4, context).int().tolist()
    found = []
    for length in lengths:
        turns = torch.randint(8, (length,), generator=draw).tolist()
        walk = [turns[0]]
        for turn in turns[1:]:
            walk.append(after[walk[-1]][turn])
        found.append(torch.tensor(walk))
    return found


def model(dtype: torch.dtype) -> Any:
    """The same weights wherever it is called."""
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).to(dtype)


def plans_of(lengths: list[int], steps: int, tokens: int, context: int) -> list[Plan]:
    """One plan a step for two stages, from a shuffle by seed."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: str(Path(folder, f"{name}.json")) for name in ("model", "cluster")}
        config = dict(SIZES, architectures=["LlamaForCausalLM"], model_type="llama", rope_theta=10000.0)
        Path(paths["model"]).write_text(json.dumps(config))
        Path(paths["cluster"]).write_text(json.dumps(CLUSTER))
        return [slimpack.plan(lengths, context=context, pp=2, chunks=1, batch_tokens=tokens, step=step, memory=60e9,
                              granularity=32, effort="fast", threads=1, runtime="torch", **paths)
                for step in range(steps)]


def sliced(walks: list[torch.Tensor], stages: PlanStages) -> Step:
    """A step by run_plan."""
    return lambda plan: run_plan(plan, stages, collate(plan, lambda number: walks[number], stages.dp_rank))


def plain(walks: list[torch.Tensor], whole: Any, reverse: bool) -> Step:
    """A step by autograd through the whole model, each document by itself."""
    def run(plan: Plan) -> float:
        total = 0.0
        whole.zero_grad()
        for _, document, _ in plan.origin.tolist()[:: -1 if reverse else 1]:
            ids = walks[document]
            logits = whole(ids[None, :-1], use_cache=False).logits[0]
            loss = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum") / plan.target_tokens
            loss.backward()
            total += loss.item()
        return total

    return run


def train(step: Step, parameters: Any, plans: list[Plan]) -> list[float]:
    """The loss of each step, before its update."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    found = []
    for plan in plans:
        found.append(step(plan))
        optimizer.step()
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--tokens", type=int, default=1024, help="of a step")
    options.add_argument("--context", type=int, default=512)
    options.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    asked = options.parse_args()
    dtype = getattr(torch, asked.dtype)
    dist.init_process_group("gloo")
    walks = documents(asked.context)
    plans = plans_of([len(one) for one in walks], asked.steps, asked.tokens, asked.context)
    stages = PlanStages(model(dtype), plans[0])
    ours = train(sliced(walks, stages), stages.parameters(), plans)
    whole = model(dtype)
    mine = train(plain(walks, whole, reverse=dist.get_rank() == 1), whole.parameters(), plans)
    other = torch.tensor(mine, dtype=torch.float64)
    dist.broadcast(other, 1)
    if dist.get_rank() == 0:
        report(plans, ours, mine, other.tolist())
    dist.barrier()
    dist.destroy_process_group()


def report(plans: list[Plan], ours: list[float], mine: list[float], other: list[float]) -> None:
    packs = [pack for plan in plans for pack in plan.micropacks if pack.pass_ == "forward"]
    cut = sum(bool((pack.slices[:, 1] > 0).any()) for pack in packs)
    print(f"{len(plans)} steps, {sum(int(plan.samples.sum()) for plan in plans):,} tokens, {len(packs)} forward "
          f"MicroPacks, {cut} of them with a slice that has a prefix")
    print("| step | run_plan | plain PyTorch | plain, reverse order |\n|---:|---:|---:|---:|")
    for step in sorted({0, 1, 9, 29, 99, 199, len(plans) - 1} & set(range(len(plans)))):
        print(f"| {step} | {ours[step]:.8f} | {mine[step]:.8f} | {other[step]:.8f} |")
    for name, losses in (("run_plan", ours), ("plain PyTorch in reverse order", other)):
        worst = max(abs(a - b) / b for a, b in zip(losses, mine))
        print(f"largest relative difference to plain PyTorch: {name} {worst:.1e}")


if __name__ == "__main__":
    main()
