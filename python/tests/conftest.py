# SPDX-License-Identifier: Apache-2.0
"""What the tests of the package share."""
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_command(*words, stdin=""):
    """The command line: the program that SLIMPACK_PROGRAM names, else the package's own."""
    given = os.environ.get("SLIMPACK_PROGRAM")
    program = [given] if given else [sys.executable, "-m", "slimpack"]
    return subprocess.run([*program, *map(str, words)], input=stdin, capture_output=True, text=True, timeout=120)


def as_text(lengths):
    return "".join(f"{length}\n" for length in lengths)


def as_words(options):
    """Arguments of slimpack.plan as words of the command line."""
    words = []
    for name, value in options.items():
        if name == "shuffle":
            words += [] if value else ["--no-shuffle"]
        elif value is not None:
            words += ["--" + name.replace("_", "-"), value]
    return words


def drawn_lengths(seed, count=60, most=6000):
    return np.minimum(np.random.default_rng(seed).lognormal(6.5, 1.5, count).astype(np.int64) + 1, most)


SMALL = dict(model="llama3-8b", dp=2, pp=2, tp=4, effort="fast", merge=2)


@pytest.fixture
def command():
    return run_command


@pytest.fixture(scope="session")
def lengths():
    """Documents of which two ranks share the longest."""
    return np.append(drawn_lengths(1, 30, 2000), 90000)


@pytest.fixture(scope="session")
def small(lengths):
    """A plan with two stages, two ranks, a group of both, and packs that differ between passes."""
    import slimpack

    return slimpack.plan(lengths, **SMALL)
