#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/evaluation.py: figures of a tiny store, refusals by name, and the committed page beside its store."""
import contextlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import evaluation  # noqa: E402

PLANNERS = ["slimpack", "slimpack-symmetric", "megatron", "megatron-cp", "kk"]
TIMES = {  # (set, context): seconds of each planner, None for no plan
    ("code", 32768): [1.0, 1.05, 2.0, 1.5, 1.01],
    ("code", 262144): [2.0, 2.2, 8.0, 5.0, None],
    ("web", 32768): [1.0, 1.0, 1.5, 1.6, 1.25],
    ("web", 262144): [1.0, 1.0, 2.0, 3.0, 0.8],
}


def result(key, axes, planner, time):
    cell = {"model": "llama-7b", "cluster": "h100", "gpus": 64, "samples": 512, "steps": 1, "seed": 0,
            "overlong": "split", "effort": "normal", "finalists": 1, "recompute": "auto", "head": "auto", "chunks": "auto",
            "merge": "auto", "granularity": 128, **axes}
    line = {"version": 1, "key": f"{key}/{planner}", "cell": cell, "planner": planner, "feasible": time is not None,
            "limit_bytes": 100, "tune_seconds": 1.5}
    if time is None:
        return {**line, "why": "bytes on a device: needed 9, available 8"}
    more = 0.5 if planner == "slimpack" else 0.0
    return {**line, "degrees": {"dp": 8, "pp": 8, "tp": 1}, "settings": {"recompute": "none"}, "iteration_s": time,
            "efficiency": 0.9 / time, "forward_cv": 0.1, "backward_cv": 0.2, "dp_imbalance": 1.01, "bubble": 0.05, "peak_bytes": 80,
            "communication_bytes": 5000000, "tokens": 1, "plan_seconds": 0.25,
            "time_split": {"ideal": time - more, "recompute": 0.0, "drain": more}}


def lines(**axes):
    cells = {f"cell{at}": {"set": name, "context": context, **axes} for at, (name, context) in enumerate(TIMES)}
    groups = [{"name": "contexts", "planners": PLANNERS, "cells": list(cells)},
              {"name": "clusters", "planners": PLANNERS, "cells": ["other"]}]
    made = [{"version": 1, "matrix": "old", "groups": []}, {"version": 1, "matrix": "tiny", "groups": groups}]
    for (key, cell), times in zip(cells.items(), TIMES.values()):
        made += [result(key, cell, planner, time) for planner, time in zip(PLANNERS, times)]
    return made


class Evaluation(unittest.TestCase):
    def page(self, store, *arguments):
        """Exit status, page and complaint."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "store.jsonl"
            path.write_text(store if isinstance(store, str) else "".join(json.dumps(line) + "\n" for line in store), encoding="utf-8")
            out, complaint = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaint):
                status = evaluation.main([*arguments, str(path)])
        return status, out.getvalue(), complaint.getvalue()

    def test_figures_are_those_of_the_store(self):
        status, page, complaint = self.page(lines(), "--groups", "contexts")
        self.assertEqual((status, complaint), (0, ""))
        for text in (
                "20 results, 4 settings that all planners were asked about, 3 systems beside `slimpack`",
                "**Not covered:** of the matrix `tiny` this page has the groups `contexts`; it has not these: `clusters` (5 results).",
                "bench/evaluation.py --groups contexts bench/results/evaluation.jsonl > docs/evaluation.md",
                "over 2 settings at 256K: up to 4.00x over `megatron` (mean 2.83x, least 2.00x), up to 2.50x over the best",
                "| code | 4.00 | 2.50 | 2.50 |",
                "| web | 2.00 | 2.00 | 0.80 |",
                "| `megatron` | 4 of 4 | 2.21 | 4.00 | 1.50 | web 32K, llama-7b, 64 h100, 512 samples |",
                "| `kk` | 3 of 4 | 1.00 | 1.25 | 0.80 | web 256K, llama-7b, 64 h100, 512 samples |",
                "| `megatron` | 1.73 | 2.83 | 1.63 |",
                "| share of ideal of `slimpack` | 90.0 % | 45.0 % |",
                "All pairs of setting and planner whose speed-up is below 1.02: 2 of 11; in 1 of them the other is faster.",
                "| web 256K, llama-7b, 64 h100, 512 samples | `kk` | 0.800 | 8 x 8 x 1, none | 8 x 8 x 1, none | drain +50.0 % |",
                "| `slimpack-symmetric`: the same packs in both passes | 1.05 | 1.10 | 1.00 | 1.00 |",
                "| `kk` | 1 | code 256K, llama-7b, 64 h100, 512 samples | bytes on a device: needed 9, available 8 |"):
            self.assertIn(text, page)
        self.assertNotIn("slimpack-symmetric` | 4 of 4", page)
        self.assertEqual(self.page(lines(), "--groups", "contexts")[1], page)

    def test_times_of_a_systems_own_are_compared_as_one_sum(self):
        store = lines()
        for line in store:
            if line.get("key", "").startswith("cell3/") and line["feasible"]:
                ours = line["planner"] == "slimpack"
                line["time_split"] = {"ideal": 0.5, "recompute": 0.1 if ours else 0.5, "overhead": 0.4 if ours else -0.2}
        page = self.page(store, "--groups", "contexts")[1]
        self.assertRegex(page, r"`kk` \| 0\.800 \|.*\| what units add to bare work \+20\.0 % \|")

    def test_bad_stores_are_refused_by_name(self):
        good = lines()
        newer = {**good[3], "version": 2}
        cases = [
            (good, [], r"store\.jsonl: lacks 5 of 25 results of matrix tiny, groups contexts, clusters; the first is other/slimpack"),
            (good[:5] + good[6:], ["--groups", "contexts"], r"lacks 1 of 20 results of matrix tiny, groups contexts; the first is cell0/megatron-cp$"),
            (good, ["--groups", "models"], r"matrix tiny has no group 'models', but contexts, clusters"),
            (good[:3] + [newer] + good[4:], ["--groups", "contexts"], r"line 4: results of version 2, not 1: a page is of one version"),
            (good + [good[4]], ["--groups", "contexts"], r"line 23: cell0/megatron is there twice"),
            (good[2:], [], r"no line says which matrix this is"),
            ("".join(json.dumps(line) + "\n" for line in good) + '{"version": 1, "ke', [], r"the last line is torn"),
            (good + [{"loss": 1}], [], r"line 23: not a result of slimpack evaluate"),
            ("plain text\n", [], r"line 1: not a result of slimpack evaluate"),
        ]
        for store, arguments, sentence in cases:
            with self.subTest(sentence=sentence):
                status, page, complaint = self.page(store, *arguments)
                self.assertEqual((status, page), (2, ""))
                self.assertRegex(complaint, sentence)
                self.assertEqual(complaint.count("\n"), 1)
        complaint = io.StringIO()
        with contextlib.redirect_stderr(complaint):
            self.assertEqual(evaluation.main(["absent.jsonl"]), 2)
        self.assertRegex(complaint.getvalue(), r"absent\.jsonl: No such file")

    def test_the_committed_page_is_made_from_the_committed_store(self):
        page = ROOT / "docs" / "evaluation.md"
        text = page.read_text(encoding="utf-8")
        command = re.search(r"(?m)^(bench/evaluation\.py .*) > docs/evaluation\.md", text).group(1)
        made = subprocess.run([sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, check=True)
        self.assertEqual(made.stdout, text)


if __name__ == "__main__":
    unittest.main()
