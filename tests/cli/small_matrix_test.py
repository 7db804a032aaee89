#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the small matrix anew: small_matrix_test.py PROGRAM [--write]

Times, degrees and all else that is decided by prices and planners must be what tests/golden/small_matrix.txt says,
byte for byte; with --write the file is written instead. A tenth computed first, stopped and resumed, must end in
the same results, and the page of a part must say which part it is of.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "small_matrix.txt"
PROGRAM = os.path.abspath(sys.argv[1])
sys.path.insert(0, str(ROOT / "bench"))
from evaluation import AGAINST  # noqa: E402
from evaluation_store import Store, cell_text, degrees_text  # noqa: E402


def evaluate(store, *arguments, matrix="small"):
    return subprocess.run([PROGRAM, "evaluate", ROOT / "bench" / "evaluation" / f"{matrix}.json", "--store", store, *arguments],
                          capture_output=True, text=True)


def page(store):
    return subprocess.run([sys.executable, ROOT / "bench" / "evaluation.py", store], capture_output=True, text=True)


def as_text(path):
    """A line a result, in the order of the matrix, without what depends on keys, clocks and the commit."""
    store = Store(path, (2,))
    lines = []
    for name, wanted in store.groups.items():
        for cell, planners in wanted.items():
            for planner in planners:
                result = store.result(cell, planner)
                only = " simulated-only" if result.get("simulated_only") else ""
                lines.append(f"{name}: {cell_text(result['cell'])}: {planner}{only}: {result.get('iteration_s', result.get('why'))} s, "
                             f"{degrees_text(result)}, {json.dumps(result.get('settings'))}, peak {result.get('peak_bytes')}, "
                             f"{result['evaluations']} evaluations\n")
    return "".join(lines)


class SmallMatrix(unittest.TestCase):
    def test_results_are_the_expected_ones_also_of_a_run_in_parts(self):
        with tempfile.TemporaryDirectory() as folder:
            store = os.path.join(folder, "store.jsonl")
            done = evaluate(store, "--sample", "10", "--commit", "abc123", "--threads", "1")
            self.assertEqual(done.returncode, 0, done.stderr)
            part = page(store)
            self.assertEqual(part.returncode, 0, part.stderr)
            self.assertIn("**A part of the matrix: 12 of 17 settings computed.**", part.stdout)
            for text in ("| `random` | 1 | 2 | 5 |", "| `seeds` | 3 | 3 | 3 |", "| `sensitivity` | 3 | 3 | 5 |", "Results by the planners' commit: `abc123`"):
                self.assertIn(text, part.stdout)
            done = evaluate(store)
            self.assertEqual(done.returncode, 0, done.stderr)
            whole = page(store)
            self.assertEqual(whole.returncode, 0, whole.stderr)
            self.assertNotIn("A part of the matrix", whole.stdout)
            for title in ("The headline", "By length set", "Every planner", "Random settings", "Seeds and steps", "Sensitivity",
                          "As published and strengthened", "One idea of", "Choices of", "What is executed"):
                self.assertIn(f"\n## {title}", whole.stdout)
            self.assertIn("| web | drawn | draws from a distribution |", whole.stdout)
            text = as_text(store)
        if WRITE:
            GOLDEN.write_text(text, encoding="utf-8")
        self.assertEqual(text, GOLDEN.read_text(encoding="utf-8"))

    def test_the_page_marks_the_planners_that_deviate_against_their_system(self):
        listed = json.loads(subprocess.run([PROGRAM, "--list-planners", "--json"], capture_output=True, text=True, check=True).stdout)
        self.assertEqual(sorted(AGAINST), sorted(one["name"] for one in listed["planners"] if "against" in one))

    def test_the_full_matrix_has_distinct_settings(self):
        with tempfile.TemporaryDirectory() as folder:
            for matrix in ("full", "nearest"):
                done = evaluate(os.path.join(folder, "store.jsonl"), "--limit", "1", "--planners", "megatron", matrix=matrix)
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    WRITE = "--write" in sys.argv
    unittest.main(argv=sys.argv[:1])
