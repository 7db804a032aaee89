#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The mini-trainer from the outside: trainer_test.py MINI_TRAINER SLIMPACK [--cuda] [MPIRUN]

Runs are small: a model of two layers on a text of its own. MPIRUN is left out where the program was
built without MPI; --cuda says that it was built with CUDA.
"""
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from small_runs import ENVIRONMENT, RANKS, SmallRuns

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import parts  # noqa: E402

CUDA = "--cuda" in sys.argv
TRAINER, SLIMPACK, *MORE = [word for word in sys.argv[1:] if word and word != "--cuda"]
MPIRUN = MORE[0] if MORE else ""


class TrainerTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.runs = SmallRuns(self.root, TRAINER, MPIRUN)
        self.path, self.command, self.weights = self.runs.path, self.runs.command, self.runs.weights

    def tearDown(self):
        self.folder.cleanup()

    def run_trainer(self, *options, ranks=0, status=0, **more):
        done = subprocess.run(self.command(*options, ranks=ranks), text=True, capture_output=True, timeout=120,
                              env=RANKS if ranks else ENVIRONMENT, **more)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def test_help_and_version(self):
        self.assertIn("--resume", self.run_trainer("--help").stdout)
        self.assertIn("mini_trainer", self.run_trainer("--version").stdout)

    def test_bad_input_is_one_sentence_and_status_2(self):
        (self.root / "taken").write_text("no folder")
        before = set(self.root.iterdir())
        for options, text in [(["--lr", "fast"], "--lr: 'fast' is not a number > 0"),
                              (["--backend", "cuda", "--dtype", "fp32"],
                               "--dtype: the cuda backend computes in bf16" if CUDA else
                               "--backend: this program is built for cpu alone"),
                              (["--transport", "nccl"], "--transport: "),
                              (["--dtype", "bf16"], "--dtype: the cpu backend computes in fp32 or fp64"),
                              (["--gemm-candidates", "2"], "--gemm-candidates: needs --backend cuda, got 2"),
                              (["--gemm-choices", "a.csv"], "--gemm-choices: needs --backend cuda, got 'a.csv'"),
                              (["--planner", "none"], "planner must be one of"),
                              (["--effort", "most"], "--effort: 'most'"),
                              (["--save-every", "2"], "--save-every: needs --save"),
                              (["--steps", "3", "--warmup", "4"], "--warmup: must be at most --steps (3), got 4"),
                              (["--dp", "2", "--pp", "9"], "layers"),
                              (["--tp", "3"], "tp must divide the model's heads (4), got 3"),
                              (["--tp", "4"], "tp must divide the model's kv_heads (2), got 4"),
                              (["--resume", self.path("nowhere")], "nowhere"),
                              (["--overlong", "error"], "context"),
                              (["--log", self.path("no/such/file")], "--log: cannot write"),
                              (["--save", self.path("taken/run")], "cannot make the folder"),
                              (["--save", self.path("taken")], "taken"),
                              (["--trace", self.path("no/such/file")], "cannot write"),
                              (["--profile", self.path("no/such/file")], "cannot write"),
                              (["--wrong"], "--wrong")]:
            done = self.run_trainer(*options, status=2)
            self.assertIn(text, done.stderr, options)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            self.assertEqual(done.stdout, "", options)
        self.assertEqual(set(self.root.iterdir()), before)

    def test_what_fails_later_leaves_no_folder(self):
        before = set(self.root.iterdir())
        self.run_trainer("--steps", "2", "--save", self.path("run"), "--trace", self.path("run/trace.json"), status=2)
        self.run_trainer("--memory", "1K", "--steps", "1", "--save", self.path("run"), status=1)
        self.assertEqual(set(self.root.iterdir()), before)

    def test_no_feasible_plan_is_status_1(self):
        done = self.run_trainer("--memory", "1K", "--steps", "1", status=1)
        self.assertIn("no feasible plan", done.stderr)
        self.assertIn("available 1000", done.stderr)

    def test_a_step_equals_the_unsliced_reference(self):
        for options in (["--dp", "2"], ["--pp", "2"], ["--pp", "2", "--head", "shard"], ["--pp", "2", "--chunks", "2"],
                        ["--dp", "2", "--pp", "2", "--recompute", "full"], ["--dp", "1", "--planner", "megatron"],
                        ["--dp", "2", "--planner", "megatron-cp"], ["--pp", "2", "--planner", "slimpipe-order"],
                        ["--dp", "1", "--tp", "2"], ["--dp", "2", "--pp", "2", "--tp", "2", "--recompute", "layer"],
                        ["--dp", "3", "--weight-state", "sharded"],
                        ["--dp", "2", "--tp", "2", "--weight-state", "sharded"]):
            self.assertIn("passed", self.run_trainer("--check", *options).stdout, options)
            self.assertIn("passed", self.run_trainer("--check", "--dtype", "fp64", *options).stdout, options)

    def test_every_step_is_printed_and_logged(self):
        log, trace = self.path("log.jsonl"), self.path("trace.json")
        done = self.run_trainer("--steps", "4", "--pp", "2", "--log", log, "--trace", trace)
        lines = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4])
        for line in lines:
            self.assertGreater(line["measured_s"], 0)
            self.assertGreater(line["predicted_s"], 0)
            self.assertGreater(line["tokens"], 0)
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])
        self.assertEqual(sum(line.startswith("step ") for line in done.stdout.splitlines()), 4)
        predicted, plan = self.path("predicted.json"), self.path("trace.plan.json")
        subprocess.run([SLIMPACK, "validate", plan], check=True, capture_output=True)
        subprocess.run([SLIMPACK, "simulate", plan, "--trace", predicted], check=True, capture_output=True)
        compared = subprocess.run([SLIMPACK, "compare-traces", predicted, trace, "--json"], check=True,
                                  capture_output=True, text=True)
        json.loads(compared.stdout)
        again = self.run_trainer("--plan", plan, "--steps", "2")
        self.assertEqual(sum(line.startswith("step ") for line in again.stdout.splitlines()), 2)

    def test_steps_in_turns_wait_for_a_line_each(self):
        self.run_trainer("--steps", "3", "--pp", "2", "--log", self.path("alone.jsonl"))
        log = pathlib.Path(self.path("turns.jsonl"))
        command = self.command("--steps", "3", "--pp", "2", "--log", str(log), "--turns")
        run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        for step in range(1, 4):
            for line in run.stdout:
                if line == f"ready for step {step}\n":
                    break
            self.assertEqual(len(log.read_text().splitlines()), step - 1)
            run.stdin.write("\n")
            run.stdin.flush()
        run.communicate(timeout=120)
        self.assertEqual(run.returncode, 0)
        self.assertEqual(self.runs.losses("turns"), self.runs.losses("alone"))
        done = self.run_trainer("--steps", "3", "--turns", status=2, input="\n")
        self.assertIn("step     1", done.stdout)
        self.assertEqual(done.stderr, "mini_trainer: --turns: standard input ended before step 2\n")

    def test_a_run_goes_on_with_other_degrees_or_weights_shared(self):
        """In fp64, so that the order of sums shows in the last digits alone."""
        def losses(*options):
            done = self.run_trainer("--dtype", "fp64", "--steps", "4", *options)
            return [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("step ")]
        one, two, other = ["--dp", "1"], ["--dp", "1", "--tp", "2"], ["--dp", "2", "--pp", "2", "--tp", "2"]
        shared = ["--dp", "3", "--weight-state", "sharded"]
        replicated = ["--dp", "3", "--weight-state", "replicated"]
        whole = losses(*one)
        self.assertEqual(losses(*two), whole)
        self.assertEqual(losses(*shared), whole)
        for begin, end in ((one, two), (two, one), (two, other), (other, two), (shared, replicated),
                           (replicated, shared), (shared, two)):
            folder = self.path("-".join(begin + end))
            stopped = subprocess.Popen(self.command("--dtype", "fp64", "--steps", "4", *begin, "--save", folder,
                                                    "--save-every", "2"),
                                       stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
            for line in stopped.stdout:
                if line.startswith("saved step 2"):
                    stopped.send_signal(signal.SIGKILL)
                    break
            stopped.communicate()
            self.assertEqual(losses(*end, "--resume", folder), whole[2:], (begin, end))
        done = self.run_trainer("--check", "--dtype", "fp64", *other, "--init", folder)  # a Hugging Face folder
        self.assertIn("passed", done.stdout)

    def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(self):
        for options in (["--dp", "2"], ["--pp", "2", "--head", "shard"], ["--tp", "2"],
                        ["--weight-state", "sharded", "--dp", "2"]):
            whole, parts = "whole" + options[0], "parts" + options[0]
            self.run_trainer("--steps", "6", *options, "--save", self.path(whole))
            stopped = subprocess.Popen(self.command("--steps", "6", *options, "--save", self.path(parts),
                                                    "--save-every", "2"),
                                       stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
            for line in stopped.stdout:
                if line.startswith("saved step 2"):
                    stopped.send_signal(signal.SIGKILL)
                    break
            stopped.communicate()
            for ranks in ([0, 2] if MPIRUN else [0]):
                copy = f"{parts}-{ranks}"
                shutil.copytree(self.path(parts), self.path(copy))
                self.run_trainer("--steps", "6", *options, "--save", self.path(copy), "--resume", self.path(copy),
                                 ranks=ranks)
                self.assertEqual(self.weights(whole), self.weights(copy), (options, ranks))

    def test_kill_at_any_moment(self):
        draw = random.Random(7)
        self.runs.whole("whole", 8, "--dp", "2")
        for ranks, trials in ((0, 4), (2, 2 if MPIRUN else 0)):
            pace = self.runs.whole(f"pace{ranks}", 8, "--dp", "2", ranks=ranks) if trials else None
            for trial in range(trials):
                folder = f"killed{ranks}-{trial}"
                kills = self.runs.killed(draw, folder, 8, pace, 4, "--dp", "2", ranks=ranks)
                self.assertEqual(self.runs.same(folder, "whole"), [], (folder, kills))

    def test_the_benchmark_prints_its_tables(self):
        script = pathlib.Path(__file__).resolve().parents[2] / "bench" / "trainer.py"
        command = [sys.executable, str(script), str(pathlib.Path(TRAINER).parent)]
        sizes = ["--batch-tokens", "1024", "--context", "256", "--steps", "2", "--rounds", "2", "--warmup", "1",
                 "--trials", "1", "--kill-steps", "3"]
        done = subprocess.run([*command, "speed", "kill", *sizes, "--planners", "megatron,kk,slimpack",
                               "--mpirun", MPIRUN], capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        times, ratios, runs = 3, 2, 6
        self.assertEqual(done.stdout.count("\n| pp 2 | `"), times + ratios + runs, done.stdout)
        self.assertIn("1 of 1", done.stdout)
        failed = subprocess.run([*command, "speed", *sizes, "--model", "none"], capture_output=True, text=True, timeout=120)
        self.assertEqual(failed.returncode, 1, failed.stdout + failed.stderr)
        wrong = subprocess.run([*command, "nothing"], capture_output=True, text=True, timeout=120)
        self.assertEqual(wrong.returncode, 2, wrong.stderr)

    def megatron(self, name, documents):
        """Writes a Megatron indexed dataset of 16-bit tokens; gives the name of its .bin."""
        tokens = [token for document in documents for token in document]
        pathlib.Path(self.path(name + ".bin")).write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        begins = [2 * sum(map(len, documents[:i])) for i in range(len(documents))]
        index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(documents), len(documents) + 1)
        index += struct.pack(f"<{len(documents)}i", *map(len, documents))
        index += struct.pack(f"<{2 * len(documents) + 1}q", *begins, *range(len(documents) + 1))
        pathlib.Path(self.path(name + ".idx")).write_bytes(index)
        return self.path(name + ".bin")

    def run_on(self, data, *options, status=0):
        """A run on other data than the text of all runs."""
        command = [TRAINER, "--model", self.path("config.json"), "--data", data, *self.runs.sizes, *options]
        done = subprocess.run(command, text=True, capture_output=True, timeout=120, env=ENVIRONMENT)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def test_data_beyond_the_vocabulary_are_refused_with_the_way_out(self):
        draw = random.Random(3)
        documents = [[draw.randrange(4_999) for _ in range(count)] for count in (300, 40, 7, 500)] + [[4_999, 1]]
        jsonl = self.path("ids.jsonl")
        pathlib.Path(jsonl).write_text("".join(json.dumps({"tokens": document}) + "\n" for document in documents))
        for data in (self.megatron("ids", documents), jsonl):
            done = self.run_on(data, "--steps", "1", status=2)
            self.assertRegex(done.stderr, r"document \d+ \(from 0\): the token at position \d+ \(from 0\) must be in "
                             r"0 \.\. 256, the vocabulary, found \d+; --vocabulary auto makes the model large enough")
            self.assertEqual(len(done.stderr.splitlines()), 1)
            self.run_on(data, "--steps", "1", "--vocabulary", "4999", status=2)
            for vocabulary, size in (("auto", 5056), ("5000", 5000)):  # 79 x 64 is the first multiple above 4,999
                done = self.run_on(data, "--check", "--vocabulary", vocabulary)
                self.assertIn(f"vocabulary {size};", done.stdout)
                self.assertIn("passed", done.stdout)
                self.assertEqual(done.stderr, "")
        self.run_on(data, "--steps", "2", "--vocabulary", "auto", "--save", self.path("run"))
        saved = json.loads(pathlib.Path(self.path("run/config.json")).read_text())
        self.assertEqual(saved["vocab_size"], 5056)
        for begin in ("--init", "--resume"):
            self.run_on(data, "--steps", "2", "--vocabulary", "auto", begin, self.path("run"))
            done = self.run_on(data, "--steps", "2", "--vocabulary", "6000", begin, self.path("run"), status=2)
            self.assertIn("--vocabulary: must be that of the model saved in " + self.path("run") + " (5056), got 6000",
                          done.stderr)
        larger = self.megatron("larger", [[6_000] * 9])
        done = self.run_on(larger, "--steps", "1", "--init", self.path("run"), status=2)
        self.assertIn("found 6000; the model saved in " + self.path("run") + " has no more tokens", done.stderr)
        lengths = self.path("a.lengths")
        pathlib.Path(lengths).write_text("20\n30\n")
        done = self.run_on(lengths, "--vocabulary", "auto", status=2)
        self.assertIn("--vocabulary: auto needs data with tokens", done.stderr)
        self.assertIn("vocabulary 320;", self.run_trainer("--steps", "1", "--vocabulary", "auto").stdout)  # of bytes

    def test_text_in_json_lines_is_said_to_be_bytes(self):
        data = self.path("some.jsonl")
        pathlib.Path(data).write_text('{"text": "some words of a text"}\n{"tokens": [1, 2, 3]}\n{"input_ids": [4, 5]}\n')
        done = self.run_on(data, "--steps", "1", "--vocabulary", "8000")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("1 of 3 documents have the key 'text': its UTF-8 bytes are their tokens (0 .. 255), whatever the "
                      "vocabulary (8000)", done.stderr)
        pathlib.Path(data).write_text('{"tokens": [1, 2, 3]}\n')
        # Ids of a tokenizer have no end-of-document token: 2 targets a document, where 3 bytes of text have 3.
        log = self.path("log.jsonl")
        self.assertEqual(self.run_on(data, "--steps", "1", "--vocabulary", "8000", "--log", log).stderr, "")
        step = json.loads(pathlib.Path(log).read_text().splitlines()[0])
        self.assertEqual(3 * step["targets"], 2 * step["tokens"])

    def test_a_profile_says_what_it_measured_and_other_runs_refuse_it(self):
        profile, cost, other = self.path("profile.csv"), self.path("cost.json"), self.path("other.json")
        done = self.run_trainer("--profile", profile, "--dp", "2")
        share = float(re.search(r"2 ranks, which had ([0-9.]+) % of their cores' time", done.stdout).group(1))
        self.assertEqual("other work took" in done.stderr, share < 90, done.stdout + done.stderr)
        self.assertIn("# hidden: 32\n", pathlib.Path(profile).read_text())
        subprocess.run([SLIMPACK, "calibrate", profile, "-o", cost], check=True, capture_output=True)
        run = ["--steps", "1", "--eval-data", self.path("text/00.txt"), "--cost"]
        self.assertEqual(self.run_trainer("--dp", "2", *run, cost).stderr, "")
        self.assertIn("ranks that worked at the same time while it was measured: 2, in this run: 1",
                      self.run_trainer("--dp", "1", *run, cost).stderr)
        measured = json.loads(pathlib.Path(cost).read_text())
        self.assertEqual((measured["shape"]["vocab"], measured["shape"]["bytes_per_element"]), (257, 4))
        self.assertEqual((measured["device"]["cluster"], measured["device"]["ranks"]), ("cpu", 2))
        name = measured["device"]["name"]
        for key, value, sentence in [
                ("shape", dict(measured["shape"], ffn=64), "other.json: shape.ffn: the costs were measured for model "),
                ("device", dict(measured["device"], name="Another Processor, 2 threads"),
                 "other.json: device: the costs were measured on 'Another Processor, 2 threads' (cluster 'cpu'), "
                 f"not on '{name}'")]:
            pathlib.Path(other).write_text(json.dumps(dict(measured, **{key: value})))
            done = self.run_trainer("--dp", "2", *run, other, status=2)
            self.assertIn(sentence, done.stderr)
            del measured[key]
        pathlib.Path(other).write_text(json.dumps(measured))
        done = self.run_trainer("--dp", "2", *run, other)
        self.assertEqual(done.stderr.count("other.json: does not tell the model and device"), 1, done.stderr)

    def test_other_settings_are_refused_on_resume(self):
        self.run_trainer("--steps", "2", "--save", self.path("run"))
        done = self.run_trainer("--steps", "2", "--lr", "1e-3", "--resume", self.path("run"), status=2)
        self.assertIn("lr must be as it was saved", done.stderr)

    def test_a_model_that_was_saved_is_a_beginning(self):
        self.run_trainer("--steps", "3", "--save", self.path("run"))
        done = self.run_trainer("--steps", "1", "--init", self.path("run"), "--check")
        self.assertIn("passed", done.stdout)

    def test_what_is_not_finite_stops_before_the_update(self):
        for ranks in ("--dp", "--pp"):
            done = self.run_trainer("--steps", "40", "--lr", "1e30", "--warmup", "0", ranks, "2", status=1)
            self.assertRegex(done.stderr, r"MicroPack \d+, .*: the (loss|gradient) of step \d+ is not finite in samples \d+")

    def test_a_limit_on_files_loses_no_checkpoint(self):
        self.run_trainer("--steps", "2", "--save", self.path("run"))
        before = self.weights("run")
        limit = len(before) // 2
        done = self.run_trainer("--steps", "3", "--save", self.path("run"), status=2,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertIn("safetensors", done.stderr)
        self.assertEqual(self.weights("run"), before)

    @unittest.skipUnless(MPIRUN, "built without MPI")
    def test_mpi_processes_have_the_bits_of_threads(self):
        for ranks, options in ((2, ["--pp", "2"]), (2, ["--dp", "1", "--tp", "2"]),
                               (4, ["--dp", "2", "--pp", "2", "--chunks", "2"]),
                               (4, ["--dp", "1", "--pp", "2", "--tp", "2"]),
                               (4, ["--dp", "2", "--tp", "2", "--weight-state", "sharded"])):
            name = "".join(options)
            threads, processes = f"threads{name}", f"processes{name}"
            here = self.run_trainer("--steps", "3", *options, "--save", self.path(threads))
            there = self.run_trainer("--steps", "3", *options, "--save", self.path(processes), ranks=ranks)
            self.assertEqual(self.weights(threads), self.weights(processes))
            losses = [[line.split()[3] for line in text.splitlines() if line.startswith("step ")]
                      for text in (here.stdout, there.stdout)]
            self.assertEqual(losses[0], losses[1])
            resumed = self.run_trainer("--steps", "3", *options, "--resume", self.path(processes))
            self.assertNotIn("step ", resumed.stdout.split("\n", 1)[1])

    @unittest.skipUnless(MPIRUN, "built without MPI")
    def test_mpi_a_dead_process_ends_the_others(self):
        for fault in (signal.SIGKILL, signal.SIGSTOP):
            run = subprocess.Popen(self.command("--steps", "100000", "--pp", "2", ranks=2), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=RANKS)
            for line in run.stdout:
                if line.startswith("step "):
                    break
            found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(run.pid)], capture_output=True, text=True)
            ranks = [int(line.split()[0]) for line in found.stdout.splitlines() if TRAINER in line]
            self.assertEqual(len(ranks), 2, found.stdout)
            began = time.monotonic()
            os.kill(ranks[1], fault)
            _, errors = run.communicate(timeout=60)
            self.assertLess(time.monotonic() - began, 20)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn("pp 1", errors)


if __name__ == "__main__":
    parts.main()
