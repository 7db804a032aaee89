# SPDX-License-Identifier: Apache-2.0
"""Three steps of a planned pipeline: torchrun --nproc-per-node 2 examples/torch_twenty_lines.py"""
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from transformers import LlamaConfig, LlamaForCausalLM

import slimpack
import slimpack.torch as plans

dist.init_process_group("gloo")
torch.manual_seed(0)
config = LlamaConfig(vocab_size=257, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4)
config.save_pretrained(folder := tempfile.mkdtemp())
documents = [np.random.default_rng(i).integers(0, 256, 20 + 37 * i % 900) for i in range(64)]
request = dict(model=f"{folder}/config.json", pp=2, chunks=1, context=1024,
               batch_tokens="4K", runtime="torch")
sampler = plans.BatchSampler([len(one) for one in documents], dp_rank=0, steps=3, **request)
stages = plans.PlanStages(LlamaForCausalLM(config), slimpack.plan([1024], **request))
optimizer = ZeroRedundancyOptimizer(  # each data-parallel rank holds its part of the state
    stages.parameters(), torch.optim.AdamW, process_group=stages.mesh.get_group("dp"), lr=1e-3)
for _ in sampler:
    loss = plans.run_plan(sampler.plan, stages, plans.collate(sampler.plan, documents, stages.dp_rank))
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {sampler.plan.step} loss {loss:.4f}")
dist.barrier()
dist.destroy_process_group()
