#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses of run_plan on two CPU processes beside the unsliced model in one: python python/bench/torch_losses.py

Both train the same small Llama in fp32 with AdamW on the same documents in the same order. Prints a few losses and the
largest relative difference of all steps.
"""
from __future__ import annotations

import argparse
import json
from typing import Any

import torch

import torch_step
from slimpack.torch import BatchSampler, PlanStages, collate, run_plan

SIZES = dict(torch_step.SIZES, hidden_size=64, intermediate_size=128, head_dim=16, vocab_size=257)
CONTEXT = 512


def texts() -> list[torch.Tensor]:
    """Bytes of the example texts, in documents of at most CONTEXT tokens."""
    lines = (torch_step.ROOT / "examples/data/text.jsonl").read_text(encoding="utf-8").splitlines()
    every = [torch.tensor(list(json.loads(line)["text"].encode())) for line in lines]
    return [part for text in every for part in text.split(CONTEXT) if len(part) > 1]


def train(rank: int, steps: int, rate: float) -> list[tuple[float, float]]:
    """Losses of run_plan and, on rank 0, of the unsliced model."""
    documents = texts()
    torch.manual_seed(0)
    config = {"model": _config(), "pp": 2, "chunks": 1, "context": CONTEXT, "batch_tokens": 1500, "runtime": "torch",
              "effort": "fast", "granularity": 32, "threads": 1}
    sampler = BatchSampler([len(one) for one in documents], dp_rank=0, steps=steps, **config)
    stages, whole, found = None, torch_step.model(SIZES), []
    told = torch.optim.AdamW(whole.parameters(), lr=rate)
    for numbers in sampler:
        plan = sampler.plan
        if stages is None:
            stages = PlanStages(torch_step.model(SIZES), plan)
            sliced = torch.optim.AdamW(stages.parameters(), lr=rate)
        loss = run_plan(plan, stages, collate(plan, {n: documents[n].numpy() for n in numbers}, 0))
        sliced.step()
        alone = 0.0
        if rank == 0:
            told.zero_grad()
            for n in plan.origin[:, 1].tolist():  # a step between two shuffles may have a document twice
                ids = documents[n][None]
                logits = whole(ids, use_cache=False).logits[0, :-1]
                part = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum") / plan.target_tokens
                part.backward()
                alone += part.item()
            told.step()
        found.append((loss, alone))
    sampler.close()
    return found


def _config() -> str:
    import tempfile
    from pathlib import Path

    path = Path(tempfile.mkdtemp()) / "config.json"
    path.write_text(json.dumps(dict(SIZES, architectures=["LlamaForCausalLM"], model_type="llama", rope_theta=10000.0)))
    return str(path)


def main() -> None:
    options: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--rate", type=float, default=1e-3, help="AdamW's learning rate")
    asked = options.parse_args()
    found = torch_step.on_two_ranks(train, asked.steps, asked.rate)
    print("| step | run_plan | unsliced |\n|---:|---:|---:|")
    for step in sorted({0, *range(0, asked.steps, max(asked.steps // 6, 1)), asked.steps - 1}):
        print(f"| {step} | {found[step][0]:.6f} | {found[step][1]:.6f} |")
    worst = max(abs(ours - whole) / whole for ours, whole in found)
    print(f"\nlargest relative difference over {asked.steps} steps: {worst:.1e}")


if __name__ == "__main__":
    main()
