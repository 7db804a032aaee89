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
    assert " Over all steps of a planner the median is " in told.splitlines()[-1]
    assert run(*asked, "--only", "table") == told  # nothing is measured again
    prices = json.loads((tmp_path / "cost-pp2.json").read_text())
    assert run(*asked, "--only", "table", "--cost", str(tmp_path / "cost-pp2.json")) == told
    prices["optimizer"]["unit"] += 1e3  # a step is as much longer
    (tmp_path / "dear.json").write_text(json.dumps(prices))
    dear = run(*asked, "--only", "table", "--cost", str(tmp_path / "dear.json"))
    before, after = ([[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "| slimpack" in line]
                     for text in (told, dear))
    assert before[0][:6] == after[0][:6] and float(after[0][7]) > 1e3 * float(before[0][7])
    ranks = run(*asked, "--degrees", "dp2")
    assert "| dp 2, seed 0, " in ranks and "| slimpack" in ranks and "torch 1F1B" not in ranks
    unsteady = start(*asked[:-1], "0", "--only", "table")
    assert unsteady.returncode == 1
    assert "| slimpack" not in unsteady.stdout
    assert unsteady.stderr.startswith("torch_step.py: setting 0: the median of 6 times of ")
    assert "whose median is known to 0 %, so the machine does not keep its speed" in unsteady.stderr
    assert len(unsteady.stderr.splitlines()) == 1
    agreed = json.loads((tmp_path / "profiles-pp2.json").read_text())
    assert set(agreed) == {"layer", "apart", "weight", "cp", "light"} and set(sum(agreed.values(), [])) == {1}  # it is one profile
    (tmp_path / "profiles-pp2.json").write_text(json.dumps(dict(agreed, layer=[1, 1e4, 1e8])))
    differ = start(*asked, "--only", "table")
    assert differ.returncode == 1 and "| slimpack" not in differ.stdout
    assert differ.stderr.startswith("torch_step.py: setting 0: rows layer of 3 profiles are 1.000, 10000.000, 100000000.000 of ")
    (tmp_path / "profiles-pp2.json").unlink()  # as from before it was kept
    (tmp_path / "beside-pp2.json").write_text(json.dumps([1e-9] * 11 + [1e9] * 9))
    busy = start(*asked, "--only", "table")
    assert busy.returncode == 1 and "| slimpack" not in busy.stdout
    assert busy.stderr.startswith("torch_step.py: setting 0: the median of the reference beside the profiles is known to ")


def test_the_summary_counts_pairs_and_takes_medians_of_planners() -> None:
    code = """if True:
        import sys
        sys.path.insert(0, sys.argv[1])
        import torch_step
        print(torch_step.summary_of([{"a": [1.0] * 6, "b": [1.1] * 6}, {"a": [1.02] * 7, "b": [1.031] * 8}]))
    """
    done = subprocess.run([sys.executable, "-c", code, str(ROOT / "python/bench")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "2 of 4 predictions are within 3 % of measured times, by the reference; 2 are further off by all of their interval. "
        "Over all steps of a planner the median is 1.020 (a) to 1.031 (b).\n")


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores on Linux")
def test_cores_are_loaded_while_processes_wait() -> None:
    code = """if True:
        import json, multiprocessing, os, sys
        sys.path.insert(0, sys.argv[1])
        import torch_step
        torch_step.load_cores(dict(torch_step.SIZES, hidden_size=64, intermediate_size=64, head_dim=16))
        running = [one.pid for one in multiprocessing.active_children()]
        print(json.dumps([[pid, os.sched_getscheduler(pid), *os.sched_getaffinity(pid)] for pid in running]))
    """
    done = subprocess.run([sys.executable, "-c", code, str(ROOT / "python/bench")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert sorted(line[1:] for line in told) == [[os.SCHED_IDLE, core] for core in sorted(os.sched_getaffinity(0))[:2]]
    for pid, *_ in told:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
