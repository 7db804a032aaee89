#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden values of a small Llama, computed with PyTorch in double precision.

    scripts/golden_llama.py [FOLDER]          writes FOLDER, by default tests/golden/llama
    scripts/golden_llama.py --check [FOLDER]  computes again what FOLDER holds, prints the largest differences

Needs torch, numpy and safetensors. FOLDER gets a model in the Hugging Face layout (config.json, model.safetensors),
expected.json (documents, loss, loss by document) and expected.safetensors (logits of each document, all gradients of
the loss). The decoder below is written from its definition; where transformers is installed, --check computes the
same with its LlamaForCausalLM. A token's target is the next of its document; the loss is the mean over targets.
"""
import json
import math
import pathlib
import sys

import numpy
import torch
from safetensors.numpy import load_file, save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 64, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None,
}
LENGTHS = [19, 1, 7, 2, 12]


def shapes(config):
    """Names and shapes of the tensors, rows being outputs."""
    hidden, dim = config["hidden_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    ffn, vocab = config["intermediate_size"], config["vocab_size"]
    result = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        result |= {at + "input_layernorm.weight": (hidden,), at + "self_attn.q_proj.weight": (query, hidden),
                   at + "self_attn.k_proj.weight": (key, hidden), at + "self_attn.v_proj.weight": (key, hidden),
                   at + "self_attn.o_proj.weight": (hidden, query), at + "post_attention_layernorm.weight": (hidden,),
                   at + "mlp.gate_proj.weight": (ffn, hidden), at + "mlp.up_proj.weight": (ffn, hidden),
                   at + "mlp.down_proj.weight": (hidden, ffn)}
    return result


def make_weights(config, generator):
    weights = {}
    for name, shape in sorted(shapes(config).items()):
        if len(shape) == 1:
            weights[name] = generator.uniform(0.8, 1.2, shape).astype(numpy.float32)
        else:
            weights[name] = (generator.standard_normal(shape) / math.sqrt(shape[1])).astype(numpy.float32)
    return weights


def rms_norm(x, gain, epsilon):
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * gain


def rotate(x, theta):
    """Turns element i of each head with element i + dim / 2 by position * theta^(-2 i / dim). x: tokens, heads, dim."""
    length, _, dim = x.shape
    half = dim // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) * 2 / dim)
    angle = (torch.arange(length, dtype=torch.float64)[:, None] * frequency)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def logits_of(weights, config, tokens):
    """Logits of one document: tokens x vocabulary."""
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    epsilon, length = config["rms_norm_eps"], len(tokens)
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        w = {name.split(".", 3)[3]: value for name, value in weights.items()
             if name.startswith(f"model.layers.{layer}.")}
        y = rms_norm(x, w["input_layernorm.weight"], epsilon)
        query = rotate((y @ w["self_attn.q_proj.weight"].T).view(length, heads, dim), config["rope_theta"])
        key = rotate((y @ w["self_attn.k_proj.weight"].T).view(length, kv_heads, dim), config["rope_theta"])
        value = (y @ w["self_attn.v_proj.weight"].T).view(length, kv_heads, dim)
        key, value = (t.repeat_interleave(heads // kv_heads, 1) for t in (key, value))
        score = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(dim)
        share = score.masked_fill(later, -math.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", share, value).reshape(length, heads * dim)
        x = x + mixed @ w["self_attn.o_proj.weight"].T
        y = rms_norm(x, w["post_attention_layernorm.weight"], epsilon)
        gate, up = y @ w["mlp.gate_proj.weight"].T, y @ w["mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ w["mlp.down_proj.weight"].T
    return rms_norm(x, weights["model.norm.weight"], epsilon) @ weights["lm_head.weight"].T


def compute(weights, config, documents):
    """Loss, loss by document (a sum), logits by document, gradients by name."""
    leaves = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in weights.items()}
    targets = sum(len(document) - 1 for document in documents)
    sums, logits = [], []
    for document in documents:
        tokens = torch.tensor(document)
        logits.append(logits_of(leaves, config, tokens))
        probability = logits[-1][:-1].log_softmax(-1)
        sums.append(-probability.gather(1, tokens[1:, None]).sum())
    loss = sum(sums) / targets
    loss.backward()
    return (loss.item(), [each.item() for each in sums], [each.detach().numpy() for each in logits],
            {name: leaf.grad.numpy() for name, leaf in leaves.items()})


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    generator = numpy.random.RandomState(20)
    weights = make_weights(CONFIG, generator)
    documents = [generator.randint(0, CONFIG["vocab_size"], length).tolist() for length in LENGTHS]
    loss, sums, logits, gradients = compute(weights, CONFIG, documents)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    expected = {"documents": documents, "loss": loss, "sample_loss": sums}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    tensors = {f"logits.{at}": each for at, each in enumerate(logits)}
    save_file(tensors | {f"gradient.{name}": value for name, value in gradients.items()},
              folder / "expected.safetensors")
    print(f"loss {loss}, {sum(file.stat().st_size for file in folder.iterdir())} bytes in {folder}")


def difference(a, b):
    return float(numpy.abs(numpy.asarray(a) - numpy.asarray(b)).max(initial=0))


def check(folder):
    expected = json.loads((folder / "expected.json").read_text())
    tensors = load_file(folder / "expected.safetensors")
    config = json.loads((folder / "config.json").read_text())
    documents = expected["documents"]
    results = {"this script": compute(load_file(folder / "model.safetensors"), config, documents)}
    try:
        from transformers import LlamaForCausalLM
    except ImportError:
        print("transformers is not installed: not compared with it")
    else:
        model = LlamaForCausalLM.from_pretrained(folder, torch_dtype=torch.float64)
        logits = [model(torch.tensor([document])).logits[0] for document in documents]
        sums = [-each[:-1].log_softmax(-1).gather(1, torch.tensor(document)[1:, None]).sum()
                for each, document in zip(logits, documents)]
        loss = sum(sums) / sum(len(document) - 1 for document in documents)
        loss.backward()
        results["transformers"] = (loss.item(), [each.item() for each in sums],
                                   [each.detach().numpy() for each in logits],
                                   {name: leaf.grad.numpy() for name, leaf in model.named_parameters()})
    # transformers norms and turns in single precision.
    limits = {"this script": 1e-12, "transformers": 1e-4}
    good = True
    for name, (loss, sums, logits, gradients) in results.items():
        parts = {"loss": difference(loss, expected["loss"]), "sums": difference(sums, expected["sample_loss"]),
                 "logits": max(difference(each, tensors[f"logits.{at}"]) for at, each in enumerate(logits)),
                 "gradients": max(difference(each, tensors[f"gradient.{key}"]) for key, each in gradients.items())}
        print(f"{name}: largest difference " + ", ".join(f"{part} {value:.1e}" for part, value in parts.items()))
        good = good and max(parts.values()) <= limits[name]
    return 0 if good else 1


def main(arguments):
    here = pathlib.Path(__file__).resolve().parent.parent
    checks = "--check" in arguments
    names = [argument for argument in arguments if argument != "--check"]
    folder = pathlib.Path(names[0]) if names else here / "tests" / "golden" / "llama"
    if checks:
        return check(folder)
    write(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
