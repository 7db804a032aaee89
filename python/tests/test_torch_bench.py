# SPDX-License-Identifier: Apache-2.0
"""The measurements in python/bench run, and what they compare computes the same."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("slimpack.torch", exc_type=ImportError)
pytest.importorskip("transformers")


def start(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / "python/bench" / program, *arguments], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=900)


def run(program: str, *arguments: str) -> str:
    done = start(program, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_steps_of_all_contenders_have_one_loss(tmp_path: Path) -> None:
    asked = ("torch_step.py", str(tmp_path), "--tiny", "--settings", "1", "--rounds", "6", "--tries", "1", "--tokens", "600",
             "--effort", "fast", "--profiles", "1", "--budget", "0.1", "--reference-limit", "100000")
    told = run(*asked)
    for name in ("torch 1F1B", "torch Interleaved1F1B", "megatron", "slimpack"):
        assert f"| {name}" in told
    assert " predictions are within 3 % of measured times" in told.splitlines()[-1]
    assert run(*asked, "--only", "table") == told  # nothing is measured again
    ranks = run(*asked, "--degrees", "dp2")
    assert "| dp 2, seed 0, " in ranks and "| slimpack" in ranks and "torch 1F1B" not in ranks
    unsteady = start(*asked[:-1], "0", "--only", "table")
    assert unsteady.returncode == 1
    assert "| slimpack" not in unsteady.stdout
    assert unsteady.stderr.startswith("torch_step.py: setting 0: the median of 6 times of ")
    assert "whose median is known to 0 %, so the machine does not keep its speed" in unsteady.stderr
    assert len(unsteady.stderr.splitlines()) == 1
    (tmp_path / "beside-pp2.json").write_text(json.dumps([1e-9] * 11 + [1e9] * 9))
    busy = start(*asked, "--only", "table")
    assert busy.returncode == 1 and "| slimpack" not in busy.stdout
    assert busy.stderr.startswith("torch_step.py: setting 0: the median of the reference beside the profiles is known to ")
