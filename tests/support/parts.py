# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a Python file, or the part of them that SLIMPACK_PART names, so that both cores work.

`2/3` is every third test from the second on, without those named test_mpi_*; `mpi` is these.
"""
import os
import sys
import unittest

MPI = "test_mpi_"


class Part(unittest.TestLoader):
    def getTestCaseNames(self, case):
        names = super().getTestCaseNames(case)
        part = os.environ.get("SLIMPACK_PART")
        if part is None:
            return names
        if part == "mpi":
            return [name for name in names if name.startswith(MPI)]
        which, of = map(int, part.split("/"))
        return [name for name in names if not name.startswith(MPI)][which - 1::of]


def main():
    """The file's tests. Ends with status 1 if one fails or none is chosen, with 77 if one is skipped."""
    result = unittest.main(argv=[sys.argv[0], "-v"], testLoader=Part(), exit=False).result
    if not result.wasSuccessful() or result.testsRun == 0:
        sys.exit(1)
    sys.exit(77 if result.skipped else 0)
