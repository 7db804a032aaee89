#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/trainer.py's `clock` in small: clock_test.py BIN

Whether the reference is steady here is nobody's business: a limit that everything keeps, and one that nothing does,
stand for a quiet and a loud machine.
"""
import argparse
import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from small_runs import MODEL

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import reference  # noqa: E402
import trainer  # noqa: E402

BIN = sys.argv[1]


class ReferenceTest(unittest.TestCase):
    def test_spread_is_the_interquartile_range_over_the_median(self):
        self.assertEqual(reference.spread([1.0, 2.0, 3.0, 4.0, 5.0]), 2 / 3)
        self.assertEqual(reference.spread([7.0]), 0)
        self.assertEqual(reference.quantile([5.0, 1.0], 0.1), 1.4)

    def test_the_interval_misses_the_median_as_seldom_as_it_says(self):
        self.assertIsNone(reference.interval([1.0, 2.0, 3.0, 4.0, 5.0]))  # of five all are above it once in 32
        self.assertEqual(reference.interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]), (1.0, 6.0))
        self.assertEqual(reference.interval([float(i) for i in range(1, 21)]), (6.0, 15.0))  # tables of the binomial
        draw = random.Random(1)
        for count in (6, 9, 12, 30, 101):
            missed = 0
            for _ in range(2000):
                low, high = reference.interval([draw.expovariate(1) for _ in range(count)])
                missed += not low <= math.log(2) <= high
            self.assertLess(missed, 2000 * reference.DOUBT + 3 * math.sqrt(2000 * reference.DOUBT), count)

    def test_what_is_known(self):
        alike, apart = [1.0, 1.01, 1.02] * 4, [1.0, 2.0] * 6
        self.assertTrue(reference.known(alike, 12, 0.01))
        self.assertFalse(reference.known(alike, 13, 0.01))
        self.assertFalse(reference.known(apart, 12, 0.01))
        self.assertEqual(reference.of_interval(alike, "{:.2f}".format), "1.01 (1.00 to 1.02)")
        self.assertEqual(reference.of_interval([1.0, 2.0], "{:.2f}".format), "1.50")

    def test_a_reference_that_varies_says_so(self):
        # Quartiles at 0.99 and 1.01, at whatever speed.
        self.assertIsNone(reference.unsteady([0.98, 0.99, 1.0, 1.01, 1.02], 0.011))
        self.assertEqual(reference.unsteady([1.8, 1.9, 2.0, 2.1, 2.2], 0.03),
                         "half the interquartile range of the reference's 5 times is 5 % of their median, wanted are 3 %, so the "
                         "machine did not keep its speed and nothing is reported")

    def test_what_is_not_known_says_why(self):
        alike, apart = [1.0, 1.01, 1.02] * 4, [1.0, 2.0] * 6
        self.assertEqual(reference.unknown({"x": alike}, 12, 0.01), ([], None))
        self.assertEqual(reference.unknown({"x": alike, "y": apart, "z": [1.0, 1.0]}, 2, 0.01),
                         (["y", "z"], "the median of 12 times of y is known to 33 %, z has 2 times; wanted are at least 6 "
                          "times, over those of the fixed reference, whose median is known to 1 %, so the machine does not "
                          "keep its speed and no time of these is reported"))


class ProfileTest(unittest.TestCase):
    HEAD = ["# model: tiny\n", "kind,pass,tokens,layers,bytes,seconds\n"]

    def test_seconds_of_a_row_are_the_median_of_the_profiles(self):
        profiles = [self.HEAD + [f"layer,forward,64,1,0,{one}\n", f"p2p,,0,0,4096,{other}\n"]
                    for one, other in (("0.3", "1e-06"), ("0.1", "3e-06"), ("0.2", "2e-06"))]
        self.assertEqual(trainer.row_medians(profiles),
                         self.HEAD + ["layer,forward,64,1,0,0.2\n", "p2p,,0,0,4096,2e-06\n"])
        self.assertEqual(trainer.row_medians(profiles[:1]), profiles[0])

    def test_rows_of_different_units_are_refused(self):
        profiles = [self.HEAD + [f"layer,forward,{tokens},1,0,0.1\n"] for tokens in (64, 65)]
        with self.assertRaisesRegex(trainer.Failure, "profiles differ in a row: layer,forward,64"):
            trainer.row_medians(profiles)

    def test_profiles_are_compared_by_the_reference_beside_them(self):
        def profile(*units):  # a message, or a collective by itself, differs as it likes
            return self.HEAD + [f"layer,forward,{i},1,0,{seconds}\n" for i, seconds in enumerate(units)] + [
                "p2p,,0,0,4096,7\n", f"tp,,0,0,4096,{sum(units) ** 2}\n"]

        profiles = [profile(1.0, 2.0, 4.0), profile(2.0, 4.0, 8.0), profile(1.1, 2.2, 40.0)]
        found = trainer.agreement(profiles, [[1.0], [2.0, 1.9, 2.1], [1.0]])  # the machine was slower beside the second
        self.assertEqual(list(found), ["layer"])
        for is_, be in zip(found["layer"], (1.0, 1.0, 1.1)):
            self.assertAlmostEqual(is_, be)
        self.assertAlmostEqual(trainer.agreement(profiles, [[], [], []])["layer"][1], 4 / 2.2)

    def test_profiles_are_brought_to_one_speed(self):
        profiles = [self.HEAD + [f"layer,forward,64,1,0,{seconds}\n", "p2p,,0,0,4096,1e-06\n"] for seconds in (1.1, 2.42)]
        self.assertEqual(trainer.at_one_speed(profiles, [[1.0], []]), profiles)
        # Beside the second the machine was half as fast.
        self.assertEqual(trainer.at_one_speed(profiles, [[1.0, 1.1, 1.2], [2.2]]),
                         [self.HEAD + ["layer,forward,64,1,0,1.15\n", "p2p,,0,0,4096,1.04545455e-06\n"],
                          self.HEAD + ["layer,forward,64,1,0,1.265\n", "p2p,,0,0,4096,5.22727273e-07\n"]])

    def test_most_profiles_have_to_agree(self):
        self.assertIsNone(trainer.disagreement({}, 0))
        self.assertIsNone(trainer.disagreement({"layer": [1.0]}, 0))
        self.assertIsNone(trainer.disagreement({"layer": [1.0, 1.3, 0.99]}, 0.01))  # one that most are not like
        self.assertIsNone(trainer.disagreement({"layer": [1.0, 1.3, 0.99, 1.01]}, 0.011))
        self.assertEqual(trainer.disagreement({"apart": [1.0, 1.0, 1.0], "layer": [1.0, 1.1, 0.9]}, 0.03),
                         "rows layer of 3 profiles are 1.000, 1.100, 0.900 of their median, times taken over the reference's "
                         "beside them; more than half should be within 3 % of a value, so prices are not known and nothing "
                         "is reported")
        self.assertIsNotNone(trainer.disagreement({"layer": [0.95, 0.95, 1.05, 1.05]}, 0.03))


@unittest.skipUnless(hasattr(os, "SCHED_IDLE"), "needs an idle policy")
class LoadTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        model = self.folder / "config.json"
        model.write_text(json.dumps(MODEL))
        self.asked = dict(bin=pathlib.Path(BIN), program="mini_trainer", model=model, context=256, batch_tokens=1024)
        self.cores = sorted(os.sched_getaffinity(0))

    def test_each_core_is_loaded_within_the_block_and_not_behind_it(self):
        options = argparse.Namespace(more=[], **self.asked)
        with trainer.loaded_cores(options, self.folder, len(self.cores)) as running:
            self.assertEqual([os.sched_getaffinity(one.pid) for one in running], [{core} for core in self.cores])
            self.assertEqual({os.sched_getscheduler(one.pid) for one in running}, {os.SCHED_IDLE})
            time.sleep(0.5)
            self.assertEqual({one.poll() for one in running}, {None})  # none has been refused
        self.assertEqual({one.returncode for one in running}, {-signal.SIGKILL})

    def test_cores_that_ranks_leave_free_are_not_loaded(self):
        few, elsewhere = argparse.Namespace(more=[], **self.asked), argparse.Namespace(more=["--backend", "cuda"], **self.asked)
        with trainer.loaded_cores(few, self.folder, len(self.cores) - 1) as running:
            self.assertEqual(running, [])
        with trainer.loaded_cores(elsewhere, self.folder, len(self.cores)) as running:
            self.assertEqual(running, [])


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
        kept = pathlib.Path(self.folder.name, "clock.json")
        asked = ("--steps", "6", "--planners", "megatron,slimpipe,slimpack", "--degrees", "2x1,1x1x2", "--measured", kept)
        done = self.run_clock(*asked, "--reference-limit", "100000")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()
                if line.startswith("| ")]
        measured = [row for row in rows if row[1].startswith("`")]
        self.assertEqual([row[:2] for row in measured], [[degrees, f"`{planner}`"] for degrees in ("pp 2", "tp 2")
                                                         for planner in ("megatron", "slimpack")])
        for row in measured:
            self.assertEqual(row[3], "6")
            self.assertGreater(float(row[4].split()[0]), 0)
            self.assertGreater(float(row[7]), 0)
        self.assertEqual([row[5].split()[0] for row in measured if row[1] == "`slimpack`"], ["1.000"] * 2)
        # At least one turn beside each of two rounds of the profile, then one before and one behind each step.
        for row in rows:
            if "data-parallel ranks" in row[1]:
                self.assertGreaterEqual(int(row[2]), 2 + 7 * 3)
        self.assertIn("pp 2, `slimpipe`: mini_trainer: planner slimpipe is modelled on the simulator only", done.stdout)
        again = self.run_clock(*asked, "--reference-limit", "100000")  # prints what was measured
        self.assertEqual(again.stdout, done.stdout)
        self.assertEqual(again.stderr, "")
        unknown = self.run_clock(*asked, "--reference-limit", "0")
        self.assertEqual(unknown.returncode, 1)
        self.assertNotIn("|", unknown.stdout)
        other = self.run_clock(*asked, "--seed", "2")
        self.assertEqual(other.returncode, 1)
        self.assertEqual(other.stderr, f"trainer.py: clock: {kept}: was measured with seed '1', got '2'\n")
        kept.write_text("[]")
        self.assertEqual(self.run_clock(*asked).stderr, f"trainer.py: clock: {kept}: is not what the clock keeps\n")
        missing = self.run_clock("--measured", pathlib.Path(self.folder.name, "missing", "clock.json"))
        self.assertEqual(missing.stderr, f"trainer.py: clock: {self.folder.name}/missing/clock.json: cannot be written\n")

    def test_where_too_little_is_known_there_is_no_figure(self):
        done = self.run_clock("--steps", "6", "--tries", "1", "--planners", "slimpack", "--degrees", "1x2",
                              "--reference-limit", "0")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertNotIn("|", done.stdout)
        self.assertIn("**clock failed.**", done.stdout)
        self.assertRegex(done.stderr.splitlines()[-1],
                         r"^trainer.py: clock: dp 2: the median of 6 times of `slimpack` is known to [0-9.e+]+ %; wanted are at "
                         "least 6 times, over those of the fixed reference, whose median is known to 0 %, so the machine does "
                         "not keep its speed and no time of these is reported; dp 2: rows [a-z]+ of 3 profiles are ")


class TraceUnitsTest(unittest.TestCase):
    """bench/trace_units.py on a trace of a card."""

    def run_units(self, *traces):
        return subprocess.run([ROOT / "bench" / "trace_units.py", BIN, *traces], text=True, capture_output=True)

    def test_sums_of_units_beside_their_prediction(self):
        done = self.run_units(ROOT / "bench/results/nvidia-h200-2026-11-28/tp2-slimpack.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| dp 0, stage 0 | F | 1 | 27.59 | 21.32 | 0.773 |\n", done.stdout)
        self.assertEqual(done.stdout.count("| dp 0, stage 0 |"), 4)

    def test_what_is_no_trace_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            none = pathlib.Path(folder) / "none.json"
            for text in (None, "{}", "[1"):
                if text:
                    none.write_text(text)
                done = self.run_units(none)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn(f"trace_units.py: {none}: must be a trace of mini_trainer with its plan beside it", done.stderr)
                self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
