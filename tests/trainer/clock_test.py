#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/trainer.py's `clock` in small: clock_test.py BIN

Whether the reference is steady here is nobody's business: a limit that everything keeps, and one that nothing does,
stand for a quiet and a loud machine.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from small_runs import MODEL

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import reference  # noqa: E402

BIN = sys.argv[1]


class ReferenceTest(unittest.TestCase):
    def test_spread_is_the_interquartile_range_over_the_median(self):
        self.assertEqual(reference.spread([1.0, 2.0, 3.0, 4.0, 5.0]), 2 / 3)
        self.assertEqual(reference.spread([7.0]), 0)
        self.assertEqual(reference.quantile([5.0, 1.0], 0.1), 1.4)

    def test_a_time_counts_between_turns_that_differ_little(self):
        self.assertTrue(reference.steady(1.0, 1.0099, 0.01))
        self.assertTrue(reference.steady(1.0099, 1.0, 0.01))
        self.assertFalse(reference.steady(1.0, 1.0102, 0.01))
        self.assertFalse(reference.steady(1.0102, 1.0, 0.01))

    def test_too_few_say_why(self):
        self.assertEqual(reference.too_few({"x": (3, 3)}, 3, 0.01), ([], None))
        self.assertEqual(reference.too_few({"x": (2, 30), "y": (3, 9), "z": (0, 30)}, 3, 0.01),
                         (["x", "z"], "of 30 times of x 2, of 30 times of z 0 lie between two turns of the fixed reference "
                          "that differ by at most 1 %, wanted are 3, so the machine does not keep its speed and no time of "
                          "these is reported"))


class ClockTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = pathlib.Path(self.folder.name, "config.json")
        self.model.write_text(json.dumps(MODEL))

    def tearDown(self):
        self.folder.cleanup()

    def run_clock(self, *options):
        command = [sys.executable, ROOT / "bench" / "trainer.py", BIN, "clock", "--model", self.model, "--batch-tokens", "512",
                   "--context", "128", "--warmup", "1", "--effort", "fast", *options]
        return subprocess.run([str(word) for word in command], text=True, capture_output=True, timeout=400)

    def test_planners_take_turns_and_one_that_no_plan_can_say_is_named(self):
        done = self.run_clock("--steps", "3", "--planners", "megatron,slimpipe,slimpack", "--degrees", "2x1,1x1x2",
                              "--reference-limit", "100000")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()
                if line.startswith("| ")]
        measured = [row for row in rows if row[1].startswith("`")]
        self.assertEqual([row[:2] for row in measured], [[degrees, f"`{planner}`"] for degrees in ("pp 2", "tp 2")
                                                         for planner in ("megatron", "slimpack")])
        for row in measured:
            self.assertEqual(row[3], "3 of 3")
            self.assertGreater(float(row[4].split()[0]), 0)
            self.assertGreater(float(row[7]), 0)
        self.assertEqual([row[5].split()[0] for row in measured if row[1] == "`slimpack`"], ["1.000"] * 2)
        # 20 turns around the profile, and one before and one behind each step of each planner.
        self.assertEqual([row[2] for row in rows if "data-parallel ranks" in row[1]], [str(20 + 4 * 3)] * 2)
        self.assertIn("pp 2, `slimpipe`: mini_trainer: planner slimpipe is modelled on the simulator only", done.stdout)

    def test_where_too_few_steps_count_there_is_no_figure(self):
        done = self.run_clock("--steps", "2", "--tries", "3", "--planners", "slimpack", "--degrees", "1x2",
                              "--reference-limit", "0")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertNotIn("|", done.stdout)
        self.assertIn("**clock failed.**", done.stdout)
        self.assertEqual(done.stderr.splitlines()[-1],
                         "trainer.py: clock: dp 2: of 6 times of `slimpack` 0 lie between two turns of the fixed reference "
                         "that differ by at most 0 %, wanted are 2, so the machine does not keep its speed and no time of "
                         "these is reported")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
