#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The mini-trainer on emulated GPUs, from the outside: emulated_test.py EMULATED MINI_TRAINER SLIMPACK

EMULATED is the program with slimpack_cuda_emulated, MINI_TRAINER the one that trains on the CPU.
"""
import csv
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from small_runs import CUDA_MODEL, ENVIRONMENT, SmallRuns

EMULATED, TRAINER, SLIMPACK = sys.argv[1:4]


class EmulatedTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.runs = SmallRuns(self.folder.name, EMULATED, model=CUDA_MODEL, batch_tokens=256, context=128)
        self.path, self.weights = self.runs.path, self.runs.weights

    def tearDown(self):
        self.folder.cleanup()

    def command(self, cpu, *options):
        command = self.runs.command("--backend", "cpu" if cpu else "cuda", *options)
        return [TRAINER if cpu else EMULATED, *command[1:]]

    def run_trainer(self, *options, status=0, cpu=False):
        done = subprocess.run(self.command(cpu, *options), text=True, capture_output=True, timeout=120, env=ENVIRONMENT)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def stopped(self, folder, step, *options, cpu=False):
        """A run that is killed once it has saved the step."""
        command = self.command(cpu, *options, "--save", folder, "--save-every", "1")
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        for line in run.stdout:
            if line.startswith(f"saved step {step}"):
                run.send_signal(signal.SIGKILL)
                break
        run.communicate()

    def test_a_step_equals_the_unsliced_reference(self):
        self.runs.sizes = ["--batch-tokens", "1024", "--context", "512"]  # few tokens round more
        for options in (["--dp", "2"], ["--pp", "2", "--head", "shard"], ["--pp", "2", "--chunks", "2"],
                        ["--dp", "2", "--pp", "2", "--recompute", "full"],
                        ["--dp", "1", "--tp", "2"], ["--dp", "1", "--pp", "2", "--tp", "2", "--head", "shard"],
                        ["--dp", "2", "--planner", "megatron-cp"]):
            done = self.run_trainer("--check", *options)
            self.assertIn("passed", done.stdout, options)

    def test_steps_learn_and_are_measured(self):
        log, trace = self.path("log.jsonl"), self.path("trace.json")
        self.run_trainer("--steps", "4", "--pp", "2", "--log", log, "--trace", trace)
        lines = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4])
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])
        predicted, plan = self.path("predicted.json"), self.path("trace.plan.json")
        subprocess.run([SLIMPACK, "validate", plan], check=True, capture_output=True)
        subprocess.run([SLIMPACK, "simulate", plan, "--trace", predicted], check=True, capture_output=True)
        compared = subprocess.run([SLIMPACK, "compare-traces", predicted, trace, "--json"], check=True,
                                  capture_output=True, text=True)
        json.loads(compared.stdout)
        memory = json.loads(pathlib.Path(plan).read_text())["memory"]
        self.assertEqual(memory["gradient_bytes"], 4)

    def test_held_out_text_is_evaluated(self):
        text = str(pathlib.Path(self.path("text")) / "00.txt")
        log = self.path("log.jsonl")
        self.run_trainer("--steps", "1", "--dp", "2", "--eval-data", text, "--log", log)
        last = json.loads(pathlib.Path(log).read_text().splitlines()[-1])
        self.assertEqual(last["held_out_step"], 1)
        self.assertGreater(last["loss"], 0)

    def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(self):
        options = ["--steps", "4", "--dp", "2"]
        self.run_trainer(*options, "--save", self.path("whole"))
        self.stopped(self.path("parts"), 2, *options)
        self.run_trainer(*options, "--save", self.path("parts"), "--resume", self.path("parts"))
        self.assertEqual(self.weights("whole"), self.weights("parts"))

    def losses(self, log):
        lines = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
        return {line["step"]: line["loss"] for line in lines if "step" in line}

    def test_tensor_parallel_runs_are_saved_whole_and_go_on_at_other_degrees(self):
        steps, one, two = ["--steps", "3"], ["--dp", "2"], ["--dp", "2", "--tp", "2"]
        self.run_trainer(*steps, *two, "--save", self.path("whole"), "--log", self.path("whole.jsonl"))
        whole = self.losses(self.path("whole.jsonl"))
        for before, after in ((two, two), (one, two), (two, one)):
            folder = self.path("run" + str(len(before)) + str(len(after)))
            self.stopped(folder, 1, *steps, *before)
            self.run_trainer(*steps, *after, "--save", folder, "--resume", folder, "--log", folder + ".jsonl")
            for step, loss in self.losses(folder + ".jsonl").items():
                self.assertLess(abs(loss - whole[step]), 2e-2 * whole[step], (before, after, step))
            if before == after:
                self.assertEqual(self.weights("whole"), self.weights(folder))
        self.runs.sizes = ["--batch-tokens", "1024", "--context", "512"]
        for cpu in (False, True):  # the folder is a model in the Hugging Face layout
            done = self.run_trainer("--check", "--init", self.path("whole"), "--dp", "1", "--tp", "2", cpu=cpu)
            self.assertIn("passed", done.stdout)

    def test_checkpoints_go_on_on_the_other_backend(self):
        options = ["--steps", "3", "--dp", "2"]
        for cpu in (False, True):
            whole, folder = self.path(f"whole{int(cpu)}.jsonl"), self.path(f"run{int(cpu)}")
            self.run_trainer(*options, "--log", whole, cpu=cpu)
            self.stopped(folder, 1, *options, cpu=cpu)
            self.run_trainer(*options, "--resume", folder, "--log", folder + ".jsonl", cpu=not cpu)
            expected, found = self.losses(whole), self.losses(folder + ".jsonl")
            self.assertEqual(sorted(found)[-1], 3)
            for step, loss in found.items():
                self.assertLess(abs(loss - expected[step]), 2e-2 * expected[step], (cpu, step))
        refused = self.run_trainer(*options, "--resume", folder, "--dtype", "fp64", cpu=True, status=2)
        self.assertIn("dtype must be as it was saved, 'fp32', to resume, found 'fp64'", refused.stderr)

    def test_a_profile_is_what_calibrate_fits(self):
        profile, cost = self.path("profile.csv"), self.path("cost.json")
        done = self.run_trainer("--profile", profile, "--dp", "1", "--tp", "2", "--gemm-candidates", "3")
        self.assertIn("times as long as on one rank alone", done.stdout)
        lines = pathlib.Path(profile).read_text().splitlines()
        self.assertTrue(any(line.startswith("# ") for line in lines), "a profile tells what it was measured on")
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        self.assertEqual({row["kind"] for row in rows},
                         {"layer", "apart", "weight", "embedding", "head", "optimizer", "p2p", "reduce", "exchange",
                          "tp"})
        # By itself the smallest, then F and B of six packs in slices and documents.
        self.assertEqual(sum(row["kind"] == "tp" for row in rows), 1 + 2 * 6)
        subprocess.run([SLIMPACK, "calibrate", profile, "-o", cost], check=True, capture_output=True)
        self.assertIn("tp", json.loads(pathlib.Path(cost).read_text()))
        self.run_trainer("--steps", "1", "--dp", "2", "--cost", cost)
        self.run_trainer("--steps", "1", "--dp", "1", "--tp", "2", "--cost", cost)

    def test_choices_of_products_are_written_and_read(self):
        choices, steps = self.path("choices.csv"), ["--steps", "1", "--dp", "2"]
        plain, timed, read = (self.path(name + ".jsonl") for name in ("plain", "timed", "read"))
        self.run_trainer(*steps, "--log", plain)
        self.run_trainer(*steps, "--gemm-candidates", "3", "--gemm-choices", choices, "--log", timed)
        lines = pathlib.Path(choices).read_text().splitlines()
        self.assertEqual(lines[1:3], ["# cublaslt: 0", "# candidates: 3"])
        self.assertGreater(len(lines), 10)
        self.run_trainer(*steps, "--gemm-choices", choices, "--log", read)
        self.assertEqual(self.losses(timed), self.losses(plain))
        self.assertEqual(self.losses(read), self.losses(plain))
        pathlib.Path(choices).write_text("\n".join([*lines[:-1], lines[-1][:-1] + "3", ""]))
        refused = self.run_trainer(*steps, "--gemm-choices", choices, status=2)
        self.assertIn(f"choices.csv:{len(lines)}: column 'choice' must be an integer in 0 .. 2, got '3'", refused.stderr)
        self.assertEqual(len(refused.stderr.strip().splitlines()), 1, refused.stderr)

    def test_bad_input_is_one_sentence(self):
        for options, status, text in [
                (["--dtype", "fp32"], 2, "--dtype: the cuda backend computes in bf16, with weights kept in fp32"),
                (["--transport", "mpi"], 2, "--transport: "),
                (["--tp", "3"], 2, "tp must divide the model's heads (4), got 3"),
                (["--dp", "40"], 1, "40 ranks on GPU 0 would have fewer than 8 multiprocessors each"),
                (["--memory", "1K", "--steps", "1"], 1, "no feasible plan")]:
            done = self.run_trainer(*options, status=status)
            self.assertIn(text, done.stderr, options)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        done = self.run_trainer("--dtype", "bf16", status=2, cpu=True)
        self.assertIn("--dtype: the cpu backend computes in fp32 or fp64", done.stderr)

    def test_what_is_not_finite_stops_before_the_update(self):
        done = self.run_trainer("--steps", "40", "--lr", "1e30", "--warmup", "0", "--dp", "2", status=1)
        self.assertRegex(done.stderr, r"the (loss|gradient) of step \d+ is not finite in MicroPack \d+, samples \d+")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
