#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the example of docs/export.md on exports of small plans: export_example_test.py PROGRAM DOCUMENT

Needs NumPy, here or in build/python, where scripts/python_packages.sh installs it; ends with status 77 (skipped)
where it is missing."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from weight_plan import with_weights

PROGRAM, DOCUMENT = (os.path.abspath(path) for path in sys.argv[1:3])
INSTALLED = pathlib.Path(__file__).resolve().parents[2] / "build" / "python" / "bin" / "python"
LENGTHS = [700, 40, 1500, 90, 90, 300, 1, 2, 640, 1100, 13, 257, 512, 4000]


def python_with_numpy():
    """An interpreter that has NumPy, else None."""
    for python in (sys.executable, str(INSTALLED)):
        if os.path.exists(python):
            if subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0:
                return python
    return None


PYTHON = python_with_numpy()


class ExportExample(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        code = re.search(r"^```python\n(.*?)^```$", pathlib.Path(DOCUMENT).read_text(encoding="utf-8"), re.M | re.S)
        (self.root / "example.py").write_text(code.group(1), encoding="utf-8")
        (self.root / "a.lengths").write_text("# documents\n" + "\n".join(map(str, LENGTHS)) + "\n", encoding="utf-8")

    def run_in_root(self, *command, status=0):
        done = subprocess.run(command, cwd=self.root, text=True, capture_output=True)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def exports(self, name, dp, pp, *options, weights=False):
        """The folders of all devices of a plan; `weights`: with the gradients of weights apart."""
        self.run_in_root(PROGRAM, "plan", "a.lengths", "--model", "tiny", "--context", "2048", "--overlong", "split",
                         "--granularity", "64", "--merge", "off", "--dp", str(dp), "--pp", str(pp), *options,
                         "--weights", "with", "-o", f"{name}.json")
        if weights:
            path = self.root / f"{name}.json"
            path.write_text(json.dumps(with_weights(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
        folders = {(d, p): f"{name}-{d}-{p}" for d in range(dp) for p in range(pp)}
        for (d, p), folder in folders.items():
            self.run_in_root(PROGRAM, "export", f"{name}.json", "--dp", str(d), "--pp", str(p), "-o", folder)
        return folders

    def test_the_example_walks_every_device_and_counts_every_target(self):
        simple = ["--planner", "slimpack-symmetric", "--head", "last", "--chunks", "1"]
        for name, dp, pp, options in [("simple", 1, 2, simple), ("full", 2, 2, ["--chunks", "2", "--head", "shard"]),
                                      ("cut", 1, 4, ["--planner", "slimpipe-order"]),
                                      ("apart", 2, 2, ["--chunks", "2"])]:
            folders = self.exports(name, dp, pp, *options, weights=name == "apart")
            printed = self.run_in_root(PYTHON, "example.py", "a.lengths", *folders.values())
            heads = re.findall(r"^dp (\d+) pp (\d+): .* (\d+) of (\d+) targets$", printed, re.M)
            self.assertEqual(len(heads), dp * pp, printed)
            last = sum(int(seen) for _, stage, seen, _ in heads if int(stage) == pp - 1)
            self.assertEqual(last, int(heads[0][3]), printed)
            self.assertEqual(last, sum(length - 1 for length in LENGTHS), printed)

    def test_exports_of_two_plans_are_told_by_their_hash(self):
        one = self.exports("one", 1, 1)
        other = self.exports("other", 1, 1, "--planner", "megatron", "--seed", "5", "--batch-tokens", "5K")
        said = self.run_in_root(PYTHON, "example.py", "a.lengths", *one.values(), *other.values(), status=1)
        self.assertIn("exports of different plans", said)


if __name__ == "__main__":
    if PYTHON is None:
        print("skipped: NumPy is missing; scripts/python_packages.sh installs it")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], "-v"])
