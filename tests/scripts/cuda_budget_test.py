#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check_cuda_budget.py finds each breach it knows; keep_ptxas_report.sh parts a compiler's words."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import check_cuda_budget as budget  # noqa: E402

SYMBOL = "_ZN8slimpack5bench39_GLOBAL__N__b7faf19b_7_fill_cu_c4455b1e18fill_normal_kernelIfEEvPT_lfm"


def report_of(symbol=SYMBOL, frame=0, spill=0, registers=24, shared=""):
    return (f"ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function '{symbol}' for 'sm_90a'\n"
            f"ptxas info    : Function properties for {symbol}\n"
            f"    {frame} bytes stack frame, {spill} bytes spill stores, {spill} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 1 barriers{shared}\nptxas info    : Compile time = 3 ms\n")


def breaches_of(report, lines):
    kernels, warnings = budget.parse_report(report)
    budget.demangle(kernels, "fill")
    return warnings + list(budget.check(kernels, budget.parse_budgets(lines, "b.txt"), "b.txt"))


class Budgets(unittest.TestCase):
    def test_a_kernel_within_its_budget_passes(self):
        self.assertEqual(breaches_of(report_of(shared=", 1024 bytes smem"), "# of rows\nfill/fill_normal_kernel<*> 24 1024\n"), [])

    def test_each_breach_is_named(self):
        lines = "fill/fill_normal_kernel<float> 24 16  # all of them"
        name = "fill/fill_normal_kernel<float>: "
        for report, expected in (
                (report_of(registers=25), name + "25 registers, b.txt:1 allows 24"),
                (report_of(shared=", 17 bytes smem, 400 bytes cmem[0]"),
                 name + "17 bytes of static shared memory, b.txt:1 allows 16"),
                (report_of(frame=8, spill=4), name + "spills, 8 bytes stored and loaded"),
                (report_of(frame=8), name + "keeps 8 bytes a thread in local memory"),
                (report_of() + "ptxas warning : too bad", "ptxas warning : too bad"),
                (report_of() + "ptxas info    : (C7510) Potential Performance Loss: wgmma",
                 "ptxas info    : (C7510) Potential Performance Loss: wgmma")):
            self.assertEqual(breaches_of(report, lines), [expected])
        self.assertEqual(breaches_of(report_of(), "fill 24 16"),
                         [name + "b.txt has no line for it", "b.txt:1: fill fits no kernel that no earlier line fits"])

    def test_names_lose_what_does_not_tell_kernels_apart(self):
        for name, expected in (
                ("void slimpack::cuda::(anonymous namespace)::kernel<(int)128, (bool)1, a::Element>(float*, long)",
                 "kernel<128,1,Element>"),
                ("slimpack::cuda::kernel(slimpack::cuda::Span<int>)", "kernel"),
                ("void kernel<128, (slimpack::cuda::Path)2>(int)", "kernel<128,2>")):
            self.assertEqual(budget.short_name(name), expected)

    def test_bad_lines_are_refused(self):
        for line in ("kernel 24", "kernel 24 many", "kernel -1 0"):
            with self.assertRaisesRegex(budget.BadInput, "b.txt:1: a line is"):
                budget.parse_budgets(line, "b.txt")

    def test_a_source_without_a_report_is_a_breach(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "src").mkdir()
            (root / "src" / "a.cu").write_text("")
            _, breaches = budget.read_reports(root / "build", root / "src")
            self.assertEqual(len(breaches), 1)
            objects = root / "build" / "slimpack_cuda.dir"
            objects.mkdir(parents=True)
            (objects / "a.cu.o.ptxas").write_text(report_of())
            kernels, breaches = budget.read_reports(root / "build", root / "src")
            self.assertEqual(([kernel.name for kernel in kernels], breaches), (["a/fill_normal_kernel<float>"], []))


class Launcher(unittest.TestCase):
    def test_reports_go_to_a_file_and_all_else_is_passed_on(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "said.txt").write_text("a.cu(3): warning: unused\n" + report_of() + "ptxas warning : too bad\n")
            compiler = root / "compiler"
            compiler.write_text(f"#!/bin/sh\ncat {root}/said.txt >&2\nexit 3\n")
            compiler.chmod(0o755)
            done = subprocess.run([ROOT / "backends/cuda/keep_ptxas_report.sh", compiler, "-c", "a.cu", "-o", root / "a.o"],
                                  text=True, capture_output=True)
            self.assertEqual(done.returncode, 3)
            self.assertEqual(done.stderr, "a.cu(3): warning: unused\nptxas warning : too bad\n")
            self.assertEqual((root / "a.o.ptxas").read_text(), report_of() + "ptxas warning : too bad\n")
            self.assertEqual(sorted(path.name for path in root.iterdir()), ["a.o.ptxas", "compiler", "said.txt"])


if __name__ == "__main__":
    unittest.main()
