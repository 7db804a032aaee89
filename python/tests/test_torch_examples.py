# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/ train, save, resume and refuse."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("slimpack.torch", exc_type=ImportError)
pytest.importorskip("transformers")


def torchrun(program: str, *arguments: object, ranks: int = 2, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
                           "--standalone", ROOT / "examples" / program, *map(str, arguments)],
                          capture_output=True, text=True, cwd=cwd, env=environment, timeout=120)


def losses(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return re.findall(r"^step \d+ loss \S+ norm \S+", done.stdout, re.M)


def test_twenty_lines_train(tmp_path: Path) -> None:
    source = (ROOT / "examples/torch_twenty_lines.py").read_text()
    assert len([line for line in source.splitlines() if line and not line.startswith(("#", "import", "from", '"""'))]) <= 20
    done = torchrun("torch_twenty_lines.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^step (\d) loss \d", done.stdout, re.M) == ["0", "1", "2"]


def test_a_resumed_run_is_the_run(tmp_path: Path) -> None:
    small = ("--context", 256, "--batch-tokens", "1K")
    whole = losses(torchrun("torch_pretrain.py", "--steps", 4, "--save", tmp_path / "whole", *small, cwd=tmp_path))
    first = losses(torchrun("torch_pretrain.py", "--steps", 2, "--save", tmp_path / "parts", *small, cwd=tmp_path))
    rest = losses(torchrun("torch_pretrain.py", "--steps", 4, "--save", tmp_path / "parts", "--resume", *small,
                           cwd=tmp_path))
    assert len(whole) == 4 and first + rest == whole
    for shard in sorted((tmp_path / "whole").glob("*.safetensors")):
        assert shard.read_bytes() == (tmp_path / "parts" / shard.name).read_bytes()
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert model.config.num_hidden_layers == 8


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    Path(tmp_path, "bad.jsonl").write_text(json.dumps({"text": "good"}) + "\n{}\n")
    done = torchrun("torch_pretrain.py", "--data", "bad.jsonl", cwd=tmp_path)
    assert done.returncode != 0
    assert "torch_pretrain: bad.jsonl, line 2: must be an object with a text, got '{}'" in done.stderr
