#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws random settings for a matrix of slimpack evaluate: bench/evaluation/draw_settings.py SEED COUNT

Prints COUNT groups named "random" as JSON, one a line: length set, context, model, cluster, GPUs and samples of a
step, each drawn alike from what goes with those before it, and a seed of the batch; degrees are left to the planners. A context is at most
the longest document of its set, and a model has at least the GPUs that hold its weights, gradients and optimizer
with room beside them. Draws are SHA-256 of seed, number and name, so the same seed prints the same bytes anywhere;
a setting that was drawn before is drawn again. Ends with status 2 for a seed or count that is none.
"""
import hashlib
import json
import sys

CONTEXTS = {  # of sets in the order of the matrix
    "code": (16384, 32768, 65536, 131072, 262144),
    "long-context": (16384, 32768, 65536, 131072, 262144),
    "books": (16384, 32768, 65536, 131072, 262144),
    "encyclopedia": (16384, 32768, 65536),
    "web": (16384, 32768),
    "webpages": (16384, 32768),
}
GPUS = {
    "llama-7b": (8, 16, 32, 64, 128),
    "llama3-8b": (8, 16, 32, 64, 128),
    "llama-13b": (16, 32, 64, 128),
    "llama-34b": (32, 64, 128),
    "llama-70b": (64, 128, 256),
    "llama3-70b": (64, 128, 256),
}
CLUSTERS = ("a100", "h100", "h200")
SAMPLES = (64, 128, 256, 512, 1024)
BOOKS = (8, 16, 32)  # samples of books, cut ones too: up to 5 million tokens a step
ALIKE = {"effort": "normal", "finalists": 3}


def draw(seed, number, name, values):
    """One of the values, each as likely as the others but for 1 in 2^250."""
    digest = hashlib.sha256(f"{seed}/{number}/{name}".encode()).digest()
    return values[int.from_bytes(digest, "big") % len(values)]


def setting(seed, number):
    name = draw(seed, number, "set", tuple(CONTEXTS))
    model = draw(seed, number, "model", tuple(GPUS))
    return {"set": name, "model": model, "cluster": draw(seed, number, "cluster", CLUSTERS),
            "gpus": draw(seed, number, "gpus", GPUS[model]), "context": draw(seed, number, "context", CONTEXTS[name]),
            "samples": draw(seed, number, "samples", BOOKS if name == "books" else SAMPLES)}


def settings(seed, count):
    """The first `count` different ones."""
    drawn = []
    number = 0
    while len(drawn) < count:
        one = setting(seed, number)
        if one not in drawn:
            drawn.append(one)
        number += 1
    return drawn


def group(one, place):
    """A setting as a group of the matrix; its place is the seed of its batch, which is the same for all planners."""
    return {"name": "random", **one, "seed": place, **ALIKE}


def main(arguments):
    if len(arguments) != 2 or not all(text.isascii() and text.isdigit() for text in arguments) or not 1 <= int(arguments[1]) <= 1000:
        print("draw_settings.py: SEED must be a whole number, COUNT one in 1 .. 1000", file=sys.stderr)
        return 2
    seed, count = map(int, arguments)
    print(",\n".join(json.dumps(group(one, place)) for place, one in enumerate(settings(seed, count))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
