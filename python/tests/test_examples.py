# SPDX-License-Identifier: Apache-2.0
"""The notebook runs and shows a timeline, and so does every block of Python in the documents."""
import contextlib
import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT
from frameworks import load_megatron_schedule, load_verl, nemo_rl_contract, trl_modules

NOTEBOOK = ROOT / "python/examples/plan_lengths.ipynb"


def outputs_of(notebook):
    """What the cells show, by type, by nbclient or as a script where there is none."""
    try:
        import ipykernel  # noqa: F401
        import nbclient
        import nbformat
    except ImportError:
        shown, scope = [], {}
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                continue
            *lines, last = "".join(cell["source"]).splitlines()
            exec("\n".join(lines), scope)
            if re.fullmatch(r"\w+", last):
                shown.append(eval(last, scope)._repr_html_())
            else:
                exec("\n".join([*lines, last]) if last.startswith(" ") else last, scope)
        return shown
    run = nbformat.from_dict(notebook)
    nbclient.NotebookClient(run, timeout=120, kernel_name="python3").execute()
    return [output["data"]["text/html"] for cell in run.cells if cell.cell_type == "code"
            for output in cell.outputs if "text/html" in output.get("data", {})]


def test_the_notebook_shows_a_timeline():
    shown = outputs_of(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    assert any("data:image/svg+xml" in one and "hash" in one for one in shown)


@pytest.mark.parametrize("name", ["docs/python.md", "README.md", "docs/torch.md", "docs/verl.md", "docs/megatron.md", "docs/nemo_rl.md",
                                  "docs/coming_from.md"])
def test_code_in_the_documents_runs(name, tmp_path, monkeypatch):
    if name in ("docs/torch.md", "docs/coming_from.md"):
        pytest.importorskip("slimpack.torch", exc_type=ImportError)
        pytest.importorskip("transformers")
    if name in ("docs/verl.md", "docs/coming_from.md"):
        load_verl()
    if name == "docs/megatron.md":
        schedule = load_megatron_schedule()
        monkeypatch.setattr(schedule, "BalancedCPScheduler", schedule.BalancedCPScheduler)
    if name == "docs/nemo_rl.md":
        for module, made in nemo_rl_contract().items():
            monkeypatch.setitem(sys.modules, module, made)
    if name == "docs/coming_from.md":
        for module, made in trl_modules().items():
            monkeypatch.setitem(sys.modules, module, made)
    monkeypatch.chdir(tmp_path)
    scope = {}
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    for block in blocks:
        with contextlib.redirect_stdout(None):
            exec(block, scope)


def test_the_measurement_of_overhead_runs():
    done = subprocess.run([sys.executable, ROOT / "python/bench/overhead.py", "--lengths", "2000"], check=True,
                          capture_output=True, text=True)
    assert "a call on four lengths" in done.stdout and "2,000 lengths, a call with an array" in done.stdout
