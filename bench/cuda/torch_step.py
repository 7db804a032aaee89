#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains on the documents of a plan in plain PyTorch on one GPU, to set beside `mini_trainer --backend cuda`.

    bench/cuda/torch_step.py PLAN.json [--steps N] [--tokens N] [--eager] [--cpu]

PLAN.json is what `mini_trainer --trace` puts beside a trace: of it the model and the lengths of documents count. A
step is what people write who have no planner: whole documents, the longest first, each into the fullest micro-batch
that has room for it, gradients added up over micro-batches of at most --tokens tokens (the longest document unless
said otherwise), FlashAttention with the documents' offsets, everything else by torch.compile, logits in tiles of
4,096 tokens, the norm of gradients clipped, fused AdamW. Weights, gradients and moments are bf16, which is less to
move than the fp32 gradients and moments of mini_trainer; nothing is recomputed. --eager leaves out torch.compile,
--cpu tries the script where there is no GPU.

Prints seconds of every step, the first one, which compiles, too; then the median of the others as JSON. Ends with 2 on
bad input, with 1 where PyTorch or the GPU is missing.
"""
import argparse
import json
import statistics
import sys
import time

TILE = 4096  # tokens whose logits exist at one time


def micro_batches(lengths, room):
    """Numbers of documents by micro-batch."""
    batches, filled = [], []
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        open_ones = [i for i, used in enumerate(filled) if used + lengths[number] <= room]
        if open_ones:
            place = max(open_ones, key=filled.__getitem__)
        else:
            place = len(batches)
            batches.append([])
            filled.append(0)
        batches[place].append(number)
        filled[place] += lengths[number]
    return batches


def make_step(torch, model, lengths, options):
    """A function that trains one step and gives its loss."""
    device, dtype = ("cpu", torch.float32) if options.cpu else ("cuda", torch.bfloat16)
    functional = torch.nn.functional
    h, f, d, vocab = model["hidden"], model["ffn"], model["head_dim"], model["vocab"]
    heads, kv_heads, eps = model["heads"], model["kv_heads"], model["norm_eps"]
    generator = torch.Generator(device=device)
    generator.manual_seed(1)

    def weight(*size):
        made = torch.randn(*size, device=device, generator=generator) * 0.02
        return made.to(dtype).requires_grad_()

    def gain():
        return torch.ones(h, device=device, dtype=dtype, requires_grad=True)

    layers = [(gain(), weight((heads + 2 * kv_heads) * d, h), weight(h, heads * d), gain(), weight(2 * f, h),
               weight(h, f)) for _ in range(model["layers"])]
    table, last_gain = weight(vocab, h), gain()
    projection = table if model["tied"] else weight(vocab, h)
    weights = [one for layer in layers for one in layer] + [table, last_gain]
    if projection is not table:
        weights.append(projection)
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=not options.cpu)
    frequencies = model["rope_theta"] ** (-torch.arange(0, d, 2, device=device, dtype=torch.float32) / d)

    def rotated(x, cosine, sine):
        low, high = x.float().chunk(2, -1)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1).to(x.dtype)

    def before(x, norm, qkv, cosine, sine):
        rows = functional.linear(functional.rms_norm(x, (h,), norm, eps), qkv).view(x.shape[0], -1, d)
        query, key, value = rows.split((heads, kv_heads, kv_heads), 1)
        return rotated(query, cosine, sine), rotated(key, cosine, sine), value.contiguous()

    def behind(x, attended, out, norm, gate_up, down):
        x = x + functional.linear(attended.reshape(x.shape[0], -1), out)
        gate, up = functional.linear(functional.rms_norm(x, (h,), norm, eps), gate_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, down)

    def tile_loss(hidden, norm, matrix, targets):
        logits = functional.linear(functional.rms_norm(hidden, (h,), norm, eps), matrix)
        return functional.cross_entropy(logits.float(), targets, reduction="sum", ignore_index=-1)

    if not options.eager and not options.cpu:
        before, behind, tile_loss = (torch.compile(one, dynamic=True) for one in (before, behind, tile_loss))

    class Flash(torch.autograd.Function):
        """Causal attention of documents one behind the other; heads of keys are shared by groups of queries."""

        @staticmethod
        def forward(context, query, key, value, offsets, longest):
            limits = (offsets, offsets, longest, longest)
            result = torch.ops.aten._flash_attention_forward(query, key, value, *limits, 0.0, True, False)
            context.save_for_backward(query, key, value, *result[:4], offsets)
            context.longest = longest
            return result[0]

        @staticmethod
        def backward(context, gradient):
            query, key, value, output, log_sum, state, unused, offsets = context.saved_tensors
            limits = (offsets, offsets, context.longest, context.longest)
            gradients = torch.ops.aten._flash_attention_backward(
                gradient.contiguous(), query, key, value, output, log_sum, *limits, 0.0, True, state, unused)
            return (*gradients, None, None)

    def attention(query, key, value, offsets, longest):
        if not options.cpu:
            return Flash.apply(query, key, value, offsets, longest)
        parts = []
        for begin, end in zip(offsets[:-1], offsets[1:]):
            one = [part[begin:end].transpose(0, 1) for part in (query, key, value)]
            parts.append(functional.scaled_dot_product_attention(*one, is_causal=True, enable_gqa=True).transpose(0, 1))
        return torch.cat(parts)

    batches = []
    for numbers in micro_batches(lengths, options.tokens or max(lengths)):
        sizes = [lengths[number] for number in numbers]
        tokens = torch.randint(vocab, (sum(sizes),), device=device, generator=generator)
        targets = tokens.roll(-1)
        ends = torch.tensor(sizes, device=device).cumsum(0)
        targets[ends - 1] = -1
        angles = torch.cat([torch.arange(size, device=device) for size in sizes])[:, None] * frequencies
        offsets = torch.cat((ends.new_zeros(1), ends)).to(torch.int32)
        batches.append((tokens, targets, angles.cos()[:, None], angles.sin()[:, None], offsets, max(sizes)))
    count = sum(int((batch[1] >= 0).sum()) for batch in batches)

    def step():
        total = torch.zeros((), device=device)
        for tokens, targets, cosine, sine, offsets, longest in batches:
            x = functional.embedding(tokens, table)
            for norm, qkv, out, second_norm, gate_up, down in layers:
                x = behind(x, attention(*before(x, norm, qkv, cosine, sine), offsets, longest), out, second_norm, gate_up,
                           down)
            hidden = x.detach().requires_grad_()
            for begin in range(0, len(tokens), TILE):
                loss = tile_loss(hidden[begin:begin + TILE], last_gain, projection, targets[begin:begin + TILE]) / count
                loss.backward()
                total += loss.detach()
            x.backward(hidden.grad)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(total)  # which waits for the device

    return step, [sum(lengths[number] for number in numbers)
                  for numbers in micro_batches(lengths, options.tokens or max(lengths))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", metavar="PLAN.json")
    parser.add_argument("--steps", type=int, default=4, help="of which the first is not counted [4]")
    parser.add_argument("--tokens", type=int, help="of a micro-batch, at most [those of the longest document]")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--cpu", action="store_true", help="to try the script")
    options = parser.parse_args()
    try:
        with open(options.plan, encoding="utf-8") as file:
            plan = json.load(file)
        model, lengths = plan["model"], plan["samples"]
        if options.tokens is not None and options.tokens < max(lengths):
            parser.error(f"--tokens: must be at least the longest document, {max(lengths)}, got {options.tokens}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{options.plan}: must be a plan.json: {error}")
    if options.steps < 2:
        parser.error(f"--steps: must be >= 2, got {options.steps}")
    try:
        import torch
    except ImportError:
        print("torch_step.py: PyTorch is not installed", file=sys.stderr)
        return 1
    if not options.cpu and not torch.cuda.is_available():
        print("torch_step.py: PyTorch finds no GPU", file=sys.stderr)
        return 1
    step, sizes = make_step(torch, model, lengths, options)
    seconds = []
    for number in range(options.steps):
        begin = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - begin)
        print(f"step {number + 1}: loss {loss:.4f}, {seconds[-1]:.3f} s", flush=True)
    found = {"torch": torch.__version__, "compiled": not options.eager and not options.cpu, "model": model["name"],
             "tokens": sum(lengths), "documents": len(lengths), "micro_batches": sizes,
             "seconds": statistics.median(seconds[1:])}
    if not options.cpu:
        found.update(device=torch.cuda.get_device_name(), peak_bytes=torch.cuda.max_memory_allocated())
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
