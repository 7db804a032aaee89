#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch on the shapes that bench_cuda measures.

    bench_cuda --list >cases.json
    bench/cuda/pytorch.py cases.json -o pytorch.json [--only TEXT] [--budget-ms N] [--seconds N]

Writes what bench_cuda writes: rows with milliseconds, or the reason why a back end does not compute a case.
Attention by scaled_dot_product_attention where all documents are of one length and have no prefix, else by
the functions beneath it that take documents of different lengths; flash attention and cuDNN are chosen by
name. Rows of one back end are `torch flash`, `torch cudnn` or `torch`. Ends with 2 on bad input, with 1 if
PyTorch or the device is missing or a kernel of PyTorch's leaves the device unusable: the output then has what
came before.
"""
import argparse
import datetime
import itertools
import json
import math
import pathlib
import sys
import time

STRETCH_MS = 2
LEAST_SAMPLES, MOST_SAMPLES, MOST_BATCH, MOST_SETS = 5, 100, 500, 64


class Refused(Exception):
    """A back end that does not compute a case; the text says why."""


def quantile(ordered, share):
    """Linear between neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def sets_needed(set_bytes, cache_bytes):
    """Input sets for which none is left in the cache when its turn comes again."""
    return max(1, min(MOST_SETS, math.ceil(2 * cache_bytes / max(set_bytes, 1))))


def measure(torch, launches, budget_ms):
    """Milliseconds of one launch, of several input sets in turn: as bench_cuda does it."""
    turns = itertools.cycle(launches)

    def stretch(count):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            next(turns)()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / count

    cold = stretch(len(launches))
    first = max(stretch(1 if cold > 50 else 2), 1e-4)
    batch = max(1, min(MOST_BATCH, math.ceil(STRETCH_MS / first)))
    samples = max(LEAST_SAMPLES, min(MOST_SAMPLES, int(budget_ms / (first * batch))))
    found = sorted(stretch(batch) for _ in range(samples))
    return {"milliseconds": quantile(found, 0.5), "low": quantile(found, 0.1), "high": quantile(found, 0.9),
            "samples": samples, "batch": batch, "sets": len(launches)}


def lengths_of(case):
    """(prefix, rows) of each document."""
    return [(prefix, rows) for prefix, rows, count in case["documents"] for _ in range(count)]


def cumulated(values):
    return [0] + list(itertools.accumulate(values))


# --- what makes the launch of one input set, by operation and back end ---


class Torch:
    """The operations. Every method takes a case and gives a function that queues one run."""

    def __init__(self, torch):
        self.torch = torch
        self.generator = torch.Generator(device="cuda")
        self.generator.manual_seed(1)

    def random(self, *size, dtype=None):
        return self.torch.randn(*size, device="cuda", dtype=dtype or self.torch.bfloat16, generator=self.generator)

    def copy(self, case):
        count = int(case["bytes"]) // 8
        source, target = (self.random(count, dtype=self.torch.float32) for _ in range(2))
        return lambda: target.copy_(source)

    def gemm(self, case):
        rows, inputs, outputs = (case["shape"][name] for name in ("rows", "inputs", "outputs"))
        torch = self.torch
        operation = case["operation"]
        if operation in ("gemm.forward", "gemm.forward_add"):
            x, weight = self.random(rows, inputs), self.random(outputs, inputs)
            out = self.random(rows, outputs)
            if operation == "gemm.forward_add":
                return lambda: torch.addmm(out, x, weight.t())
            return lambda: torch.matmul(x, weight.t(), out=out)
        dout = self.random(rows, outputs)
        if operation == "gemm.input_gradient":
            weight, out = self.random(outputs, inputs), self.random(rows, inputs)
            return lambda: torch.matmul(dout, weight, out=out)
        x = self.random(rows, inputs)
        gradient = self.random(outputs, inputs, dtype=torch.float32)
        return lambda: gradient.add_(torch.matmul(dout.t(), x))  # rounded to bf16 on the way

    def attention(self, case, backend):
        backward = case["operation"] == "attention.backward"
        documents = lengths_of(case)
        if len(set(documents)) == 1 and documents[0][0] == 0:
            return self.attention_of_one_length(case, backend, backward)
        if backend == "cudnn" and any(prefix for prefix, _ in documents):
            raise Refused("PyTorch gives cuDNN only masks that begin at the first key: none for a prefix")
        return self.attention_of_many_lengths(case, backend, backward)

    def attention_of_one_length(self, case, backend, backward):
        torch = self.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        chosen = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]
        shape = case["shape"]
        documents = lengths_of(case)
        batch, length = len(documents), documents[0][1]

        def tensor(heads):  # tokens before heads in memory, as a model has it
            made = self.random(batch, length, heads, shape["head_dim"]).transpose(1, 2)
            return made.requires_grad_() if backward else made

        query, key, value = tensor(shape["heads"]), tensor(shape["kv_heads"]), tensor(shape["kv_heads"])
        grouped = shape["heads"] != shape["kv_heads"]

        def forward():
            with sdpa_kernel([chosen]):
                return torch.nn.functional.scaled_dot_product_attention(
                    query, key, value, is_causal=True, enable_gqa=grouped)

        if not backward:
            return forward
        output = forward()
        doutput = torch.randn_like(output)

        return lambda: torch.autograd.grad(output, (query, key, value), doutput, retain_graph=True)

    def attention_of_many_lengths(self, case, backend, backward):
        torch = self.torch
        shape = case["shape"]
        documents = lengths_of(case)
        rows = [rows for _, rows in documents]
        keys = [prefix + rows for prefix, rows in documents]

        def offsets(values):
            return torch.tensor(cumulated(values), dtype=torch.int32, device="cuda")

        row_offsets, key_offsets = offsets(rows), offsets(keys)
        limits = (row_offsets, key_offsets, max(rows), max(keys))
        query = self.random(sum(rows), shape["heads"], shape["head_dim"])
        key, value = (self.random(sum(keys), shape["kv_heads"], shape["head_dim"]) for _ in range(2))
        aten = torch.ops.aten
        if backend == "flash":  # its causal mask ends at the last key: right for a prefix
            def forward():
                return aten._flash_attention_forward(query, key, value, *limits, 0.0, True, False)
        else:
            def forward():
                return aten._cudnn_attention_forward(query, key, value, None, *limits, backward, 0.0, True, False)
        if not backward:
            return forward
        result = forward()
        output, log_sum = result[0], result[1]
        doutput = self.random(sum(rows), shape["heads"], shape["head_dim"])
        if backend == "flash":
            state, unused = result[2], result[3]
            return lambda: aten._flash_attention_backward(
                doutput, query, key, value, output, log_sum, *limits, 0.0, True, state, unused)
        seed, offset = result[6], result[7]
        no_bias = None  # an empty tensor would count as one
        return lambda: aten._cudnn_attention_backward(
            doutput, query, key, value, output, log_sum, seed, offset, no_bias, *limits, 0.0, True)

    def backward_of(self, make_output, inputs):
        output = make_output()
        doutput = self.torch.randn_like(output)
        return lambda: self.torch.autograd.grad(output, inputs, doutput, retain_graph=True)

    def rms_norm(self, case):
        backward = case["operation"].endswith("backward")
        rows, columns = case["shape"]["rows"], case["shape"]["columns"]
        x, gain = self.random(rows, columns), self.random(columns)

        def forward():
            return self.torch.nn.functional.rms_norm(x, (columns,), gain, 1e-5)

        if not backward:
            return forward
        return self.backward_of(forward, (x.requires_grad_(), gain.requires_grad_()))

    def swiglu(self, case):
        backward = case["operation"].endswith("backward")
        rows, columns = case["shape"]["rows"], case["shape"]["columns"]
        gate, up = self.random(rows, columns), self.random(rows, columns)

        def forward():
            return self.torch.nn.functional.silu(gate) * up

        if not backward:
            return forward
        return self.backward_of(forward, (gate.requires_grad_(), up.requires_grad_()))

    def cross_entropy(self, case):
        """Loss and gradient of logits, which slimpack computes in one pass."""
        torch = self.torch
        rows, columns = case["shape"]["rows"], case["shape"]["columns"]
        logits = self.random(rows, columns).requires_grad_()
        targets = torch.randint(columns, (rows,), device="cuda", generator=self.generator)

        def both():
            loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            return torch.autograd.grad(loss, logits)

        return both

    def adamw(self, case):
        torch = self.torch
        rows, columns = case["shape"]["rows"], case["shape"]["columns"]
        weight = torch.nn.Parameter(self.random(rows, columns, dtype=torch.float32))
        weight.grad = self.random(rows, columns, dtype=torch.float32)
        optimizer = torch.optim.AdamW([weight], lr=1e-4, fused=True)
        copy = self.random(rows, columns)

        def step():
            optimizer.step()
            copy.copy_(weight.detach())  # the bf16 weights of the next step, which slimpack writes too

        return step


def makers(made, case):
    """(back end, what makes a launch) for a case; none where PyTorch has no such operation."""
    operation = case["operation"]
    if operation == "copy":
        return [("torch", made.copy)]
    if operation.startswith("gemm."):
        return [("torch", made.gemm)]
    if operation in ("attention.forward", "attention.backward"):
        return [(f"torch {name}", lambda case, name=name: made.attention(case, name)) for name in ("flash", "cudnn")]
    for name in ("rms_norm", "swiglu", "cross_entropy", "adamw"):
        if operation == name or operation.startswith(name + "."):
            return [("torch", getattr(made, name))]
    return []


def distinct(cases):
    """Each operation and shape once, whatever the paths."""
    seen = set()
    for case in cases:
        if (case["operation"], case["name"]) not in seen:
            seen.add((case["operation"], case["name"]))
            yield case


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def write(path, result):
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.replace(path)


def run(torch, cases, options):
    began = time.monotonic()
    made = Torch(torch)
    properties = torch.cuda.get_device_properties(0)
    cache = getattr(properties, "L2_cache_size", 64 << 20)
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    rows = []
    result = {"program": "pytorch.py", "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "device": {"name": properties.name}, "versions": versions, "rows": rows}
    write(options.output, result)
    for case in distinct(cases):
        if options.only not in f"{case['operation']}: {case['name']}":
            continue
        for path, make in makers(made, case):
            row = {key: case[key] for key in ("operation", "name", "shape", "flop", "bytes")} | {"path": path}
            try:
                if time.monotonic() - began > options.seconds:
                    raise Refused("not begun: the time was over")
                sets = sets_needed(case["set_bytes"], cache)
                launches = [make(case) for _ in range(sets)]
                row |= measure(torch, launches, options.budget_ms)
                print(f"{case['operation']}: {case['name']} by {path}: {row['milliseconds']:.4f} ms", file=sys.stderr)
            except (Refused, RuntimeError, AttributeError, TypeError, ValueError, LookupError) as error:
                row["why_not"] = first_line(error)
                print(f"{case['operation']}: {case['name']} by {path}: {row['why_not']}", file=sys.stderr)
            rows.append(row)
            write(options.output, result)  # whoever is cut off leaves what has been measured
            launches = None  # so that the next case has the memory
            try:
                torch.cuda.empty_cache()
            except RuntimeError as error:  # a kernel of PyTorch's has broken the context
                print(f"pytorch.py: nothing runs after {case['operation']}: {case['name']} by {path}: {first_line(error)}",
                      file=sys.stderr)
                return 1
    return 0


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="cases with this text in 'operation: name'")
    parser.add_argument("--budget-ms", type=float, default=300, help="milliseconds of runs for each case")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no case begins later")
    options = parser.parse_args(arguments)
    try:
        cases = json.loads(options.cases.read_text(encoding="utf-8"))["cases"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"pytorch.py: {options.cases}: must be what bench_cuda --list prints: {type(error).__name__}: {error}",
              file=sys.stderr)
        return 2
    try:
        import torch
    except ImportError:
        print("pytorch.py: PyTorch is not installed", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print("pytorch.py: PyTorch finds no CUDA device", file=sys.stderr)
        return 1
    return run(torch, cases, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
