# SPDX-License-Identifier: Apache-2.0
"""Training by run_plan has the losses of plain PyTorch."""
from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

pytest.importorskip("slimpack.torch", exc_type=ImportError)
pytest.importorskip("transformers")


def test_losses_are_those_of_plain_pytorch() -> None:
    program = ROOT / "python/bench/torch_losses.py"
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program,
                           "--steps", "4", "--dtype", "float64", "--tokens", "512"], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120)
    assert done.returncode == 0, done.stderr
    prefixes = re.search(r"(\d+) of them with a slice that has a prefix", done.stdout)
    worst = re.search(r"largest relative difference to plain PyTorch: run_plan (\S+)", done.stdout)
    assert prefixes and int(prefixes[1]) > 0
    assert worst and float(worst[1]) < 1e-10
