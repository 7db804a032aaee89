#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models that slimpack saves open with Hugging Face's libraries, and theirs open in slimpack, with the same logits.

    scripts/check_hugging_face.py PROGRAM    PROGRAM is build/NAME/bin/hugging_face_folder

Needs numpy and safetensors; ends with status 77 (skipped) where they are missing, here and in build/python, where
scripts/python_packages.sh installs them. A decoder of its own, in NumPy, computes the logits; where torch and
transformers are installed they are asked too.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parent.parent
try:
    import numpy
    import safetensors
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    INSTALLED = ROOT / "build" / "python" / "bin" / "python"
    if INSTALLED.exists() and pathlib.Path(sys.prefix) != INSTALLED.parent.parent:
        os.execv(INSTALLED, [str(INSTALLED), *sys.argv])
    print(f"skipped: {missing}; scripts/python_packages.sh installs what is needed")
    sys.exit(SKIPPED)
try:
    import torch
    import transformers
except ImportError:
    torch = transformers = None


def run(program, *arguments):
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{program} {arguments}: {result.stderr}")
    answer = json.loads(result.stdout)
    return answer["tokens"], numpy.array(answer["log_probability"])


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(-1, keepdims=True))


def rms_norm(x, gain, epsilon):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gain


def rotate(x, theta):
    half = x.shape[-1] // 2
    angle = numpy.arange(x.shape[0])[:, None, None] * theta ** (-numpy.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return numpy.concatenate([a * numpy.cos(angle) - b * numpy.sin(angle), b * numpy.cos(angle) + a * numpy.sin(angle)],
                             -1)


def log_probability(config, weights, tokens):
    """Of every token after each one, in double precision."""
    w = {name: numpy.asarray(value, numpy.float64) for name, value in weights.items()}
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    count, epsilon, theta = len(tokens), config["rms_norm_eps"], config["rope_theta"]
    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        y = rms_norm(x, w[at + "input_layernorm.weight"], epsilon)
        query = rotate((y @ w[at + "self_attn.q_proj.weight"].T).reshape(count, heads, dim), theta)
        key = rotate((y @ w[at + "self_attn.k_proj.weight"].T).reshape(count, kv_heads, dim), theta)
        value = (y @ w[at + "self_attn.v_proj.weight"].T).reshape(count, kv_heads, dim)
        mixed = numpy.zeros((count, heads, dim))
        for head in range(heads):
            group = head // (heads // kv_heads)
            score = query[:, head] @ key[:, group].T / numpy.sqrt(dim)
            score[numpy.triu_indices(count, 1)] = -numpy.inf
            mixed[:, head] = numpy.exp(log_softmax(score)) @ value[:, group]
        x = x + mixed.reshape(count, heads * dim) @ w[at + "self_attn.o_proj.weight"].T
        y = rms_norm(x, w[at + "post_attention_layernorm.weight"], epsilon)
        gate = y @ w[at + "mlp.gate_proj.weight"].T
        x = x + (gate / (1 + numpy.exp(-gate)) * (y @ w[at + "mlp.up_proj.weight"].T)) @ w[at + "mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return log_softmax(rms_norm(x, w["model.norm.weight"], epsilon) @ head.T)


def load_weights(path):
    """All tensors of a file as numbers; NumPy has no bf16, so that its halves are put in place by hand."""
    with open(path, "rb") as file:
        entries = safetensors.deserialize(file.read())
    weights = {}
    for name, entry in entries:
        if entry["dtype"] == "BF16":
            bits = numpy.frombuffer(bytes(entry["data"]), numpy.uint16).astype(numpy.uint32) << 16
            weights[name] = bits.view(numpy.float32).reshape(entry["shape"])
        else:
            kind = {"F64": numpy.float64, "F32": numpy.float32, "F16": numpy.float16}[entry["dtype"]]
            weights[name] = numpy.frombuffer(bytes(entry["data"]), kind).reshape(entry["shape"])
    return weights


def transformers_log_probability(folder, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float64)
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].log_softmax(-1).numpy()


def compare(what, ours, theirs, most):
    worst = float(numpy.abs(ours - theirs).max())
    print(f"{what}: largest difference of log-probabilities {worst:.1e}")
    if not worst <= most:
        raise SystemExit(f"{what}: at most {most} is allowed")


def check_saved(program, folder, kind, tied):
    tokens, ours = run(program, "save", folder, kind, *(["tied"] if tied else []))
    name = f"saved as {kind}{', tied' if tied else ''}"
    config = json.loads((folder / "config.json").read_text())
    weights = load_weights(folder / "model.safetensors")
    assert ("lm_head.weight" in weights) != tied, sorted(weights)
    compare(f"{name}, read by safetensors", ours, log_probability(config, weights, tokens), 1e-12)
    with safetensors.safe_open(folder / "model.safetensors", "numpy") as file:
        assert file.metadata()["format"] == "pt", file.metadata()
        training = file.metadata()["slimpack_training"]
    moments = load_file(folder / training)
    assert {f"{moment}.{each}" for moment in ("first_moment", "second_moment") for each in weights} <= set(moments)
    if transformers:
        # It norms and turns in single precision.
        compare(f"{name}, opened by transformers", ours, transformers_log_probability(folder, tokens), 1e-4)


def check_read(program, folder, tied):
    """Files of several types by safetensors' own writer, with an index; slimpack reads them."""
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 40, "hidden_size": 16,
              "intermediate_size": 28, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1,
              "head_dim": 4, "rms_norm_eps": 1e-6, "rope_theta": 500000.0, "hidden_act": "silu",
              "tie_word_embeddings": tied, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    generator = numpy.random.RandomState(3)
    shapes = {"model.embed_tokens.weight": (40, 16), "model.norm.weight": (16,)}
    if not tied:
        shapes["lm_head.weight"] = (40, 16)
    for layer in range(3):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": (16,), at + "post_attention_layernorm.weight": (16,),
                   at + "self_attn.q_proj.weight": (16, 16), at + "self_attn.k_proj.weight": (4, 16),
                   at + "self_attn.v_proj.weight": (4, 16), at + "self_attn.o_proj.weight": (16, 16),
                   at + "mlp.gate_proj.weight": (28, 16), at + "mlp.up_proj.weight": (28, 16),
                   at + "mlp.down_proj.weight": (16, 28)}
    kinds = [numpy.float32, numpy.float16, numpy.float64]
    shards, weights, place = [{}, {}, {}], {}, {}
    for at, (name, shape) in enumerate(shapes.items()):
        kind = kinds[at % 3]
        weights[name] = (generator.standard_normal(shape) / 3 + (len(shape) == 1)).astype(kind)
        shards[at // 3 % 3][name] = weights[name]
        place[name] = f"model-{at // 3 % 3 + 1:05}-of-00003.safetensors"
    for at, shard in enumerate(shards):
        save_file(shard, folder / f"model-{at + 1:05}-of-00003.safetensors", metadata={"format": "pt"})
    index = {"metadata": {"total_size": sum(each.nbytes for each in weights.values())}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    tokens, ours = run(program, "read", folder)
    compare(f"files of safetensors{', tied' if tied else ''}", ours, log_probability(config, weights, tokens), 1e-12)


def check_transformers(program, folder, tied, shard):
    torch.manual_seed(4)
    config = transformers.LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=28, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied,
                                      rope_theta=250000.0, rms_norm_eps=1e-6, max_position_embeddings=64)
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder, max_shard_size=shard, safe_serialization=True)
    files = len(list(folder.glob("*.safetensors")))
    tokens, ours = run(program, "read", folder)
    compare(f"{files} files of transformers{', tied' if tied else ''}", ours,
            transformers_log_probability(folder, tokens), 1e-4)


def main(arguments):
    if len(arguments) != 1:
        print(__doc__)
        return 2
    program = arguments[0]
    print(f"numpy {numpy.__version__}, safetensors {safetensors.__version__}, " +
          (f"torch {torch.__version__}, transformers {transformers.__version__}" if transformers
           else "no transformers: logits by a decoder in NumPy alone"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for tied in (False, True):
            for kind in ("f32", "f64", "bf16"):
                check_saved(program, folder / f"saved-{kind}-{tied}", kind, tied)
            check_read(program, folder / f"files-{tied}", tied)
            if transformers:
                check_transformers(program, folder / f"one-{tied}", tied, "10GB")
                check_transformers(program, folder / f"several-{tied}", tied, "10KB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
