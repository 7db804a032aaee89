#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/evaluation.py, old_new.py, evaluation/draw_settings.py: figures of a tiny store, refusals by name, the committed page and matrix."""
import contextlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "evaluation")]
import draw_settings  # noqa: E402
import evaluation  # noqa: E402
import old_new  # noqa: E402

PLANNERS = ["slimpack", "slimpack-symmetric", "megatron", "megatron-cp", "kk"]
NEAR = ["slimpack", "megatron-cp", "kk"]
TIMES = {  # (set, context): seconds of each planner, None for no plan
    ("code", 32768): [1.0, 1.05, 2.0, 1.5, 1.01],
    ("code", 262144): [2.0, 2.2, 8.0, 5.0, None],
    ("web", 32768): [1.0, 1.0, 1.5, 1.6, 1.25],
    ("web", 65536): [1.0, 1.0, 2.0, 3.0, 0.8],
}


def result(key, axes, planner, time, **more):
    cell = {"model": "llama-7b", "cluster": "h100", "gpus": 64, "samples": 512, "steps": 1, "seed": 0,
            "overlong": "split", "effort": "normal", "finalists": 1, "recompute": "auto", "head": "auto", "chunks": "auto",
            "merge": "auto", "granularity": 128, "lengths": "drawn" if axes["set"] == "web" else "measured", "lengths_sha256": axes["set"], **axes}
    line = {"version": 2, "key": f"{key}/{planner}", "commit": "abc", "cell": cell, "planner": planner, "feasible": time is not None,
            "limit_bytes": 100, "tune_seconds": 1.5, "cpu_seconds": 36.0, "others": []}
    if time is None:
        return {**line, "why": "bytes on a device: needed 9, available 8"}
    idle = 0.5 if planner == "slimpack" else 0.0
    return {**line, "degrees": {"dp": 8, "pp": 8, "tp": 1}, "settings": {"recompute": "none"}, "simulated_only": False, "iteration_s": time,
            "efficiency": 0.9 / time, "forward_cv": 0.1, "backward_cv": 0.2, "dp_imbalance": 1.01, "bubble": 0.05, "peak_bytes": 80,
            "communication_bytes": 5000000, "tokens": 1, "plan_seconds": 0.25,
            "time_split": {"ideal": time - idle, "recompute": 0.0, "drain": idle}, **more}


def matrix_line(**groups):
    return {"version": 2, "matrix": "tiny", "groups": [{"name": name, "planners": planners, "cells": cells}
                                                       for name, (planners, cells) in groups.items()]}


def lines():
    """Four chosen settings, and of two random ones the first."""
    cells = {f"cell{at}": {"set": name, "context": context} for at, (name, context) in enumerate(TIMES)}
    made = [{"version": 2, "matrix": "old", "groups": []},
            matrix_line(settings=(PLANNERS, list(cells)), random=(NEAR, ["drawn0", "drawn1"]))]
    for (key, cell), times in zip(cells.items(), TIMES.values()):
        made += [result(key, cell, planner, time) for planner, time in zip(PLANNERS, times)]
    tp = {"degrees": {"dp": 8, "pp": 4, "tp": 2}, "others": [{"dp": 8, "pp": 8, "tp": 1, "iteration_s": 5.0}]}
    for planner, time, more in zip(NEAR, (4.0, 5.0, 4.2), (tp, {}, {"simulated_only": True})):
        made.append(result("drawn0", {"set": "code", "context": 16384, "model": "llama-13b"}, planner, time, **more))
    return made


def written(folder, name, store):
    path = pathlib.Path(folder) / name
    path.write_text(store if isinstance(store, str) else "".join(json.dumps(line) + "\n" for line in store), encoding="utf-8")
    return str(path)


def said(main, arguments):
    """Exit status, output and complaint."""
    out, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaint):
        status = main(arguments)
    return status, out.getvalue(), complaint.getvalue()


class Evaluation(unittest.TestCase):
    def page(self, store):
        with tempfile.TemporaryDirectory() as folder:
            return said(evaluation.main, [written(folder, "store.jsonl", store)])

    def holds(self, store, *texts):
        status, page, complaint = self.page(store)
        self.assertEqual((status, complaint), (0, ""))
        for text in texts:
            self.assertIn(text, page)
        self.assertEqual(self.page(store)[1], page)
        return page

    def test_figures_are_those_of_the_store(self):
        page = self.holds(
            lines(),
            "23 results in 5 of the 6 settings of the matrix `tiny`, 3 systems beside `slimpack`",
            "**A part of the matrix: 5 of 6 settings computed.**", "| `random` | 1 | 2 | 3 |",
            "Results by the planners' commit: `abc` 23.", "took 0.23 core-hours",
            "| web | drawn | draws from a distribution |",
            # The best of the others takes 1.01, 5 of 2, 1.25, 0.8 and 4.2 of 4.
            "In each of 5 settings `slimpack` is compared with whichever other planner is fastest there: mean 1.215x, worst 0.800x, "
            "half of the settings at least 1.050x; in 1 of them `slimpack` is behind. Fastest of the others: `kk` 4, `megatron-cp` 1.",
            "| over the best published system of each setting | chosen settings | 4 | 3 | 1.261 | 0.800 | 0.800 | 1.010 | 2.500 | 2.500 |",
            "| over the best published system of each setting | random settings | 1 | 1 | 1.050 |",
            "| over the best whose answer is a plan | random settings | 1 | 1 | 1.250 |",
            "| over the best that is simulated only | all | 1 | 1 | 1.050 |",
            "| over the best Megatron planner | all | 5 | 5 | 1.697 | 1.250 |",
            "In 1 of 5 settings the plan that `slimpack` chose has tensor parallelism",
            "Lengths of the samples, by setting: 2 drawn, 3 measured.",
            "in which the other is faster: 1 of 13, in 1 of 5 settings.",
            "| web (drawn) 64K, llama-7b, 64 h100, 512 samples | `kk` | 0.800 | 8 x 8 x 1, none | 8 x 8 x 1, none | drain +50.0 % |",
            "| web (drawn) | - | 1.250 | 0.800 | - |",
            "| `megatron` | 4 of 4 | 0 | 4 | 2.213 | 1.500 | 1.500 | 2.000 | 4.000 | 4.000 | web (drawn) 32K, llama-7b, 64 h100, 512 samples |",
            "| `kk` (against it: one length of CP blocks) | 4 of 5 | 1 | 3 | 1.015 | 0.800 |",
            "1 of 2 computed, with the 2 systems", "| code (measured) 16K, llama-13b, 64 h100, 512 samples | 1.050 | `kk` | 8 x 4 x 2 | yes | 8 x 8 x 1 | simulated only |",
            "| `slimpack` | 5 | 1 | 0 | 1.250 of 1 |", "| `kk` | 4 | 0 | 1 | - |",
            "| `slimpack-symmetric`: the same packs in both passes | 1.050 | 1.100 | 1.000 | 1.000 |",
            "| `kk` | 1 | code (measured) 256K, llama-7b, 64 h100, 512 samples | bytes on a device: needed 9, available 8 |")
        self.assertNotIn("slimpack-symmetric` | 4 of 4", page)
        self.assertNotIn("drawn1", page)

    def test_seeds_sensitivities_and_published_forms_have_tables(self):
        cell = {"set": "code", "context": 65536, "steps": 4}
        forms = ["slimpack", "kk", "kk-published"]
        store = [matrix_line(seeds=(NEAR, ["s0", "s1", "s2"]), sensitivity=(NEAR, ["a", "b", "c", "d"]), published=(forms, ["p"]))]
        for seed, time in enumerate((1.0, 2.0, 4.0)):
            store += [result(f"s{seed}", {**cell, "seed": seed}, planner, seconds)
                      for planner, seconds in zip(NEAR, (1.0, time, 1.1))]
        for key, context, cluster, time in (("a", 32768, "h100", 1.2), ("b", 32768, "slow", 0.9), ("c", 65536, "h100", 1.3)):
            store += [result(key, {"set": "code", "context": context, "cluster": cluster}, planner, seconds)
                      for planner, seconds in zip(NEAR, (1.0, time, 2.0))]
        store += [result("p", {"set": "code", "context": 16384}, planner, seconds) for planner, seconds in zip(forms, (1.0, 1.5, 3.0))]
        self.holds(
            store, "| over | code (measured) 64K, llama-7b, 64 h100, 512 samples, 4 steps, 3 seeds |",
            "| `megatron-cp` (against it: one length of CP blocks) | 2.000 (1.000 .. 4.000) |", "| the best of them | 1.066 (1.000 .. 1.100) |",
            "over 1 of 2 settings in which all of these clusters are computed", "| over | h100 | slow |", "| `megatron-cp` (against it: one length of CP blocks) | 1.200 | 0.900 |",
            "| code (measured) 32K, llama-7b, 64 GPUs, 512 samples | 1.200 | 0.900 |", "| `kk` (against it: one length of CP blocks) | 1 | 3.000 | 1.500 |")

    def test_what_stands_against_a_system_is_said_beside_its_figures(self):
        rows = (ROOT / "docs" / "planners.md").read_text(encoding="utf-8").splitlines()
        marked = [re.match(r"\| `([a-z-]+)`", row) for row in rows if row.startswith("|") and "**against it**" in row]
        self.assertEqual(sorted(match.group(1) for match in marked), sorted(evaluation.AGAINST))
        self.holds(lines(), "| `megatron-cp` (against it: one length of CP blocks) | 5 of 5 |")

    def test_times_of_a_systems_own_are_compared_as_one_sum(self):
        store = lines()
        for line in store:
            if line.get("key", "").startswith("cell3/") and line["feasible"]:
                ours = line["planner"] == "slimpack"
                line["time_split"] = {"ideal": 0.5, "recompute": 0.1 if ours else 0.5, "overhead": 0.4 if ours else -0.2}
        self.assertRegex(self.page(store)[1], r"`kk` \| 0\.800 \|.*\| what units add to bare work \+20\.0 % \|")

    def test_bad_stores_are_refused_by_name(self):
        good = lines()
        cases = [
            (good[:3], r"store\.jsonl: no setting of matrix tiny has the results of all its planners$"),
            (good[:3] + [{**good[3], "version": 1}] + good[4:], r"line 4: results of version 1, not 2$"),
            (good + [good[4]], r"line 26: cell0/megatron is there twice"),
            (good[2:], r"no line says which matrix this is"),
            ("".join(json.dumps(line) + "\n" for line in good) + '{"version": 2, "ke', r"the last line is torn"),
            (good + [{"loss": 1}], r"line 26: not a result of slimpack evaluate"),
            ("plain text\n", r"line 1: not a result of slimpack evaluate"),
        ]
        for store, sentence in cases:
            with self.subTest(sentence=sentence):
                status, page, complaint = self.page(store)
                self.assertEqual((status, page), (2, ""))
                self.assertRegex(complaint, sentence)
                self.assertEqual(complaint.count("\n"), 1)
        status, _, complaint = said(evaluation.main, ["absent.jsonl"])
        self.assertEqual(status, 2)
        self.assertRegex(complaint, r"absent\.jsonl: No such file")

    def test_results_computed_again_are_the_same_but_for_seconds(self):
        def compared(*stores):
            with tempfile.TemporaryDirectory() as folder:
                old, new = (written(folder, name, store) for name, store in zip(("old.jsonl", "new.jsonl"), stores))
                return said(evaluation.main, [old, "--again", new])

        made = lines()
        again = [*made[:2], *({**line, "commit": "def", "cpu_seconds": 1.0, "plan_seconds": 9.0} for line in made[2:9])]
        status, text, complaint = compared(made, again)
        self.assertEqual((status, complaint), (0, ""))
        self.assertEqual(text, "7 results of 5 planners in both stores, 0 differ in more than seconds of planning; computed again by def\n")
        again[4] = {**again[4], "iteration_s": 2.5}
        status, text, _ = compared(made, again)
        self.assertEqual(status, 1)
        self.assertIn("megatron on code (measured) 32K, llama-7b, 64 h100, 512 samples: 2 s by abc, 2.5 s by def\n", text)
        self.assertIn("\nmegatron: 1 results, from 1.2500 to 1.2500 of their times before, 1.2500 on average\n", text)
        self.assertIn("\n7 results", text)
        again[4] = {**made[4], "degrees": {"dp": 4, "pp": 16, "tp": 1}}
        self.assertEqual(compared(made, again)[0], 1)
        self.assertEqual(compared(made, again[:2])[0], 1)

    def test_the_committed_page_is_made_from_the_committed_store(self):
        text = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
        command = re.search(r"(?m)^(bench/evaluation\.py .*) > docs/evaluation\.md", text).group(1)
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run([sys.executable, *command.replace("--pictures docs", f"--pictures {folder}").split()],
                                  cwd=ROOT, capture_output=True, text=True, check=True)
            self.assertEqual(made.stdout, text)
            pictures = sorted(pathlib.Path(folder).iterdir())
            self.assertEqual([path.name for path in pictures], re.findall(r"\]\((evaluation_\w+\.svg)\)", text))
            for path in pictures:
                self.assertEqual((ROOT / "docs" / path.name).read_bytes(), path.read_bytes())

    def test_pictures_have_a_dot_for_every_figure(self):
        with tempfile.TemporaryDirectory() as folder:
            status, _, complaint = said(evaluation.main, [written(folder, "store.jsonl", lines()), "--pictures", folder])
            self.assertEqual((status, complaint), (0, ""))
            margins, trends = (xml.dom.minidom.parse(f"{folder}/evaluation_{name}.svg") for name in ("margins", "trends"))
            words = [dot.firstChild.firstChild.data for dot in margins.getElementsByTagName("circle")]
            # Over the best 5, with plans 5, simulated only 1, Megatron 5; megatron 4, megatron-cp 5, kk 4.
            self.assertEqual(len(words), 29)
            self.assertEqual(words.count("web (drawn) 64K, llama-7b, 64 h100, 512 samples: 0.800"), 3)
            behind = [dot for dot in margins.getElementsByTagName("circle") if dot.getAttribute("class") == "behind"]
            self.assertEqual(len(behind), 3)
            self.assertEqual(len(trends.getElementsByTagName("circle")), 3 * 5)
            status, text, complaint = said(evaluation.main, [f"{folder}/store.jsonl", "--pictures", f"{folder}/absent"])
            self.assertEqual((status, text), (2, ""))
            self.assertRegex(complaint, r"absent/evaluation_margins\.svg: No such file")

    def test_old_and_new_stores_are_joined_by_workload(self):
        old = [{**line, "version": 1, "key": "old" + line["key"]} for line in lines()[2:12]]
        for line in old:
            line["cell"] = {key: value for key, value in line["cell"].items() if key != "lengths"}
            if line["feasible"]:
                line["iteration_s"] *= 2
        old[0]["degrees"] = {"dp": 64, "pp": 1, "tp": 1}
        new = [{**line, "cell": {**line["cell"], "effort": "thorough"}} if "cell" in line else line for line in lines()]
        with tempfile.TemporaryDirectory() as folder:
            paths = [written(folder, "old.jsonl", old), written(folder, "new.jsonl", new)]
            status, text, complaint = said(old_new.main, paths)
            self.assertEqual((status, complaint), (0, ""))
            for row in ("2 settings are in both stores.", "| `slimpack` | 2 | 0.500 | 0.500 .. 0.500 .. 0.500 | 1 | 1.000 | 1.000 |",
                        "| `megatron` | 2 | 0.500 | 0.500 .. 0.500 .. 0.500 | 0 | 2.828 | 2.828 |",
                        "| code (measured) 32K, llama-7b, 64 h100, 512 samples | `slimpack` | 2.000 | 1.000 | 0.500 | 64 x 1 x 1 | 8 x 8 x 1 |",
                        "| `kk` | no plan | no plan | - | no plan | no plan |"):
                self.assertIn(row, text)
            status, text, complaint = said(old_new.main, [paths[0], written(folder, "none.jsonl", lines()[:2])])
            self.assertEqual((status, text, complaint), (2, "", "old_new.py: the stores have no setting and planner in common\n"))


class Matrix(unittest.TestCase):
    def setUp(self):
        self.folder = ROOT / "bench" / "evaluation"
        self.matrix = json.loads((self.folder / "full.json").read_text(encoding="utf-8"))

    def test_random_settings_are_those_that_the_generator_draws(self):
        status, text, complaint = said(draw_settings.main, ["1", "100"])
        self.assertEqual((status, complaint), (0, ""))
        self.assertEqual([group for group in self.matrix["groups"] if group["name"] == "random"], json.loads(f"[{text}]"))
        self.assertEqual(said(draw_settings.main, ["1", "100"])[1], text)
        self.assertTrue(text.startswith(said(draw_settings.main, ["1", "10"])[1].rstrip("\n")))
        self.assertNotEqual(said(draw_settings.main, ["2", "100"])[1], text)
        first = ('{"name": "random", "set": "web", "model": "llama3-8b", "cluster": "h200", "gpus": 16, "context": 16384, '
                 '"samples": 1024, "seed": 0, "effort": "normal", "finalists": 3}')
        self.assertEqual(text.split(",\n")[0], first)
        self.assertEqual(len(self.matrix["planners"]), 8)
        for arguments in ([], ["1"], ["1", "0"], ["-1", "5"], ["one", "5"], ["1", "1001"]):
            self.assertEqual(said(draw_settings.main, arguments)[:2], (2, ""))

    def test_contexts_are_within_the_documents_of_their_sets(self):
        def longest(name):
            return max(map(int, (self.folder / self.matrix["sets"][name]["path"]).read_text(encoding="utf-8").split()))
        for name, contexts in draw_settings.CONTEXTS.items():
            self.assertLessEqual(max(contexts), longest(name), name)
        for group in self.matrix["groups"]:
            contexts = group["context"] if isinstance(group["context"], list) else [group["context"]]
            for name in group["set"] if isinstance(group["set"], list) else [group["set"]]:
                self.assertLessEqual(max(contexts), longest(name), name)


if __name__ == "__main__":
    unittest.main()
