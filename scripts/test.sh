#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds programs, examples and tests in build/release and runs all tests.
# SLIMPACK_PYTHON_TESTS=no leaves the Python package out. Arguments go to CMake's configure step, e.g. scripts/test.sh -DSLIMPACK_WERROR=ON
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/deps.sh
if command -v ccache >/dev/null 2>&1; then
  export CMAKE_CXX_COMPILER_LAUNCHER="${CMAKE_CXX_COMPILER_LAUNCHER-ccache}"
fi
cmake --preset release -DSLIMPACK_BUILD_BENCH=OFF "$@"
cmake --build --preset release --parallel "$(nproc)"
# One test more than cores: some only wait for processes to be given up.
ctest --preset release -j "$(($(nproc) + 1))"
if [[ ${SLIMPACK_PYTHON_TESTS:-yes} != no ]]; then
  SLIMPACK_PROGRAM="$PWD/build/release/bin/slimpack" scripts/python_tests.sh || (($? == 77))
fi
