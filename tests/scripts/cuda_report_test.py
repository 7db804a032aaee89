#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/cuda: the report puts equal shapes side by side and names what is missing; PyTorch's cases are those of bench_cuda."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "cuda"))
import pytorch  # noqa: E402
import report  # noqa: E402


def row(operation, name, path, milliseconds=None, flop=0, size=0, **more):
    made = {"operation": operation, "name": name, "path": path, "flop": flop, "bytes": size, "shape": {}}
    if milliseconds is not None:
        made |= {"milliseconds": milliseconds, "low": milliseconds * 0.9, "high": milliseconds * 1.2}
    return made | more


BENCH = {
    "program": "bench_cuda", "date": "2000-01-02T03:04:05Z", "device": {"name": "A Card 9", "multiprocessors": 2},
    "versions": {"cuda_runtime": 1}, "copy_bytes_per_second": 4e12, "peak_flop_per_second": 8e14,
    "rows": [row("copy", "1 GiB", "cudaMemcpyAsync", 0.5, size=2e9),
             row("attention.forward", "8K", "wgmma", 1.0, flop=4e11),
             row("attention.forward", "8K", "mma", 2.0, flop=4e11),
             row("attention.forward", "64K", "plain", why_not="too much work"),
             row("copy", "1 GiB" + report.AGAIN, "cudaMemcpyAsync", 0.625, size=2e9)]}
TORCH = {
    "program": "pytorch.py", "date": "2000-01-02T03:05:05Z", "device": {"name": "A Card 9"}, "versions": {"torch": "2"},
    "rows": [row("attention.forward", "8K", "torch flash", 1.5, flop=4e11),
             row("attention.forward", "8K", "torch cudnn", why_not="refused"),
             row("attention.forward", "9K", "torch flash", 7.0, flop=4e11)]}


class Report(unittest.TestCase):
    def test_equal_shapes_stand_side_by_side(self):
        lines = report.report(BENCH, TORCH, ["scripts/gpu.sh"]).splitlines()
        self.assertEqual(lines[0], "# CUDA kernels on A Card 9, 2000-01-02")
        self.assertIn("- copy within the device: 4.00 TB/s, bytes read and written", lines)
        self.assertIn("- the same at the end: 1 GiB, 3.20 TB/s", lines)
        self.assertIn("| shape | path | ms | rate | of measured peak | torch flash, ms | over ours |", lines)
        self.assertIn("| 8K | wgmma | 1 ± 20 % | 400.0 TFLOP/s | 50.0 % | 1.5 ± 20 % | 1.50 |", lines)
        self.assertIn("| 8K | mma | 2 ± 20 % | 200.0 TFLOP/s | 25.0 % | 1.5 ± 20 % | 0.75 |", lines)
        self.assertIn("| 1 GiB | cudaMemcpyAsync | 0.5 ± 20 % | 4.00 TB/s | 100.0 % |", lines)
        self.assertIn("scripts/gpu.sh", lines)

    def test_what_is_missing_is_listed_with_its_reason(self):
        lines = report.report(BENCH, TORCH, []).splitlines()
        self.assertIn("- plain: too much work (attention.forward of 64K)", lines)
        self.assertIn("- torch cudnn: refused (attention.forward of 8K)", lines)

    def test_without_pytorch_there_are_our_columns_alone(self):
        self.assertIn("| 8K | wgmma | 1 ± 20 % | 400.0 TFLOP/s | 50.0 % |", report.report(BENCH, None, []).splitlines())

    def test_other_devices_and_broken_files_are_refused(self):
        with self.assertRaisesRegex(report.BadInput, "different devices: A Card 9 and B"):
            report.report(BENCH, TORCH | {"device": {"name": "B"}}, [])
        with tempfile.TemporaryDirectory() as folder:
            broken = pathlib.Path(folder) / "broken.json"
            for text in ("{", "{}", '{"rows": [{}]}'):
                broken.write_text(text)
                self.assertEqual(report.main([str(broken)]), 2)

    def test_the_file_is_named_after_date_and_card(self):
        self.assertEqual(report.file_name(BENCH), "cuda-2000-01-02-a-card-9.md")
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder) / "bench.json", pathlib.Path(folder) / "out" / "report.md"
            source.write_text(json.dumps(BENCH))
            self.assertEqual(report.main([str(source), "-o", str(target)]), 0)
            self.assertTrue(target.read_text(encoding="utf-8").startswith("# CUDA kernels on A Card 9"))


class Cases(unittest.TestCase):
    def test_documents_become_offsets(self):
        case = {"documents": [[0, 5, 2], [7, 3, 1]]}
        self.assertEqual(pytorch.lengths_of(case), [(0, 5), (0, 5), (7, 3)])
        self.assertEqual(pytorch.cumulated([5, 5, 3]), [0, 5, 10, 13])

    def test_each_shape_is_measured_once_whatever_the_paths(self):
        self.assertEqual([case["path"] for case in pytorch.distinct(BENCH["rows"])][:2], ["cudaMemcpyAsync", "wgmma"])

    def test_quantiles_and_sets_are_those_of_bench_cuda(self):
        self.assertEqual(pytorch.quantile([1, 2, 4], 0.5), 2)
        self.assertEqual(pytorch.quantile([1, 2, 4], 0.75), 3)
        self.assertEqual(pytorch.quantile([3], 0.9), 3)
        self.assertEqual(pytorch.sets_needed(30, 50), 4)
        self.assertEqual(pytorch.sets_needed(1e9, 50), 1)
        self.assertEqual(pytorch.sets_needed(0, 1e9), 64)

    def test_a_prefix_is_not_put_to_cudnn(self):
        made = pytorch.Torch.__new__(pytorch.Torch)
        case = row("attention.forward", "1K after 4K", "mma", documents=[[4096, 1024, 1]])
        with self.assertRaisesRegex(pytorch.Refused, "none for a prefix"):
            made.attention(case, "cudnn")

    def test_operations_have_their_back_ends(self):
        made = pytorch.Torch.__new__(pytorch.Torch)
        names = {operation: [name for name, _ in pytorch.makers(made, {"operation": operation})]
                 for operation in ("copy", "gemm.forward", "attention.backward", "rms_norm.backward", "adamw", "attention.merge")}
        self.assertEqual(names, {"copy": ["torch"], "gemm.forward": ["torch"], "attention.backward": ["torch flash", "torch cudnn"],
                                 "rms_norm.backward": ["torch"], "adamw": ["torch"], "attention.merge": []})


if __name__ == "__main__":
    unittest.main()
