#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What steps hold in memory beside what is predicted, by recomputation, weights and type, on two CPU processes.

    python python/bench/torch_memory.py

prints a markdown table: measured over predicted megabytes of each stage, beside weights, gradients and optimizer.
"""
from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import slimpack
import torch_step
from slimpack import Plan
from slimpack.torch import PlanStages, collate, measure_memory

SIZES = dict(torch_step.SIZES, num_hidden_layers=4)


def measure(rank: int, plans: list[dict[str, Any]], documents: list[Any], dtype: str) -> list[Any]:
    """For each plan and stage: measured and predicted bytes."""
    found = []
    model = torch_step.model(SIZES).to(getattr(torch, dtype))
    for made in plans:
        plan = Plan.from_dict(made)
        stages = PlanStages(model, plan)
        own = torch.tensor(measure_memory(plan, stages, collate(plan, documents, stages.dp_rank), 1e11)[:2])
        every = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(every, own)
        found.append([one.tolist() for one in every])
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--documents", type=int, default=12)
    options.add_argument("--seed", type=int, default=3)
    asked = options.parse_args()
    rng = np.random.default_rng(asked.seed)
    lengths = np.clip(rng.lognormal(5.5, 1.0, asked.documents), 8, 2048).astype(int).tolist()
    documents = [rng.integers(0, torch_step.VOCABULARY, length) for length in lengths]
    cases = [(mode, weights) for mode in ("none", "light", "layer", "full") for weights in ("with", "apart")]
    cells = []
    for dtype in ("float32", "bfloat16"):
        with tempfile.TemporaryDirectory() as folder:
            model, cluster = Path(folder, "model.json"), Path(folder, "cluster.json")
            model.write_text(json.dumps(dict(SIZES, architectures=["LlamaForCausalLM"], model_type="llama",
                                             rope_theta=10000.0, torch_dtype=dtype)))
            cluster.write_text(json.dumps(torch_step.CLUSTER))
            plans = [slimpack.plan(lengths, model=model, cluster=cluster, pp=2, chunks=1, runtime="torch", memory=60e9,
                                   context=2048, granularity=32, effort="fast", threads=1, optimizer="replicated",
                                   recompute=mode, weights=weights) for mode, weights in cases]
        found = torch_step.on_two_ranks(measure, [plan.to_dict() for plan in plans], documents, dtype)
        cells.append([", ".join(f"{a / 1e6:.1f} / {b / 1e6:.1f} = {a / b:.2f}" for a, b in one) for one in found])
    print(f"{len(lengths)} documents, {sum(lengths):,} tokens\n\n| recomputation, weights | fp32 | bf16 |\n|---|---|---|")
    for (mode, weights), *row in zip(cases, *cells):
        print(f"| `{mode}`, {weights} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
