#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each part of scripts/gpu.sh and scripts/gpu_train.sh has stages whose bounds fit into its time."""
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEFT_FOR_THE_REPORT = 10


def parts_of(script):
    parts = {}
    for line in (ROOT / "scripts" / script).read_text(encoding="utf-8").splitlines():
        if found := re.match(r"part (\w+)$", line):
            parts[found[1]] = current = []
        elif found := re.match(r"stage (\w+) (\d+) ", line):
            current.append((found[1], int(found[2])))
    return parts


class GpuParts(unittest.TestCase):
    def test_bounds_of_a_part_fit_into_it(self):
        seconds = int(re.search(r"SLIMPACK_GPU_SECONDS:-(\d+)", (ROOT / "scripts" / "gpu_stages.sh").read_text())[1])
        for script in ("gpu.sh", "gpu_train.sh"):
            text = (ROOT / "scripts" / script).read_text(encoding="utf-8")
            parts = parts_of(script)
            self.assertEqual(re.search(r"^all_parts=\((.*)\)$", text, re.M)[1].split(), list(parts))
            for name, stages in parts.items():
                self.assertLessEqual(sum(bound for _, bound in stages), seconds - LEFT_FOR_THE_REPORT, f"{script} {name}")

    def test_an_unknown_part_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for script in ("gpu.sh", "gpu_train.sh"):
                done = subprocess.run([ROOT / "scripts" / script, folder, "dance"], text=True, capture_output=True)
                self.assertEqual(done.returncode, 2)
                self.assertIn(f"{script}: a part must be one of ", done.stderr)


if __name__ == "__main__":
    unittest.main()
