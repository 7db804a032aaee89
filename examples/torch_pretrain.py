# SPDX-License-Identifier: Apache-2.0
"""Trains a Hugging Face model on text by slimpack's plans, on PyTorch's own pipeline runtime.

    torchrun --nproc-per-node 2 examples/torch_pretrain.py --steps 20 --save out
    torchrun --nproc-per-node 2 examples/torch_pretrain.py --steps 40 --save out --resume

--data is JSON lines with a "text" each. The model is a folder that transformers loads, with its tokenizer, or,
without --model, a small Llama of bytes with random weights. out/ then is a model folder that transformers loads,
beside what resuming needs. Ranks are dp x pp; CPUs use gloo, GPUs NCCL.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig

import slimpack
import slimpack.torch as plans

END = 256  # of a document, in bytes' vocabulary
WEIGHTS = "model.safetensors.index.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(Path(__file__).parent / "data/text.jsonl"), help="JSON lines with a text each")
    parser.add_argument("--model", help="a folder that transformers loads [a small Llama of bytes]")
    parser.add_argument("--from-scratch", action="store_true", help="take the model's configuration, not its weights")
    parser.add_argument("--pp", type=int, help="pipeline stages [all ranks]")
    parser.add_argument("--chunks", type=int, default=1, help="virtual stages of a rank [1]")
    parser.add_argument("--context", type=int, default=1024, help="most tokens of a sample; longer documents are cut [1024]")
    parser.add_argument("--batch-tokens", default="8K", help="most tokens of a step [8K]")
    parser.add_argument("--cluster", default="h100", help="a preset or a JSON file that the plans are for [h100]")
    parser.add_argument("--cost", help="prices of slimpack calibrate [analytic]")
    parser.add_argument("--planner", default="slimpack")
    parser.add_argument("--steps", type=int, default=20, help="steps of the whole run [20]")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0, help="most Euclidean norm of gradients [1]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="the folder that is written at the end, and every --save-every steps")
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on from what --save names")
    return parser.parse_args()


def read_documents(path: str, tokenizer: Any) -> list[torch.Tensor]:
    """Token ids of each line's text, with the end of the document."""
    documents = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError):
            raise slimpack.InvalidInput(f"{path}, line {number}: must be an object with a text, got {line[:40]!r}") from None
        ids = list(text.encode()) + [END] if tokenizer is None else tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]
        documents.append(torch.tensor(ids))
    if not documents:
        raise slimpack.InvalidInput(f"{path}: holds no text")
    return documents


def replace(path: Path, value: Any) -> None:
    """Writes JSON, whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1))
    os.replace(new, path)


def write(folder: Path, asked: argparse.Namespace, stages: plans.PlanStages, optimizer: Any, sampler: Any, plan: Any,
          config: Any, tokenizer: Any) -> None:
    """A model folder in shards, one a stage, written by data-parallel rank 0; the run's state beside it. run.json comes
    last and names all that belongs to it, so that a run that ends meanwhile resumes from the files of before."""
    index = f"step-{plan.step + 1:06d}"
    if stages.dp_rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        shard = f"model-{index}-{stages.pp_rank:03d}.safetensors"
        held = {name: parameter.detach().cpu().contiguous() for name, parameter in stages.named_parameters()}
        if config.tie_word_embeddings and stages.pp_rank > 0:
            held.pop("lm_head.weight", None)
        save_file(held, folder / shard, metadata={"format": "pt"})
        torch.save({"optimizer": optimizer.state_dict(), "masters": optimizer.param_groups[0]["params"]}, folder / f"optimizer-{index}-{stages.pp_rank:03d}.pt")
        told: list[Any] = [None] * stages.mesh["pp"].size()
        mine = {name: (shard, tensor.numel() * tensor.element_size()) for name, tensor in held.items()}
        dist.all_gather_object(told, mine, group=stages.mesh.get_group("pp"))
        if stages.pp_rank == 0:
            where = {name: place for part in told for name, (place, _) in part.items()}
            size = sum(count for part in told for _, count in part.values())
            config.save_pretrained(folder)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
            weights = {"metadata": {"total_size": size}, "weight_map": where}
            replace(folder / WEIGHTS, weights)
            replace(folder / "run.json", {"sampler": sampler.state_dict(after=plan), "index": index,
                                          "placement": stages.placement, "weights": weights})
            for old in [*folder.glob("model-step-*"), *folder.glob("optimizer-step-*")]:
                if index not in old.name:
                    old.unlink()
    dist.barrier()


@torch.no_grad()
def step(optimizer: Any, weights: list[torch.Tensor], masters: list[torch.Tensor]) -> None:
    """Updates the masters by the weights' gradients, and the weights by the masters."""
    for master, weight in zip(masters, weights):
        master.grad = weight.grad
    optimizer.step()
    for master, weight in zip(masters, weights):
        if master is not weight:
            weight.copy_(master)


def main() -> None:
    asked = arguments()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    ranks = dist.get_world_size()
    pp = asked.pp or ranks
    if ranks % pp:
        raise slimpack.InvalidInput(f"--pp: must divide the {ranks} ranks, got {pp}")
    folder = Path(asked.save) if asked.save else None
    if asked.resume and (folder is None or not (folder / "run.json").exists()):
        raise slimpack.InvalidInput(f"--resume: there is no run in {asked.save!r}")
    if asked.resume:
        state = json.loads((folder / "run.json").read_text())
        if dist.get_rank() == 0:
            replace(folder / WEIGHTS, state["weights"])
        dist.barrier()

    source = str(folder) if asked.resume else asked.model
    tokenizer = AutoTokenizer.from_pretrained(asked.model) if asked.model else None
    torch.manual_seed(asked.seed)
    if source is None:
        config = LlamaConfig(vocab_size=257, hidden_size=256, intermediate_size=688, num_hidden_layers=8,
                             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=asked.context,
                             bos_token_id=None, eos_token_id=END)
    else:
        config = AutoConfig.from_pretrained(source)
    dtype = torch.bfloat16 if cuda else torch.float32
    if source is None or (asked.from_scratch and not asked.resume):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    model.to(device)

    documents = read_documents(asked.data, tokenizer)
    # The planner reads the model's shape from a file; each rank has its own.
    described = tempfile.TemporaryDirectory()
    config.dtype = dtype
    config.save_pretrained(described.name)
    request = dict(model=str(Path(described.name, "config.json")), cluster=asked.cluster, cost=asked.cost, dp=ranks // pp, pp=pp,
                   chunks=asked.chunks, context=asked.context, overlong="split", planner=asked.planner,
                   runtime="torch", optimizer="replicated")
    stages = plans.PlanStages(model, slimpack.plan([asked.context], **request))
    weights = stages.parameters()
    # AdamW updates fp32 copies of weights in half precision.
    masters = [weight.detach().float().requires_grad_() for weight in weights] if dtype == torch.bfloat16 else weights
    optimizer = torch.optim.AdamW(masters, lr=asked.lr, foreach=True)
    sampler = plans.BatchSampler([len(one) for one in documents], dp_rank=stages.dp_rank, seed=asked.seed,
                                 batch_tokens=asked.batch_tokens, **request)
    first = 0
    if asked.resume:
        sampler.load_state_dict(state["sampler"])
        first = state["sampler"]["step"]
        if [list(one) for one in stages.placement] == state["placement"]:
            saved = folder / f"optimizer-{state['index']}-{stages.pp_rank:03d}.pt"
            kept = torch.load(saved, map_location=device)
            optimizer.load_state_dict(kept["optimizer"])
            with torch.no_grad():
                for master, value in zip(masters, kept["masters"]):
                    master.copy_(value)
        elif dist.get_rank() == 0:
            print("other stages than before: AdamW's moments begin anew", flush=True)

    plan = None
    for _ in sampler if first < asked.steps else ():
        plan = sampler.plan
        batch = plans.collate(plan, documents, stages.dp_rank, device=device)
        loss = plans.run_plan(plan, stages, batch)
        norm = stages.clip_grad_norm_(asked.clip)
        step(optimizer, weights, masters)
        if dist.get_rank() == 0:
            print(f"step {plan.step} loss {loss:.4f} norm {norm:.3f} tokens {int(plan.samples.sum())} "
                  f"plan {plan.hash[:8]} efficiency {plan.efficiency:.1%}", flush=True)
        last = plan.step + 1 >= asked.steps
        if folder is not None and (last or (asked.save_every and (plan.step + 1) % asked.save_every == 0)):
            write(folder, asked, stages, optimizer, sampler, plan, config, tokenizer)
        if last:
            break
    sampler.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except (slimpack.InvalidInput, slimpack.Infeasible, plans.StepFailed) as error:
        sys.exit(f"torch_pretrain: {error}")
