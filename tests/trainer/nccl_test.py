#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The mini-trainer with a process a GPU, from the outside, on emulated GPUs: nccl_test.py EMULATED

EMULATED is the program with slimpack_cuda_emulated and slimpack_nccl_emulated.
"""
import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from small_runs import CUDA_MODEL, ENVIRONMENT, SmallRuns, step_of

EMULATED = sys.argv[1]


def free_port():
    """A free port of those that the system gives nobody who asks for any."""
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            return str(port)


class NcclTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.runs = SmallRuns(self.folder.name, EMULATED, model=CUDA_MODEL, batch_tokens=256, context=128)
        self.path, self.weights = self.runs.path, self.runs.weights

    def tearDown(self):
        self.folder.cleanup()

    def start(self, options, ranks, **own):
        """One process a rank; own[name] is a list of one value a rank, None for unset."""
        port = free_port()
        processes = []
        for rank in range(ranks):
            variables = {**ENVIRONMENT, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                         "MASTER_ADDR": "localhost", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": str(rank)}
            variables.update({name: values[rank] for name, values in own.items()})
            variables = {name: value for name, value in variables.items() if value is not None}
            mine = options(rank) if callable(options) else options
            command = self.runs.command("--backend", "cuda", "--transport", "nccl", *mine)
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                              stderr=subprocess.PIPE, text=True, env=variables))
        return processes

    def finish(self, processes, status=0, others=None):
        """Status and outputs of processes, one of which ends with `status` and each with it or `others`."""
        ends = []
        for process in processes:
            out, error = process.communicate(timeout=60)
            ends.append((process.returncode, out, error))
        self.assertIn(status, [returned for returned, out, error in ends], ends)
        for returned, out, error in ends:
            self.assertIn(returned, (status, others), ends)
        return ends

    def test_a_step_equals_the_unsliced_reference(self):
        self.runs.sizes = ["--batch-tokens", "1024", "--context", "512"]  # few tokens round more
        for ranks, options in ((1, []), (2, ["--dp", "2", "--planner", "megatron-cp"]),
                               (2, ["--pp", "2", "--head", "shard", "--chunks", "2", "--recompute", "full"]),
                               (2, ["--dp", "1", "--tp", "2"])):
            ends = self.finish(self.start(["--check", *options], ranks))
            self.assertIn("passed", ends[0][1], options)
            for _, out, _ in ends[1:]:
                self.assertEqual(out, "", options)

    def test_steps_have_the_bits_of_ranks_on_threads(self):
        self.same_bits(["--steps", "4", "--dp", "2", "--pp", "2"], 4)

    def test_tensor_parallel_steps_have_the_bits_of_ranks_on_threads(self):
        self.same_bits(["--steps", "4", "--dp", "1", "--pp", "2", "--tp", "2"], 4)

    def same_bits(self, common, ranks):
        log, trace = self.path("log.jsonl"), self.path("trace.json")
        self.finish(self.start([*common, "--save", self.path("processes"), "--log", log, "--trace", trace], ranks))
        command = self.runs.command("--backend", "cuda", *common, "--save", self.path("threads"))
        subprocess.run(command, check=True, capture_output=True, timeout=120, env=ENVIRONMENT)
        self.assertEqual(self.weights("processes"), self.weights("threads"))
        lines = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines if "step" in line], [1, 2, 3, 4])
        units = json.loads(pathlib.Path(trace).read_text())
        self.assertTrue(units)

    def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(self):
        common = ["--steps", "4", "--pp", "2"]
        self.finish(self.start([*common, "--save", self.path("whole")], 2))
        stopped = self.start([*common, "--save", self.path("parts"), "--save-every", "2"], 2)
        for line in stopped[0].stdout:
            if line.startswith("saved step 2"):
                break
        stopped[1].send_signal(signal.SIGKILL)
        for process in stopped:
            process.communicate(timeout=60)
        self.finish(self.start([*common, "--save", self.path("parts"), "--resume", self.path("parts")], 2))
        self.assertEqual(self.weights("whole"), self.weights("parts"))

    def test_choices_of_products_are_those_of_all_ranks(self):
        choices, common = self.path("choices.csv"), ["--steps", "1", "--pp", "2"]
        plain, read = self.path("plain"), self.path("read")
        self.finish(self.start([*common, "--gemm-candidates", "2", "--gemm-choices", choices, "--save", plain], 2))
        lines = pathlib.Path(choices).read_text().splitlines()
        self.assertGreater(len(lines), 10)
        self.finish(self.start([*common, "--gemm-choices", choices, "--save", read], 2))
        self.assertEqual(self.weights("read"), self.weights("plain"))
        pathlib.Path(choices).write_text("nothing")
        ends = self.finish(self.start([*common, "--gemm-choices", choices], 2), status=2, others=1)
        self.assertIn("choices.csv:1: the line must be '# device: VALUE', got 'nothing'", ends[0][2])

    def sentences(self, ends, but=()):
        """What ranks say, without who says it."""
        told = set()
        for rank, (_, _, error) in enumerate(ends):
            if rank not in but:
                told.add(error.strip().split(" ends: ", 1)[-1])
        return told

    def test_a_rank_without_a_gpu_of_its_own_ends_all(self):
        ends = self.finish(self.start(["--pp", "2"], 2, CUDA_VISIBLE_DEVICES=[None, None]), status=1)
        self.assertEqual(len(self.sentences(ends)), 1, ends)
        self.assertIn("has 1 GPU, but this is its rank 1", ends[0][2])
        ends = self.finish(self.start(["--pp", "2"], 2, CUDA_VISIBLE_DEVICES=["3", "3"]), status=1)
        self.assertIn("ranks 0 and 1 have the same GPU 3 of", ends[0][2])

    def test_ranks_with_different_plans_are_named(self):
        # A rank that the other's failure reaches before its own comparison ends with status 1.
        ends = self.finish(self.start(lambda rank: ["--pp", "2", "--seed", str(rank)], 2), status=2, others=1)
        self.assertIn("ranks must run one plan", ends[0][2])
        self.assertIn("rank 1, device (dp 0, pp 1), has", ends[1][2])

    def test_bad_usage_is_one_sentence_and_status_2(self):
        for options, own, text in (([], {"RANK": ["7"]}, "RANK: must be below WORLD_SIZE (1), got 7"),
                                   ([], {"MASTER_PORT": ["none"]}, "MASTER_PORT: must be a whole number"),
                                   (["--profile", self.path("p.csv")], {}, "--profile: ranks are threads"),
                                   (["--dp", "2"], {}, "--dp x --pp must be the number of devices (1)")):
            ends = self.finish(self.start(options, 1, **own), status=2)
            self.assertIn(text, ends[0][2])
            self.assertEqual(len(ends[0][2].strip().splitlines()), 1, ends)

    def test_a_rank_that_is_killed_ends_all_in_time(self):
        self.killed_in_time(["--dp", "2", "--pp", "2"], "rank 2, device (dp 1, pp 0), ")

    def test_a_tensor_parallel_rank_that_is_killed_ends_all_in_time(self):
        self.killed_in_time(["--dp", "1", "--pp", "2", "--tp", "2"], "rank 2, device (dp 0, pp 1, tp 0), ")

    def killed_in_time(self, degrees, name):
        processes = self.start(["--steps", "500", *degrees], 4)
        for line in processes[0].stdout:
            if step_of(line) == 2:
                break
        os.kill(processes[2].pid, signal.SIGKILL)
        begin = time.monotonic()
        ends = [(process.wait(timeout=60), *process.communicate()) for process in processes]
        self.assertLess(time.monotonic() - begin, 10)
        told = self.sentences(ends, but=(2,))
        self.assertEqual(len(told), 1, told)
        self.assertIn(name, told.pop())
        self.assertTrue(all(end[0] != 0 for end in ends))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
