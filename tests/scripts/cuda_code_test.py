#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check_cuda_code.py reads machine code as cuobjdump prints it and finds each breach it knows."""
import pathlib
import re
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import check_cuda_budget as budget  # noqa: E402
import check_cuda_code as code  # noqa: E402

# A loop whose wait is ahead of one of its two exponentials, and one behind the end that only waits.
KERNEL = """
    LDG.E.128 R4, desc[UR4][R2.64] | 4
    LDG.E.CONSTANT R8, desc[UR4][R2.64] | 1
    HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], RZ, !UPT | 2
    @!P1 BRA 0x0c0 | 5
    MUFU.EX2 R24, R24 | 8
    WARPGROUP.DEPBAR.LE gsb0, 0x1 | 2
    WARPGROUP.DEPBAR.LE gsb0, 0x0 | 2
    FMNMX R4, R4, R5, !PT | 4
    MUFU.EX2 R25, R25 | 8
    @P0 BRA 0x020 | 5
    @!P0 STG.E desc[UR4][R2.64], R4 | 1
    EXIT | 5
    SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR50+0x28010], R4 | 1
    @P1 BRA 0x040 | 5
"""


def printed(body=KERNEL, symbol="_Z6kernelPf"):
    lines = [f"\t\tFunction : {symbol}", '\t.headerflags\t@"EF_CUDA_SM90"']
    for at, line in enumerate(body.strip().splitlines()):
        text, stall = line.strip().split(" | ")
        lines += [f"        /*{at * 16:04x}*/                   {text} ;      /* 0x{at:016x} */",
                  f"                                  /* 0x{int(stall) << 41 | 1 << 63:016x} */"]
    return "\n".join(lines)


def breaches_of(rules, body=KERNEL):
    codes = code.parse_code(printed(body))
    budget.demangle(codes, "a")
    return list(code.check(codes, budget.parse_budgets(f"a/kernel 8 0 {rules}", "b.txt"), "b.txt"))


class MachineCode(unittest.TestCase):
    def test_figures_are_read(self):
        (kernel,) = code.parse_code(printed())
        for scope, what, expected in ((None, "instructions", 14), (None, "LDG", 2), (None, "LDG.128", 1), (None, "LDG.32", 1),
                                      (None, "STG.32", 1), ("loop", "instructions", 8), ("loop", "MUFU.EX2", 2),
                                      ("loop", "stalls", 36), ("wait", "instructions", 3), ("wait", "stalls", 17),
                                      ("wait", "MUFU.EX2", 1), ("waits", "MUFU.EX2", 1), ("wait", "FMNMX", 1)):
            self.assertEqual((scope, what, code.figure(kernel, scope, what)), (scope, what, expected))

    def test_rules_that_hold_pass(self):
        self.assertEqual(breaches_of("LDG.128=1 LDG.32<=1 loop:FMNMX>=1 wait:stalls<=17 waits:MUFU.EX2<=1"), [])

    def test_each_breach_is_named(self):
        for rule, expected in (
                ("LDG.128>=2", "a/kernel: 1 LDG.128, b.txt:1 wants >= 2"),
                ("loop:FSEL=1", "a/kernel: 0 FSEL in its leanest loop, b.txt:1 wants = 1"),
                ("wait:stalls<=16", "a/kernel: 17 stalls behind the last wait of its leanest loop, b.txt:1 wants <= 16"),
                ("waits:MUFU.EX2=0", "a/kernel: 1 MUFU.EX2 behind the last wait of a loop, b.txt:1 wants = 0")):
            self.assertEqual(breaches_of(rule), [expected])
        self.assertEqual(breaches_of("loop:FSEL=1", "EXIT | 5"),
                         ["a/kernel: b.txt:1 reads a loop with products, and there is none"])
        self.assertEqual(breaches_of("", "STL [R1], R2 | 1\nLDL R2, [R1] | 1"), ["a/kernel: 2 accesses to local memory"])

    def test_bad_rules_are_refused(self):
        for rule in ("LDG.128", "LDG=many", "tail:LDG=1"):
            with self.assertRaisesRegex(budget.BadInput, "b.txt:1: a rule is"):
                breaches_of(rule)


class Toolkit(unittest.TestCase):
    def test_one_version_is_asked_for_and_it_has_what_is_called(self):
        wanted = {}
        for path in (*ROOT.glob("backends/cuda/**/CMakeLists.txt"), *ROOT.glob("cmake/*.cmake")):
            wanted |= {tuple(map(int, version.split("."))): path
                       for version in re.findall(r"CUDAToolkit (\d+\.\d+)", path.read_text(encoding="utf-8"))}
        self.assertEqual(len(wanted), 1, wanted)
        called = (ROOT / "backends/cuda/src/partition.cu").read_text(encoding="utf-8")
        if "cudaGetDriverEntryPointByVersion" in called:  # since 12.5
            self.assertGreaterEqual(next(iter(wanted)), (12, 5))
        version = ".".join(map(str, next(iter(wanted))))
        self.assertIn(f"the CUDA Toolkit {version} or newer", (ROOT / "docs/cuda.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
