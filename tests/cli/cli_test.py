#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the slimpack program as a user does: cli_test.py PROGRAM DATA_FOLDER SIMULATE_DAG."""
import csv
import fcntl
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

from weight_plan import with_weights

PROGRAM, DATA, SIMULATE_DAG = (os.path.abspath(path) for path in sys.argv[1:4])
SMALL = ["--model", "tiny", "--context", "4096", "--overlong", "split", "--batch-tokens", "40K"]


def run(*arguments, stdin=None):
    return subprocess.run([PROGRAM, *arguments], input=stdin, capture_output=True, text=True)


def read_npy(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack_from("<H", data, 8)[0]
    header = data[10 : 10 + size].decode()
    width = {"<i4": "i", "<i8": "q"}[re.search(r"'descr': '(\S+)'", header).group(1)]
    count = int(re.search(r"\((\d+),\)", header).group(1))
    values = struct.unpack_from(f"<{count}{width}", data, 10 + size)
    assert len(data) == 10 + size + count * struct.calcsize(width)
    return list(values)


class Cli(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.chdir(self.folder.name)
        self.addCleanup(os.chdir, "/")

    def write(self, name, text):
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
        return name

    def lengths(self):
        return os.path.join(DATA, "longsft_mix.lengths")

    def plan(self, *arguments, output="plan.json", lengths=None):
        done = run("plan", lengths or self.lengths(), *SMALL, *arguments, "-o", output)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def refuse(self, status, sentence, *arguments, stdin=None):
        before = sorted(os.listdir("."))
        done = run(*arguments, stdin=stdin)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        # Notes on documents and on the shape of model and cluster may come before.
        *notes, last = done.stderr.strip().splitlines()
        self.assertRegex(last, sentence)
        for note in notes:
            self.assertRegex(note, r"documents .* were (cut|dropped)$|B? parameters; \d+ devices? on")
        self.assertEqual(sorted(os.listdir(".")), before)

    def test_help_version_and_lists(self):
        self.assertEqual(run("--help").returncode, 0)
        self.assertRegex(run("--version").stdout, r"^slimpack \d+\.\d+\.\d+ \(commit ([0-9a-f]{7,}(-dirty)?|unknown)\)\n$")
        for command in ("plan", "simulate", "validate", "export", "compare", "tune", "sweep", "lengths",
                        "calibrate", "compare-traces", "evaluate"):
            done = run(command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("--help", done.stdout)
        planners = run("--list-planners").stdout
        for name in ("megatron", "megatron-interleaved", "slimpipe-order"):
            self.assertRegex(planners, rf"(?m)^{name} +\S")
        presets = run("--list-presets").stdout
        for name in ("llama-7b", "llama3-405b", "tiny", "h100", "h200", "a100"):
            self.assertIn(name, presets)

    def test_every_planner_makes_a_valid_plan_whose_dag_takes_the_predicted_time(self):
        for planner in ("megatron", "megatron-interleaved", "slimpipe-order"):
            for degrees in (("1", "1"), ("2", "2"), ("1", "4")):
                with self.subTest(planner=planner, degrees=degrees):
                    self.plan("--planner", planner, "--dp", degrees[0], "--pp", degrees[1])
                    self.assertEqual(run("validate", "plan.json").returncode, 0)
                    done = run("simulate", "plan.json", "--trace", "trace.json", "--dag", "dag.txt",
                               "--svg", "timeline.svg", "--json")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    answer = json.loads(done.stdout)
                    with open("plan.json", encoding="utf-8") as file:
                        predicted = json.load(file)["prediction"]
                    self.assertEqual(answer["iteration_s"], predicted["iteration_s"])
                    self.assertLessEqual(predicted["lower_bound_s"], predicted["iteration_s"])
                    self.assertLessEqual(predicted["ideal_s"], predicted["iteration_s"])
                    with open("trace.json", encoding="utf-8") as file:
                        self.assertTrue(json.load(file)["traceEvents"])
                    with open("timeline.svg", encoding="utf-8") as file:
                        self.assertTrue(file.read().startswith("<svg"))
                    again = subprocess.run([sys.executable, SIMULATE_DAG, "dag.txt"],
                                           capture_output=True, text=True, check=True)
                    self.assertAlmostEqual(float(again.stdout.split()[-1]),
                                           predicted["iteration_s"], delta=1e-9)

    def test_the_same_request_gives_the_same_bytes(self):
        self.plan("--pp", "2", "--threads", "1", output="a.json")
        self.plan("--pp", "2", "--threads", "2", output="b.json")
        with open("a.json", "rb") as a, open("b.json", "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_a_plan_has_the_digest_of_its_length_file(self):
        for size in (1, 55, 56, 63, 64, 65, 1000):
            path = self.write("some.lengths", "#" + "x" * size + "\n512\n")
            with open(self.plan(lengths=path), encoding="utf-8") as file:
                source = json.load(file)["sources"][0]
            with open(path, "rb") as file:
                self.assertEqual(source["sha256"], hashlib.sha256(file.read()).hexdigest())

    def test_weights_apart_are_planned_and_refused_where_no_planner_has_them(self):
        with open(self.plan("--weights", "apart", "--pp", "2"), encoding="utf-8") as file:
            self.assertTrue(any(pack["pass"] == "weight" for pack in json.load(file)["micropacks"]))
        self.refuse(2, "weights must not be apart", "plan", self.lengths(), *SMALL, "--weights", "apart",
                    "--planner", "kk", "-o", "no.json")
        self.refuse(2, "weights must not be apart", "compare", self.lengths(), *SMALL, "--weights", "apart",
                    "--planners", "slimpack,kk")

    def test_simulate_prints_a_summary_and_jitter_draws(self):
        self.plan("--pp", "2")
        self.assertIn("efficiency", run("simulate", "plan.json").stdout)
        done = run("simulate", "plan.json", "--jitter", "5%", "--draws", "20", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        for jitter in json.loads(done.stdout)["jitter"]:
            self.assertLessEqual(jitter["least_s"], jitter["mean_s"])
            self.assertLessEqual(jitter["mean_s"], jitter["most_s"])

    COMPARED = {"planner", "step", "feasible", "why", "settings", "iteration_s", "ideal_s",
                "lower_bound_s", "efficiency", "tokens_per_s", "mfu", "speedup_over_megatron",
                "bubble", "gaps", "dp_imbalance", "dp_over_least", "forward_cv", "backward_cv", "peak_bytes",
                "communication_bytes", "merged_tokens", "micropacks", "plan_seconds",
                "simulate_seconds"}

    def test_compare_writes_table_json_csv_and_picture(self):
        names = ["megatron", "slimpipe-order", "megatron-cp"]
        done = run("compare", self.lengths(), *SMALL, "--effort", "fast", "--dp", "2", "--pp", "2",
                   "--planners", ",".join(names), "--steps", "2", "--step", "1", "--json", "c.json",
                   "--csv", "c.csv", "--svg", "c.svg", "--html", "c.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in names:
            self.assertRegex(done.stdout, rf"(?m)^{name} +\d")
        with open("c.json", encoding="utf-8") as file:
            answer = json.load(file)
        for key in ("lengths", "batch", "model", "cluster", "parallel", "results"):
            self.assertIn(key, answer)
        results = answer["results"]
        self.assertEqual([(row["planner"], row["step"]) for row in results],
                         [(name, step) for name in names for step in (1, 2)])
        megatron = {row["step"]: row for row in results if row["planner"] == "megatron"}
        for row in results:
            self.assertLessEqual(self.COMPARED, set(row))
            self.assertTrue(row["feasible"])
            self.assertAlmostEqual(row["speedup_over_megatron"],
                                   megatron[row["step"]]["iteration_s"] / row["iteration_s"])
            self.assertAlmostEqual(row["efficiency"], row["ideal_s"] / row["iteration_s"])
            self.assertLessEqual(row["lower_bound_s"], row["iteration_s"])
            self.assertEqual((row["evaluations"], row["simulated_devices"]), (4, 16))
            self.assertGreater(row["cpu_seconds"], 0)
        with open("c.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertLessEqual(self.COMPARED - {"gaps", "dp_over_least"}, set(rows[0]))
        self.assertEqual([(row["planner"], float(row["iteration_s"])) for row in rows],
                         [(row["planner"], row["iteration_s"]) for row in results])
        picture = xml.etree.ElementTree.parse("c.svg").getroot()
        texts = [element.text or "" for element in picture.iter() if element.tag.endswith("text")]
        for name in names:
            self.assertEqual(sum(text.startswith(name + ": ") for text in texts), 1)
        with open("c.html", encoding="utf-8") as file:
            page = file.read()
        data = json.loads(page.split('id="data">')[1].split("</script>")[0])
        self.assertEqual(data["comparison"], answer)
        self.assertEqual([plan["planner"] for plan in data["plans"]], names)

    def test_compare_says_who_is_infeasible_and_refuses_what_it_does_not_know(self):
        good = self.lengths()
        every = ["compare", good, *SMALL, "--effort", "fast"]
        done = run(*every, "--head", "shard", "--pp", "2", "--planners", "megatron-published,slimpipe-order",
                   "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second = json.loads(done.stdout)["results"]
        self.assertFalse(first["feasible"])
        self.assertRegex(first["why"], r"head.*: needed 2, available 1")
        self.assertIsNone(first["iteration_s"])
        self.assertTrue(second["feasible"])
        self.assertIsNone(second["speedup_over_megatron"])
        self.refuse(1, r"no planner has a feasible plan: megatron: .*needed \d+, available -?\d+",
                    *every, "--planners", "megatron", "--memory", "6001M")
        self.refuse(2, r"planner must be one of .*, got 'best'", *every, "--planners",
                    "megatron,best")
        self.refuse(2, r"--planners: a planner must be listed once", *every, "--planners",
                    "megatron,megatron")
        self.refuse(2, r"only one of them can go to standard output", *every, "--json", "-", "--csv",
                    "-")

    def matrix(self, name="matrix.json", **changes):
        """A matrix of nine cells for two planners; `changes` replace keys of the file."""
        group = {"name": "degrees", "set": "mix", "model": "tiny", "cluster": "h100", "gpus": [2, 4],
                 "context": [2048, 4096], "samples": [24, 32]}
        steps = {**group, "name": "steps", "gpus": 4, "context": 4096, "samples": 32, "steps": 2,
                 "without": ["megatron"]}
        again = {**group, "name": "again", "gpus": [4]}
        matrix = {"format": "slimpack-matrix", "version": 1, "name": "tiny", "sets": {"mix": {"path": "mix.lengths", "kind": "mixed"}},
                  "planners": ["slimpack", "megatron"], "groups": [group, steps, again], **changes}
        with open(self.lengths(), encoding="utf-8") as file:
            self.write("mix.lengths", file.read())
        return self.write(name, json.dumps(matrix))

    @staticmethod
    def stored(path="store.jsonl"):
        """What a store holds, less what is measured by the clock."""
        results = {}
        with open(path, encoding="utf-8") as file:
            for line in file:
                result = json.loads(line)
                if "matrix" not in result:
                    assert result["key"] not in results
                    for round_ in result["rounds"]:
                        del round_["cpu_seconds"]
                    results[result["key"]] = {key: value for key, value in result.items()
                                              if key not in ("tune_seconds", "plan_seconds", "cpu_seconds")}
        return results

    def test_evaluate_fills_a_store_and_exports_it(self):
        self.matrix()
        done = run("evaluate", "matrix.json", "--store", "store.jsonl", "--json", "e.json", "--csv", "e.csv")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tiny: 17 of 17 results, 17 of them new", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^megatron +8 +8 +\d")
        results = self.stored()
        self.assertEqual(len(results), 17)
        for key, result in results.items():
            cell = result["cell"]
            self.assertTrue(key.endswith("/" + result["planner"]))
            degrees = result["degrees"]
            self.assertEqual(degrees["dp"] * degrees["pp"] * degrees["tp"], cell["gpus"])
            self.assertEqual(result["samples"], cell["samples"] * cell["steps"])
            self.assertAlmostEqual(result["efficiency"], result["ideal_s"] / result["iteration_s"])
            self.assertAlmostEqual(sum(result["time_split"].values()), result["iteration_s"], delta=1e-8)
            self.assertLessEqual(result["peak_bytes"], result["limit_bytes"])
            for other in result["others"]:
                self.assertLessEqual(result["iteration_s"], other["iteration_s"])
        with open("e.json", encoding="utf-8") as file:
            answer = json.load(file)
        self.assertEqual((answer["format"], answer["matrix"]), ("slimpack-evaluation", "tiny"))
        with open("e.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 17)
        for row, result in zip(rows, answer["results"]):
            self.assertEqual(row["planner"], result["planner"])
            self.assertEqual(float(row["iteration_s"]), result["iteration_s"])
            self.assertEqual(int(row["gpus"]), result["cell"]["gpus"])
            self.assertEqual(int(row["pp"]), result["degrees"]["pp"])

        # Nothing is computed twice, and the best degrees are those of slimpack compare.
        with open("store.jsonl", "rb") as file:
            before = file.read()
        done = run("evaluate", "matrix.json", "--store", "store.jsonl")
        self.assertIn("tiny: 17 of 17 results, 0 of them new", done.stdout)
        with open("store.jsonl", "rb") as file:
            self.assertEqual(file.read(), before)
        result = next(result for result in results.values() if result["planner"] == "megatron")
        cell, degrees = result["cell"], result["degrees"]
        done = run("compare", "mix.lengths", "--model", "tiny", "--overlong", "split", "--effort", "fast",
                   "--context", str(cell["context"]), "--batch-samples", str(cell["samples"]),
                   "--dp", str(degrees["dp"]), "--pp", str(degrees["pp"]), "--tp", str(degrees["tp"]),
                   "--planners", "megatron", "--json", "-")
        self.assertEqual(json.loads(done.stdout)["results"][0]["iteration_s"], result["iteration_s"])

    def test_evaluate_resumes_where_a_killed_run_stopped(self):
        self.matrix()
        whole = run("evaluate", "matrix.json", "--store", "whole.jsonl", "--threads", "2")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        with subprocess.Popen([PROGRAM, "evaluate", "matrix.json", "--store", "store.jsonl", "--threads", "1"],
                              stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                if os.path.exists("store.jsonl") and os.path.getsize("store.jsonl") > 6000:
                    process.kill()
                    break
        with open("store.jsonl", "rb") as file:
            kept = file.read()
        kept = kept[:kept.rindex(b"\n") + 1]
        with open("store.jsonl", "ab") as file:  # what a kill in the middle of a write leaves
            file.write(b'{"version": 1, "key": "73750d')
        done = run("evaluate", "matrix.json", "--store", "store.jsonl")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("a last line that a killed run left was cut off", done.stderr)
        with open("store.jsonl", "rb") as file:
            self.assertTrue(file.read().startswith(kept))
        self.assertEqual(self.stored(), self.stored("whole.jsonl"))

    def test_evaluate_does_what_is_missing_and_what_changed(self):
        self.matrix()
        done = run("evaluate", "matrix.json", "--store", "store.jsonl", "--limit", "2", "--planners", "megatron")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tiny: 2 of 8 results, 2 of them new", done.stdout)
        self.assertIn("tiny: 8 of 8 results, 6 of them new",
                      run("evaluate", "matrix.json", "--store", "store.jsonl", "--planners", "megatron").stdout)
        self.assertIn("tiny: 17 of 17 results, 9 of them new",
                      run("evaluate", "matrix.json", "--store", "store.jsonl").stdout)
        with open("mix.lengths", "a", encoding="utf-8") as file:
            file.write("77\n")
        self.assertIn("17 of them new", run("evaluate", "matrix.json", "--store", "store.jsonl").stdout)
        with open("matrix.json", encoding="utf-8") as file:
            text = file.read()
        for old, new, count in (('"model": "tiny"', '"model": "tiny", "recompute": "full"', 17),
                                ('"steps": 2', '"steps": 3', 1), ('"gpus": 4', '"gpus": 8', 1),
                                ('"set": "mix"', '"set": "mix", "seed": 1', 17)):
            self.write("other.json", text.replace(old, new))
            with self.subTest(new=new):
                if os.path.exists("copy.jsonl"):
                    os.remove("copy.jsonl")
                self.assertEqual(run("evaluate", "matrix.json", "--store", "copy.jsonl").returncode, 0)
                done = run("evaluate", "other.json", "--store", "copy.jsonl")
                self.assertIn(f"{count} of them new", done.stdout, done.stderr)

    def test_evaluate_takes_clusters_of_the_matrix_and_samples_whole_families(self):
        self.matrix(clusters={"slow": {"base": "h100", "kernel_s": 8e-6}, "same": {"base": "h100"}}, planners=["megatron"],
                    groups=[{"name": "a", "set": "mix", "model": "tiny", "cluster": ["h100", "slow"], "gpus": [2, 4], "context": [2048, 4096],
                             "samples": [24, 32], "seed": [0, 1]}, {"name": "b", "set": "mix", "model": "tiny", "cluster": "h100", "gpus": 2,
                                                                    "context": 1024, "samples": 24}])
        done = run("evaluate", "matrix.json", "--store", "store.jsonl", "--sample", "4", "--commit", "abc")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tiny: 9 of 33 results, 9 of them new", done.stdout)  # 2 of 8 families of 4, and the only one of b
        families = {}
        for result in self.stored().values():
            cell = result["cell"]
            self.assertEqual((result["commit"], cell["lengths"], result["simulated_only"]), ("abc", "mixed", False))
            families.setdefault((cell["gpus"], cell["context"], cell["samples"]), {})[cell["cluster"], cell["seed"]] = result
        self.assertEqual(sorted(map(len, families.values())), [1, 4, 4])
        for cells in families.values():
            if len(cells) == 4:
                self.assertLess(cells["h100", 0]["iteration_s"], cells["slow", 0]["iteration_s"])
                self.assertNotEqual(cells["h100", 0]["tokens"], cells["h100", 1]["tokens"])
        self.assertIn("24 of them new", run("evaluate", "matrix.json", "--store", "store.jsonl").stdout)
        with open("matrix.json", encoding="utf-8") as file:
            text = file.read()
        self.write("bad.json", text.replace('["h100", "slow"]', '["h100", "same"]'))
        self.refuse(2, r"the same samples as", "evaluate", "bad.json", "--store", "store.jsonl")

    def test_evaluate_shows_progress_and_the_time_left_on_a_terminal(self):
        self.matrix(groups=[{"name": "a", "set": "mix", "model": "llama-7b", "cluster": "h100", "gpus": 64,
                             "context": [16384, 65536], "samples": 512, "planners": ["slimpack"]}])
        began = time.monotonic()
        ours, theirs = os.openpty()
        with subprocess.Popen([PROGRAM, "evaluate", "matrix.json", "--store", "store.jsonl", "--threads", "1"],
                              stdout=subprocess.DEVNULL, stderr=theirs) as process:
            os.close(theirs)
            shown = b""
            try:
                while piece := os.read(ours, 4096):
                    shown += piece
            except OSError:  # how a terminal says that nobody writes any more
                pass
        os.close(ours)
        self.assertEqual(process.returncode, 0)
        if time.monotonic() - began > 1.5:  # what is over in a second shows nothing
            self.assertRegex(shown.decode(), r"evaluating \[#+\.*\] \d/2, about \d+:\d\d:\d\d left")

    def test_evaluate_refuses_bad_matrices_and_stores(self):
        self.matrix()
        with open("matrix.json", encoding="utf-8") as file:
            text = file.read()
        self.write("foreign.jsonl", '{"loss": 3}\n')
        self.write("newer.jsonl", '{"version": 99, "key": "a/megatron"}\n')
        self.write("double.jsonl", '{"version": 2, "key": "a/megatron"}\n' * 2)
        self.write("text.jsonl", "results:\n")
        self.write("bad.json", text)
        cases = [  # what is changed in the matrix, by what, and what is said
            ('"gpus": [2, 4]', '"gpus": [2, 0]', r"bad\.json: groups\[0\]\.gpus\[1\]: must be an integer in 1 \.\. .*, found 0"),
            ('"gpus": [2, 4]', '"gpus": "two"', r"bad\.json: groups\[0\]\.gpus: must be an integer .*, found 'two'"),
            ('"gpus": [2, 4]', '"gpus": []', r"bad\.json: groups\[0\]\.gpus: must have an element, found an array of 0"),
            ('"gpus": [2, 4]', '"gpus": [2, 2]', r"bad\.json: groups\[0\]\.gpus\[1\]: must be listed once, found 2"),
            ('"gpus": [2, 4]', '"gpu": [2, 4]', r"bad\.json: groups\[0\]: the key 'gpu' is not known; did you mean 'gpus'\?"),
            ('"gpus": [2, 4], ', '', r"bad\.json: groups\[0\]: the key 'gpus' is missing"),
            ('"model": "tiny"', '"model": "gpt-9"', r"bad\.json: groups\[0\]: model: 'gpt-9' is neither a preset"),
            ('"cluster": "h100"', '"cluster": "h100", "head": "middle"', r"groups\[0\]: head: 'middle' is not one of auto, last, shard"),
            ('"cluster": "h100"', '"cluster": "h100", "effort": "much"', r"groups\[0\]: effort: 'much' is not one of fast"),
            ('"cluster": "h100"', '"cluster": "h100", "overlong": "error"', r"groups\[0\]: .*more than the context of 2048"),
            ('"set": "mix"', '"set": "mox"', r"bad\.json: groups\[0\]\.set: 'mox' is none of the matrix's sets"),
            ('"mix.lengths"', '"absent.lengths"', r"bad\.json: sets\.mix\.path: .*absent\.lengths"),
            ('"mixed"', '"real"', r"bad\.json: sets\.mix\.kind: must be measured, mixed or drawn, found 'real'"),
            ('{"path": "mix.lengths", "kind": "mixed"}', '"mix.lengths"', r"bad\.json: sets\.mix: must be an object with 'path' and 'kind'"),
            ('"context": [2048, 4096]', '"context": [2048, 524288]',
             r"bad\.json: groups\[0\]: context: must be at most the longest document of 'mix', \d+ tokens, got 524288"),
            ('"context": [2048, 4096], "samples": [24, 32]', '"context": [200000, 200001], "samples": 24',
             r"bad\.json: groups\[0\]: context 200001 of 'mix': the same samples as context 200000 of 'mix', so both are one setting"),
            ('"planners": ["slimpack"', '"clusters": {"h100": {"base": "h100"}}, "planners": ["slimpack"', r"clusters\.h100: 'h100' is the name of a preset"),
            ('"planners": ["slimpack"', '"clusters": {"slow": {"base": "h100", "kernels": 1}}, "planners": ["slimpack"',
             r"bad\.json: clusters\.slow: the key 'kernels' is not known"),
            ('["slimpack", "megatron"]', '["slimpack", "best"]', r"bad\.json: planners\[1\]: must be one of slimpack --list-planners, found 'best'"),
            ('["slimpack", "megatron"]', '["megatron"]', r"bad\.json: groups\[1\]: there must be a planner left"),
            ('slimpack-matrix', 'slimpack-plan', r"bad\.json: format: must be 'slimpack-matrix', found 'slimpack-plan'"),
            ('"version": 1', '"version": 2', r"bad\.json: version: must be 1.*, found 2"),
            ('"groups": [', '"groups": [5, ', r"bad\.json: groups\[0\]: must be an object, found 5"),
            ('"groups": [', '"groups": {', r"bad\.json: not valid JSON"),
        ]
        for old, new, sentence in cases:
            with self.subTest(new=new):
                self.assertIn(old, text)
                self.write("bad.json", text.replace(old, new, 1))
                self.refuse(2, sentence, "evaluate", "bad.json", "--store", "store.jsonl")
        good = ["evaluate", "matrix.json", "--store"]
        self.refuse(2, r"foreign\.jsonl: line 1: .*'version' is missing", *good, "foreign.jsonl")
        self.refuse(2, r"newer\.jsonl: line 1: version: must be 2: results of several versions are not kept in "
                    r"one store; give a new file, found 99", *good, "newer.jsonl")
        self.refuse(2, r"double\.jsonl: line 2: is there twice: 'a/megatron'", *good, "double.jsonl")
        self.refuse(2, r"text\.jsonl: line 1: not valid JSON", *good, "text.jsonl")
        self.refuse(2, r"--store: cannot open 'nowhere/s\.jsonl': No such file", *good, "nowhere/s.jsonl")
        self.refuse(2, r"absent\.json", "evaluate", "absent.json", "--store", "store.jsonl")
        self.refuse(2, r"--store is required", "evaluate", "matrix.json")
        self.refuse(2, r"--limit: 'none' is not a whole number", *good, "store.jsonl", "--limit", "none")
        self.refuse(2, r"--sample: '0' is not a whole number", *good, "store.jsonl", "--sample", "0")
        self.refuse(2, r"planner must be one of .*, got 'best'", *good, "store.jsonl", "--planners", "best")
        self.refuse(2, r"only one of them can go to standard output", *good, "store.jsonl", "--json", "-", "--csv", "-")
        with open("held.jsonl", "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.refuse(2, r"--store: 'held\.jsonl' is in use by another run", *good, "held.jsonl")
    def test_tune_ranks_degrees_and_says_why_the_runner_up_lost(self):
        every = ["tune", self.lengths(), *SMALL, "--gpus", "4", "--effort", "fast"]
        done = run(*every, "--json", "t.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = re.findall(r"(?m)^(\d+) x (\d+) x (\d+) +\S", done.stdout)
        self.assertEqual(len(rows), 5)
        for row in rows:
            dp, pp, tp = (int(degree) for degree in row)
            self.assertEqual(dp * pp * tp, 4)
        self.assertRegex(done.stdout, r"(?m)^best: dp \d+ x pp \d+ x tp \d+: .*recompute \w+")
        self.assertRegex(done.stdout,
                         r"(?m)^runner-up: dp .* takes \d+\.\d\d % longer than dp .*: .* (more|less) ")
        with open("t.json", encoding="utf-8") as file:
            answer = json.load(file)
        self.assertEqual((answer["format"], answer["devices"]), ("slimpack-tuning", 4))
        self.assertRegex(done.stdout, r"(?m)^slimpack: 5 degrees x 4: \d+\.\d+ s; \d+ simulations, \d+\.\d CPU s$")
        self.assertEqual([(one["degrees"], one["budget"], one["gain"]) for one in answer["results"][0]["rounds"]],
                         [(5, 4, None)])
        more = run(*every[:-2], "--planners", "megatron", "--finalists", "1", "--json", "-")
        rounds = json.loads(more.stdout)["results"][0]["rounds"]
        self.assertEqual(rounds[-1]["budget"], 768)
        self.assertTrue(all(one["gain"] >= 0 for one in rounds[1:]))
        tried = answer["results"][0]["tried"]
        self.assertEqual([[str(one[key]) for key in ("dp", "pp", "tp")] for one in tried],
                         [list(row) for row in rows])
        times = [one["time_s"] for one in tried]
        self.assertEqual(times, sorted(times))
        self.assertIsNone(tried[0]["why"])
        for one in tried:
            self.assertAlmostEqual(sum(one["time_by_cause"].values()), one["time_s"], places=8)
            self.assertLessEqual(self.COMPARED - {"planner", "simulate_seconds",
                                                  "speedup_over_megatron"}, set(one["steps"][0]))
        best = {key: tried[0][key] for key in ("dp", "pp", "tp")}
        self.assertEqual(answer["best"], {"planner": "slimpack", "batch": 0, **best})
        # What is best of all is what `compare` finds at the same degrees.
        degrees = [f"--{key}={value}" for key, value in best.items()]
        done = run("compare", self.lengths(), *SMALL, *degrees, "--effort", "fast", "--planners",
                   "slimpack", "--json", "-")
        self.assertEqual(json.loads(done.stdout)["results"][0]["iteration_s"], tried[0]["time_s"])
        self.assertEqual(run(*every, "--threads", "1").stdout, run(*every, "--threads", "3").stdout)

    def test_tune_compares_planners_and_batches_and_keeps_fixed_degrees(self):
        done = run("tune", self.lengths(), "--model", "tiny", "--context", "4096", "--overlong",
                   "split", "--gpus", "4", "--pp", "2", "--effort", "fast", "--planners",
                   "slimpack,megatron", "--batch-tokens", "20K,40K", "--steps", "2", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        answer = json.loads(done.stdout)
        self.assertEqual([batch["batch_tokens"] for batch in answer["batches"]], [20000, 40000])
        self.assertEqual([(one["planner"], one["batch"]) for one in answer["results"]],
                         [("slimpack", 0), ("megatron", 0), ("slimpack", 1), ("megatron", 1)])
        best = 0
        for one in answer["results"]:
            self.assertEqual({(row["dp"], row["pp"], row["tp"]) for row in one["tried"]},
                             {(2, 2, 1), (1, 2, 2)})
            best = max(best, one["tried"][0]["tokens_per_s"])
        chosen = answer["best"]
        self.assertEqual(best, next(one["tried"][0]["tokens_per_s"] for one in answer["results"]
                                    if (one["planner"], one["batch"]) ==
                                    (chosen["planner"], chosen["batch"])))

    def test_tune_refuses_what_makes_no_sense_and_says_what_is_lacking(self):
        good = self.lengths()
        every = ["tune", good, *SMALL]
        self.refuse(2, r"--gpus is required", *every)
        self.refuse(2, r"--gpus: '0' is not a whole number > 0", *every, "--gpus", "0")
        self.refuse(2, r"--dp: 'two' is not a whole number", *every, "--gpus", "4", "--dp", "two")
        self.refuse(2, r"--pp: 3 does not divide the 7 devices of --gpus", *every, "--gpus", "7", "--pp", "3")
        self.refuse(2, r"--dp: 5 does not divide the 32 devices of --gpus", *every, "--gpus", "32", "--dp", "5")
        self.refuse(2, r"--dp x --pp: 64 does not divide the 32 devices of --gpus", *every, "--gpus", "32",
                    "--dp", "16", "--pp", "4")
        self.refuse(2, r"--gpus: no dp x pp x tp makes 7 devices: pp x chunks can be at most the model's 4 layers, "
                       r"and tp a power of two that divides its 4 heads, 2 key and value heads and ffn of 384, at "
                       r"most the 8 devices of a node", *every, "--gpus", "7", "--dp", "1")
        self.refuse(2, r"--batch-tokens: there is nothing between two commas", "tune", good, "--model",
                    "tiny", "--overlong", "split", "--gpus", "2", "--batch-tokens", "1M,,2M")
        self.refuse(2, r"planner must be one of", *every, "--gpus", "2", "--planners", "best")
        self.refuse(1, r"no degrees have a feasible plan: slimpack: dp .*weights, gradients and "
                       r"optimizer state .*needed \d+, available -?\d+", *every, "--gpus", "2",
                    "--memory", "6001M", "--weight-state", "replicated")
        self.refuse(1, r"no degrees have a feasible plan: slimpack: dp 2 x pp 1 x tp 1: bytes of memory on device "
                       r".*needed \d+, available -?\d+", *every, "--gpus", "2", "--memory", "6001M")

    def test_sweep_has_a_row_for_each_point_and_planner(self):
        done = run("sweep", self.lengths(), "--model", "tiny", "--overlong", "split", "--batch-tokens",
                   "40K", "--effort", "fast", "--planners", "slimpack,megatron", "--sweep",
                   "context=2K,4K", "--sweep", "pp=1,2,5", "--steps", "2", "--csv", "s.csv", "--json",
                   "s.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        points = [(context, pp) for context in ("2K", "4K") for pp in ("1", "2", "5")]
        with open("s.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([(row["context"], row["pp"], row["planner"]) for row in rows],
                         [(*point, name) for point in points for name in ("slimpack", "megatron")])
        with open("s.json", encoding="utf-8") as file:
            answer = json.load(file)
        self.assertEqual(answer["format"], "slimpack-sweep")
        self.assertEqual([(point["at"]["context"], point["at"]["pp"]) for point in answer["points"]],
                         points)
        for at, row in enumerate(rows):
            summary = answer["points"][at // 2]["summary"][at % 2]
            if row["pp"] == "5":  # tiny has four layers
                self.assertRegex(row["why"], r"pp x chunks must be <= the model's layers \(4\).*got 5")
                self.assertEqual((row["feasible_steps"], row["iteration_s"]), ("0", ""))
                continue
            self.assertEqual(row["feasible_steps"], "2")
            self.assertEqual(float(row["iteration_s"]), summary["iteration_s"]["mean"])
        self.assertRegex(done.stdout, r"(?m)^2K +2 +megatron +\d")
        self.assertRegex(done.stdout, r"(?m)^4K +5 +slimpack +infeasible in 2 of 2 steps: pp x chunks")
        # A point is what `compare` finds there.
        alone = run("compare", self.lengths(), "--model", "tiny", "--overlong", "split",
                    "--batch-tokens", "40K", "--effort", "fast", "--planners", "slimpack,megatron",
                    "--context", "4K", "--pp", "2", "--steps", "2", "--json", "-")
        times = [row["iteration_s"] for row in json.loads(alone.stdout)["results"]]
        self.assertEqual([row["iteration_s"] for row in answer["points"][4]["results"]], times)

    def test_sweep_refuses_bad_axes_before_any_work(self):
        good = self.lengths()
        every = ["sweep", good, *SMALL, "--effort", "fast", "--sweep"]
        cases = [
            (r"--sweep: 'contxt' is not one of LENGTHS, model, .*effort$", "contxt=1"),
            (r"--sweep: 'json' is not one of", "json=a"),
            (r"--sweep: 'help' is not one of", "help=1"),
            (r"--context: 'nonsense' is not a whole number", "context=4K,nonsense"),
            (r"--head: 'middle' is not one of auto, last, shard", "head=last,middle"),
            (r"--sweep: must be OPTION=VALUE", "context"),
            (r"--sweep: must be OPTION=VALUE", "=4K"),
            (r"--sweep context: a value is empty", "context=4K,"),
            (r"--sweep context: a value must be listed once, got '4K'", "context=4K,4K"),
            (r"--sweep seed: 'x' is not a value of it", "seed=1,x"),
            (r"--sweep no-shuffle: 'maybe' is not a value of it", "no-shuffle=maybe"),
            (r"--model: 'gpt-9' is neither a preset", "model=tiny,gpt-9"),
            (r"absent\.lengths", "LENGTHS=absent.lengths"),
        ]
        for sentence, axis in cases:
            with self.subTest(axis=axis):
                self.refuse(2, sentence, *every, axis)
        self.refuse(2, r"--sweep: an option must be listed once, got 'pp'", *every, "pp=1", "--sweep",
                    "pp=2")
        self.refuse(2, r"--sweep is required", "sweep", good)
        self.refuse(1, r"no point has a feasible plan: slimpack: pp x chunks", *every, "pp=64")
        both = run(*every, "no-shuffle=true,false", "--json", "-")
        shuffles = [point["batch"]["shuffle"] for point in json.loads(both.stdout)["points"]]
        self.assertEqual(shuffles, [False, True])

    def test_lengths_from_every_form_and_standard_input(self):
        values = [100, 40000, 7]
        self.write("a.lengths", "# a comment\n100\n\n40000\n7\n")
        self.write("a.jsonl", '{"length": 100}\n{"tokens": %s}\n{"text": "seven a"}\n' % ([1] * 40000))
        with open("a.npy", "wb") as file:
            header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }"
            header += b" " * (-(len(header) + 11) % 64) + b"\n"
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
            file.write(struct.pack("<3i", *values))
        with open("a.idx", "wb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 4))
            file.write(struct.pack("<3i", *values) + struct.pack("<3q", 0, 200, 80200))
            file.write(struct.pack("<4q", 0, 1, 2, 3))
        expected = None
        for name in ("a.lengths", "a.jsonl", "a.npy", "a.idx"):
            done = run("lengths", name, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            expected = expected or done.stdout
            self.assertEqual(done.stdout, expected)
        done = run("lengths", "-", "--json", stdin="100\n40000\n7\n")
        self.assertEqual(done.stdout, expected)
        figures = json.loads(expected)
        self.assertEqual((figures["documents"], figures["tokens"], figures["max"]), (3, 40107, 40000))
        self.assertIn("40000", run("lengths", "a.lengths").stdout)

    def test_export_holds_each_token_of_the_device_once_a_pass(self):
        self.plan("--planner", "slimpipe-order", "--pp", "2", "--dp", "2")
        seen, hashes = {"forward": 0, "backward": 0}, set()
        for dp in ("0", "1"):
            done = run("export", "plan.json", "--dp", dp, "--pp", "1", "-o", f"out{dp}")
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(f"out{dp}/index.json", encoding="utf-8") as file:
                index = json.load(file)
            self.assertEqual(sorted(os.listdir(f"out{dp}")),
                             sorted(["index.json"] + [name + ".npy" for name in index["arrays"]]))
            arrays = {name: read_npy(f"out{dp}/{name}.npy") for name in index["arrays"]}
            ends = {"tokens": 0, "segments": 0, "cu_seqlens": 0}
            for pack in index["micropacks"]:
                for kind in ends:  # ranges follow on one another
                    self.assertEqual(pack[kind][0], ends[kind])
                    ends[kind] = pack[kind][1]
                q, k, sample, position, offset = (
                    arrays[name][slice(*pack[index["arrays"][name]["range"]])]
                    for name in ("cu_seqlens_q", "cu_seqlens_k", "segment_sample", "position_ids",
                                 "token_offset"))
                self.assertEqual((q[0], k[0]), (0, 0))
                self.assertEqual(q[-1], len(position))
                self.assertEqual(len(q), len(sample) + 1)
                for i in range(len(sample)):
                    rows = position[q[i]:q[i + 1]]
                    # The last query of a segment sees exactly its keys.
                    self.assertEqual(rows[-1] + 1, k[i + 1] - k[i])
                    self.assertEqual(rows, list(range(rows[0], rows[0] + len(rows))))
                self.assertTrue(all(o >= p for o, p in zip(offset, position)))
                seen[pack["pass"]] += len(position)
            for name, array in index["arrays"].items():
                self.assertEqual(array["length"], len(arrays[name]))
                self.assertEqual(array["length"], ends[array["range"]])
            hashes.add(index["plan_hash"])
        self.assertEqual(len(hashes), 1)
        with open("plan.json", encoding="utf-8") as file:
            tokens = sum(json.load(file)["samples"])
        self.assertEqual(seen, {"forward": tokens, "backward": tokens})
        self.refuse(2, r"-o: must be a new or an empty folder, got 'out0'",
                    "export", "plan.json", "--dp", "0", "--pp", "0", "-o", "out0")
        self.refuse(2, r"--dp: must be below the plan's 2, got 2",
                    "export", "plan.json", "--dp", "2", "--pp", "0", "-o", "new")

    def plan_with_weights(self, *arguments):
        """A plan whose B leave the gradients of weights to W."""
        self.plan(*arguments, "--weights", "with")
        with open("plan.json", encoding="utf-8") as file:
            plan = with_weights(json.load(file))
        self.write("plan.json", json.dumps(plan))
        done = run("validate", "plan.json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return plan

    def test_export_tells_which_weights_are_apart(self):
        plan = self.plan_with_weights("--pp", "2", "--dp", "2")
        rows = {"forward": 0, "backward": 0, "weight": 0}
        for dp in ("0", "1"):
            done = run("export", "plan.json", "--dp", dp, "--pp", "0", "-o", f"out{dp}")
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(f"out{dp}/index.json", encoding="utf-8") as file:
                index = json.load(file)
            self.assertEqual(index["version"], 3)
            positions = read_npy(f"out{dp}/position_ids.npy")
            for pack in index["micropacks"]:
                begin, end = pack["tokens"]
                rows[pack["pass"]] += len(positions[begin:end])
                self.assertEqual(pack.get("weights"), "apart" if pack["pass"] == "backward" else None)
                if pack["pass"] == "weight":
                    self.assertNotIn("exchange", pack)
            known = {pack["id"] for pack in index["micropacks"]}
            units = [unit for unit in index["order"] if unit[0] == "W"]
            self.assertEqual(index["order"], plan["schedule"][2 * int(dp)]["order"])
            self.assertTrue(units and all(unit[1] in known for unit in units))
        self.assertEqual(set(rows.values()), {sum(plan["samples"])})

    def test_calibrate_fits_and_prints_its_error_on_held_out_rows(self):
        rows = ["kind,pass,tokens,pairs,segments,layers,ranks,bytes,seconds"]
        for tokens in (256, 512, 1024, 2048, 4096, 8192):
            for prefix in (0, 4096, 32768):
                pairs = tokens * (prefix + tokens // 2)
                for name, factor in (("forward", 1.0), ("backward", 2.2)):
                    seconds = factor * 4 * (1e-5 + 3e-7 * tokens + 2e-11 * pairs)
                    rows.append(f"layer,{name},{tokens},{pairs},1,4,1,0,{seconds:.9g}")
        for size in (1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28):
            rows.append(f"p2p,forward,0,0,0,0,2,{size},{1e-5 + size / 40e9:.9g}")
        self.write("profile.csv", "\n".join(rows) + "\n")
        done = run("calibrate", "profile.csv", "-o", "cost.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("layer", done.stdout)
        self.assertIn("profile.csv: does not tell the model and device", done.stderr)
        done = run("plan", self.lengths(), *SMALL, "--pp", "2", "--cost", "cost.json", "-o", "plan.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("cost.json: does not tell the model and device"), 1, done.stderr)
        self.assertEqual(run("validate", "plan.json").returncode, 0)
        self.write("bad.csv", rows[0] + "\nlayer,forward,10,5,1,1,1,0,-3\n")
        self.refuse(2, r"bad\.csv", "calibrate", "bad.csv", "-o", "cost2.json")
        for kind, traffic, rule in (("cp", "2,4096", "rows of layers of their pass"),
                                    ("tp", "2,4096", "rows of layers of their pass"),
                                    ("light", "1,0", "rows of layers of their pass"),
                                    ("apart", "1,0", "must be measured together")):
            self.write("alone.csv", rows[0] + f"\n{kind},backward,1024,524800,1,2,{traffic},0.01\n")
            self.refuse(2, r"alone\.csv: .*" + rule, "calibrate", "alone.csv", "-o", "cost2.json")

    def test_a_calibration_of_another_model_or_machine_is_refused(self):
        origin = {"model": "tiny", "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 384, "vocab": 257,
                  "bytes_per_element": 2, "device": "NVIDIA H100 80GB HBM3", "cluster": "h100", "ranks": 1}
        rows = "".join(f"head,-,{tokens},0,0,0,1,0,{tokens * 1e-7 + 1e-5}\n" for tokens in (64, 128, 256, 512, 1024))
        header = "kind,pass,tokens,pairs,segments,layers,ranks,bytes,seconds\n"
        self.write("profile.csv", "".join(f"# {key}: {value}\n" for key, value in origin.items()) + header + rows)
        self.write("bare.csv", header + rows)
        for name in ("profile", "bare"):
            done = run("calibrate", name + ".csv", "-o", name + ".json")
            self.assertEqual(done.returncode, 0, done.stderr)
        with open("profile.json", encoding="utf-8") as file:
            cost = json.load(file)
        self.assertEqual(cost["shape"], {key: origin[key] for key in list(origin)[:8]})
        self.assertEqual(cost["device"], {"name": origin["device"], "cluster": "h100", "ranks": 1})
        done = run("plan", self.lengths(), *SMALL, "--cost", "profile.json", "-o", "measured.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("does not tell", done.stderr)
        self.plan("--cost", "bare.json", output="bare_plan.json")
        with open("measured.json", encoding="utf-8") as one, open("bare_plan.json", encoding="utf-8") as other:
            self.assertEqual(one.read(), other.read())  # a plan holds no origin
        for command in (["plan", self.lengths(), "-o", "no.json"], ["compare", self.lengths()],
                        ["tune", self.lengths(), "--gpus", "2"]):
            self.refuse(2, r"profile\.json: shape\.hidden: the costs were measured for model 'tiny' with hidden 128, "
                           r"but model 'llama3-8b' has 4096", *command, "--model", "llama3-8b", "--overlong", "split",
                        "--cost", "profile.json")
        self.refuse(2, r"profile\.json: device: the costs were measured on 'NVIDIA H100 80GB HBM3' \(cluster 'h100'\), "
                       r"not on 'a100'", "plan", self.lengths(), *SMALL, "--cluster", "a100", "--cost", "profile.json",
                    "-o", "no.json")
        self.write("ours.json", '{"base": "h100", "inside": {"bytes_per_s": 100e9}}')
        self.plan("--cluster", "ours.json", "--cost", "profile.json")
        self.write("odd.json", '{"kind": "fitted", "haed": {}}')
        self.refuse(2, r"odd\.json: the key 'haed' is not known; did you mean 'head'", "plan", self.lengths(), *SMALL,
                    "--cost", "odd.json", "-o", "no.json")

    def test_compare_traces_by_kind_device_and_unit(self):
        self.plan("--pp", "2", "--dp", "2", "--planner", "megatron")
        done = run("simulate", "plan.json", "--trace", "predicted.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run("compare-traces", "predicted.json", "predicted.json", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        same = json.loads(done.stdout)
        self.assertEqual(same["iteration"]["ratio"], 1)
        self.assertEqual([kind["kind"] for kind in same["kinds"]], ["F", "B", "H", "R", "O", "all"])
        for kind in same["kinds"]:
            self.assertEqual((kind["ratio"], kind["median_error"], kind["p95_error"]), (1, 0, 0))
        with open("plan.json", encoding="utf-8") as file:
            plan = json.load(file)
        count = sum(unit[0] != "R" for device in plan["schedule"] for unit in device["order"])
        self.assertEqual(sum(kind["count"] for kind in same["kinds"][:5] if kind["kind"] != "R"), count)
        for device, predicted in zip(same["devices"], plan["prediction"]["devices"]):
            self.assertEqual((device["dp"], device["pp"]), (predicted["dp"], predicted["pp"]))
            self.assertEqual(device["busy"]["predicted_s"], predicted["busy_s"])

        with open("predicted.json", encoding="utf-8") as file:
            trace = json.load(file)
        for event in trace["traceEvents"]:
            if event["ph"] == "X":
                event["ts"] *= 2
                event["dur"] *= 2
        trace["otherData"]["iteration_ns"] *= 2
        self.write("slow.json", json.dumps(trace))
        done = run("compare-traces", "predicted.json", "slow.json", "--svg", "both.svg")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"predicted / measured 0\.500\n")
        self.assertRegex(done.stdout, r"(?m)^all +\d+ .* 0\.500 +50\.0 % +50\.0 %$")
        self.assertRegex(done.stdout, r"(?m)^dp 1 pp 1 ")
        picture = xml.etree.ElementTree.parse("both.svg").getroot()
        texts = [element.text or "" for element in picture.iter() if element.tag.endswith("text")]
        self.assertTrue(any(text.startswith("measured: ") for text in texts))
        with open("slow.json", encoding="utf-8") as file:
            done = run("compare-traces", "predicted.json", "-", "--json", stdin=file.read())
        self.assertEqual(json.loads(done.stdout)["iteration"]["ratio"], 0.5)

        unit = next(event for event in trace["traceEvents"] if event.get("cat") == "head")
        trace["traceEvents"].remove(unit)
        self.write("less.json", json.dumps(trace))
        self.refuse(1, rf"predicted\.json, less\.json: .* only the predicted one has dp "
                    rf"{unit['args']['dp']} pp 1 H {unit['args']['pack']}$",
                    "compare-traces", "predicted.json", "less.json")
        self.refuse(1, r"only the measured one has", "compare-traces", "less.json", "slow.json")
        unit["ts"] = "soon"
        trace["traceEvents"].insert(0, unit)
        self.write("bad.json", json.dumps(trace))
        self.refuse(2, r"bad\.json: traceEvents\[0\]\.ts: must be a number in .*, found 'soon'",
                    "compare-traces", "predicted.json", "bad.json")
        self.write("broken.json", '{"traceEvents": [')
        self.refuse(2, r"broken\.json: not valid JSON", "compare-traces", "broken.json", "slow.json")
        self.refuse(2, r"plan\.json: the key 'traceEvents' is missing", "compare-traces",
                    "predicted.json", "plan.json")
        self.refuse(2, r"absent\.json", "compare-traces", "predicted.json", "absent.json")
        self.refuse(2, r"MEASURED is required", "compare-traces", "predicted.json")
        self.refuse(2, r"only one of them can be standard input", "compare-traces", "-", "-")

    def test_bad_input_is_one_sentence_and_leaves_nothing(self):
        good = self.lengths()
        self.write("zero.lengths", "5\n0\n")
        self.write("word.lengths", "5\nfive\n")
        self.write("empty.lengths", "# nothing\n")
        self.write("magic.idx", "not an index")
        self.write("broken.json", '{"format": "slimpack-plan", ')
        self.write("newer.json", '{"format": "slimpack-plan", "version": 99}')
        cases = [
            (2, r"zero\.lengths.*2.*0", "lengths", "zero.lengths"),
            (2, r"word\.lengths.*2.*five", "lengths", "word.lengths"),
            (2, r"empty\.lengths", "lengths", "empty.lengths"),
            (2, r"magic\.idx", "lengths", "magic.idx"),
            (2, r"absent\.lengths", "lengths", "absent.lengths"),
            (2, r"broken\.json", "validate", "broken.json"),
            (2, r"newer\.json.*99", "simulate", "newer.json"),
            (2, r"absent\.json", "simulate", "absent.json"),
            (2, r"--dp: '0' is not a whole number > 0", "plan", good, "--dp", "0", "-o", "p"),
            (2, r"--pp: 'x' is not a whole number > 0", "plan", good, "--pp", "x", "-o", "p"),
            (2, r"--head: 'middle' is not one of auto, last, shard", "plan", good, "--head", "middle", "-o",
             "p"),
            (2, r"--model: 'gpt-9' is neither a preset \(llama-7b", "plan", good, "--model", "gpt-9",
             "-o", "p"),
            (2, r"--cluster: 'h1000' is neither a preset", "plan", good, "--cluster", "h1000", "-o",
             "p"),
            (2, r"planner must be one of .*megatron", "plan", good, "--planner", "best", "-o", "p"),
            (2, r"document 4 \(from 0\) has 2061 tokens, more than the context of 1000, and so have \d+ others, "
             r"the longest of \d+; --overlong split cuts such documents, --overlong drop leaves them out",
             "plan", good, "--context", "1000", "-o", "p"),
            (2, r"--memory: 80 bytes are not more than the 6000000000 that are reserved on a device of h100, so "
             r"nothing is left for a plan; for 80 GB write 80G$", "plan", good, *SMALL, "--memory", "80", "-o", "p"),
            (2, r"--memory: 6000000000 bytes .*; give the bytes of a whole device, such as 80G$", "plan", good,
             *SMALL, "--memory", "6G", "-o", "p"),
            (2, r"--planner: one planner makes the plan; slimpack compare takes several, got 'kk,bfd'", "plan",
             good, *SMALL, "--planners", "kk,bfd", "-o", "p"),
            (2, r"--planner, --planners: these are one option; give one of them", "plan", good, *SMALL,
             "--planners", "kk", "--planner", "kk", "-o", "p"),
            (2, r"--json: before a subcommand it belongs to one of --list-planners and --list-presets", "--json"),
            (2, r"--output is required", "plan", good),
            (2, r"--jitter", "simulate", "x.json", "--jitter", "many"),
            (2, r"frobnicate", "frobnicate"),
            (2, r"nowhere", "plan", good, *SMALL, "-o", "nowhere/plan.json"),
            (2, r"--output: .*nowhere", "calibrate", "missing.csv", "-o", "nowhere/cost.json"),
            (2, r"-o: must be a new or an empty folder", "export", "missing.json", "--dp", "0", "--pp", "0", "-o", "."),
            (2, r"--baseline: must be one of the planners that are compared, got 'kk'", "compare", good, *SMALL,
             "--planners", "slimpack,bfd", "--baseline", "kk"),
            (1, r"no feasible plan: .*needed \d+, available \d+", "plan", good, "--overlong", "split",
             "--batch-tokens", "1M", "--memory", "20G", "-o", "p"),
        ]
        for status, sentence, *arguments in cases:
            with self.subTest(arguments=arguments):
                self.refuse(status, sentence, *arguments)

    def test_outputs_are_checked_before_any_work(self):
        # The length file and the plan are absent: whoever complains of an output has not read them.
        self.matrix()
        common = ["absent.lengths", *SMALL]
        for arguments, options in (
                (["plan", *common], ["--output"]), (["simulate", "absent.json"], ["--trace", "--dag", "--svg", "--html"]),
                (["compare", *common], ["--json", "--csv", "--svg", "--html"]),
                (["tune", *common, "--gpus", "2"], ["--json"]),
                (["sweep", *common, "--sweep", "pp=1,2"], ["--json", "--csv"]),
                (["evaluate", "absent.json", "--store", "s.jsonl"], ["--json", "--csv"]),
                (["compare-traces", "absent.json", "absent.json"], ["--svg"])):
            for option in options:
                with self.subTest(command=arguments[0], option=option):
                    self.refuse(2, rf"slimpack: {option}: cannot write 'nowhere/x': No such file", *arguments, option,
                                "nowhere/x")
                    self.refuse(2, rf"slimpack: {option}: cannot write '\.': Is a directory", *arguments, option, ".")
        self.refuse(2, r"--json, --html: both would write './x'", "compare", *common, "--json", "x", "--html", "./x")
        self.refuse(2, r"--json, --trace, --dag, --svg, --html: only one of them can go to standard output", "simulate",
                    "absent.json", "--json", "--svg", "-")

    def test_standard_output_holds_one_output_alone(self):
        done = run("plan", self.lengths(), *SMALL, "--effort", "fast", "-o", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["format"], "slimpack-plan")
        self.assertRegex(done.stderr, r"(?m)^-: \d+ samples in")
        self.write("plan.json", done.stdout)
        done = run("simulate", "plan.json", "--svg", "-")
        self.assertTrue(xml.etree.ElementTree.fromstring(done.stdout).tag.endswith("svg"))

    def test_shape_is_told_before_planning(self):
        shape = r"(?m)^llama-1b: 16 layers, 32/8 heads, 1\.24 B parameters; 16 devices on 2 nodes of h100$"
        few = [self.lengths(), "--model", "llama-1b", "--overlong", "split", "--batch-tokens", "500K", "--effort", "fast"]
        degrees = ["--dp", "8", "--pp", "2"]
        for arguments in (["plan", *few, *degrees, "-o", "plan.json"],
                          ["compare", *few, *degrees, "--planner", "kk", "--json", "-"],
                          ["tune", *few, *degrees, "--gpus", "16", "--planner", "kk", "--json", "-"]):
            with self.subTest(command=arguments[0]):
                done = run(*arguments)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stderr, shape)
        done = run("plan", self.lengths(), *SMALL, "-o", "plan.json")
        self.assertIn("tiny: 4 layers, 4/2 heads, 0.85 M parameters; 1 device on 1 node of h100\n", done.stderr)

    def test_a_plan_that_nearly_fills_the_memory_says_so(self):
        every = ["plan", self.lengths(), "--model", "llama-1b", "--overlong", "split", "--batch-samples", "4",
                 "--recompute", "none", "--chunks", "1", "--planners", "megatron", "-o", "plan.json"]
        done = run(*every)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("headroom", done.stdout)
        with open("plan.json", encoding="utf-8") as file:
            plan = json.load(file)
        peak = max(device["peak_bytes"] for device in plan["prediction"]["devices"])
        capacity = peak + plan["memory"]["reserved"]
        done = run(*every, "--memory", str(capacity))
        self.assertEqual(done.returncode, 0, done.stderr)
        figure = f"{peak * 1e-9:.2f}"
        self.assertIn(f"  memory: {figure} of {figure} GB; give --memory {capacity * 9 // 10**10}G to plan with "
                      "headroom\n", done.stdout)

    def test_json_lines_tell_where_lengths_are_from(self):
        self.write("a.jsonl", '{"text": "seven a"}\n{"length": 9}\n{"text": "b", "tokens": [1, 2]}\n{"text": "cc"}\n')
        note = ("a.jsonl: document lengths: 1 from 'length', 1 from 'tokens', 2 from 'text'; the UTF-8 bytes of 'text' "
                "were counted as tokens, and a tokenizer makes fewer of them\n")
        self.assertEqual(run("lengths", "a.jsonl").stderr, note)
        done = run("sweep", "a.jsonl", "--model", "tiny", "--effort", "fast", "--sweep", "pp=1,2", "--planner", "kk")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count(note), 1)
        self.write("b.jsonl", '{"input_ids": [1, 2, 3]}\n')
        self.assertEqual(run("lengths", "b.jsonl").stderr, "b.jsonl: document lengths: 1 from 'input_ids'\n")

    def test_presets_can_be_edited_into_files(self):
        for block, columns in zip(run("--list-presets").stdout.split("\n\n"), (10, 4)):
            for row in block.splitlines():
                self.assertEqual(len(re.split(r" {2,}", row)), columns, row)
        presets = json.loads(run("--list-presets", "--json").stdout)
        self.assertEqual((presets["format"], presets["version"]), ("slimpack-presets", 1))
        self.write("cluster.json", json.dumps(presets["clusters"]["h200"]))
        self.write("model.json", json.dumps(presets["models"]["tiny"]))
        rest = ["--context", "4096", "--overlong", "split", "--batch-tokens", "40K", "--effort", "fast", "-o"]
        for model, cluster, output in (("tiny", "h200", "a.json"), ("model.json", "cluster.json", "b.json")):
            done = run("plan", self.lengths(), "--model", model, "--cluster", cluster, *rest, output)
            self.assertEqual(done.returncode, 0, done.stderr)
        with open("a.json", "rb") as a, open("b.json", "rb") as b:
            self.assertEqual(a.read(), b.read())
        mine = presets["clusters"]["h200"]
        mine["between"]["bytes_per_sec"] = mine["between"].pop("bytes_per_s")
        self.write("cluster.json", json.dumps(mine))
        self.refuse(2, r"cluster\.json: between: the key 'bytes_per_sec' is not known; did you mean 'bytes_per_s'\?",
                    "plan", self.lengths(), "--cluster", "cluster.json", *rest, "p")
        self.write("cluster.json", '{"base": "h100", "peak_flops": 989}')
        self.refuse(2, r"cluster\.json: peak_flops: must be a number of FLOP/s in 1e9 \.\. 1e18 \(989 TFLOP/s are "
                       r"989e12\), found 989", "plan", self.lengths(), "--cluster", "cluster.json", *rest, "p")

    def test_planners_that_are_simulated_only_are_marked(self):
        listed = run("--list-planners").stdout.splitlines()
        answer = json.loads(run("--list-planners", "--json").stdout)["planners"]
        self.assertEqual([planner["published"] for planner in answer if "published" in planner],
                         [planner["name"] + "-published" for planner in answer[6:]])
        self.assertEqual([line.split()[0] for line in listed], [planner["name"] for planner in answer])
        for line, planner in zip(listed, answer):
            self.assertEqual("simulated only" in line, "simulated_only" in planner)
            self.assertEqual("as published: " + planner["name"] + "-published" in line, "published" in planner)
            self.assertEqual("simulated_only" in planner, planner["name"] in
                             ("slimpipe", "wlb-llm", "zeppelin", "flexsp"))

    def test_validate_lists_violations_and_exits_1(self):
        self.plan("--pp", "2")
        with open("plan.json", encoding="utf-8") as file:
            plan = json.load(file)
        plan["schedule"][0]["order"].pop()
        plan["memory"]["capacity"] = plan["memory"]["reserved"] + 1
        self.write("bad.json", json.dumps(plan))
        done = run("validate", "bad.json")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"(?m)^rule 3: ")
        self.refuse(1, r"bad\.json: rule 3: .*see slimpack validate for every violation", "simulate", "bad.json")
        answer = run("validate", "bad.json", "--json")
        self.assertEqual(answer.returncode, 1)
        self.assertFalse(json.loads(answer.stdout)["valid"])

    def test_hugging_face_configs_are_planned_or_refused_by_name(self):
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
                  "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
                  "intermediate_size": 512, "vocab_size": 1000, "rms_norm_eps": 1e-5,
                  "rope_theta": 1e4, "hidden_act": "silu", "torch_dtype": "bfloat16"}
        self.write("config.json", json.dumps(config))
        done = run("plan", self.lengths(), *SMALL[2:], "--model", "config.json", "-o", "plan.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.write("moe.json", json.dumps({**config, "num_local_experts": 8}))
        self.refuse(2, r"moe\.json.*expert", "plan", self.lengths(), "--model", "moe.json", "-o", "p")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
