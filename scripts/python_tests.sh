#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Python package's sdist, builds the wheel from what is in it, installs that into a fresh venv
# (build/python_tests) and runs python/tests. Arguments go to pytest. Ends with status 77 and a line that
# says so where Python or the packages cannot be had. SLIMPACK_PROGRAM names a slimpack program to compare with,
# PYTHON an interpreter other than python3, SLIMPACK_WHEEL_FLAGS an optimisation other than the released wheel's.
# SLIMPACK_PYTHON_TORCH=yes installs torch and transformers too, 2.4 GB.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=build/python_tests
made=build/wheel/made
log=build/python_tests.log
mkdir -p build
: >"$log"
skip() {
  echo "skipped: Python tests: $1"
  exit 77
}
python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || skip "there is no Python 3.9 or newer"
"$python" -m venv --clear "$venv" >>"$log" 2>&1 || skip "this Python has no venv ($log)"
pip=("$venv/bin/python" -m pip -q --disable-pip-version-check)
"${pip[@]}" install --timeout 10 --retries 1 scikit-build-core nanobind numpy pytest >>"$log" 2>&1 ||
  skip "scikit-build-core, nanobind, NumPy and pytest cannot be installed ($log)"
# Tests do without: no bar is shown, and a notebook's cells run as a script.
"${pip[@]}" install --timeout 10 --retries 1 nbclient ipykernel tqdm >>"$log" 2>&1 ||
  echo "note: nbclient, ipykernel and tqdm cannot be installed ($log)"
# PyTorch's own requirements would bring CUDA's libraries again; those that a toolkit has not are named.
if [[ ${SLIMPACK_PYTHON_TORCH:-no} == yes ]]; then
  nvidia=(nvidia-cufile nvidia-cusparselt-cu13 nvidia-nvshmem-cu13 nvidia-nccl-cu13)
  { "${pip[@]}" install --no-deps 'torch==2.15.*' 'transformers==5.23.*' "${nvidia[@]}" &&
    "${pip[@]}" install filelock typing_extensions sympy networkx jinja2 fsspec safetensors tokenizers huggingface_hub \
      regex pyyaml packaging requests && "$venv/bin/python" -c 'import torch, transformers'; } >>"$log" 2>&1 ||
    echo "note: torch and transformers cannot be installed: tests of slimpack.torch are skipped ($log)"
  # Frameworks whose own modules the adapters are tested with, without what those do not import.
  "${pip[@]}" install --no-deps verl==0.9.1 tensordict pyvers cloudpickle orjson importlib_metadata zipp \
    megatron-core==0.16.1 trl==1.16.0 accelerate==1.15.0 psutil >>"$log" 2>&1 ||
    echo "note: training frameworks cannot be installed: tests of their adapters are skipped ($log)"
else
  echo "note: SLIMPACK_PYTHON_TORCH=yes would install torch (2.4 GB): tests of slimpack.torch are skipped"
fi

set -e
if command -v ccache >/dev/null 2>&1; then
  export CMAKE_CXX_COMPILER_LAUNCHER="${CMAKE_CXX_COMPILER_LAUNCHER-ccache}"
fi
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
rm -rf "$made" && mkdir -p "$made/from"
"$venv/bin/python" -c "import scikit_build_core.build as build; build.build_sdist('$made')" >>"$log"
tar -xf "$made"/slimpack-*.tar.gz -C "$made/from" --strip-components 1
# Paths below the sources do not matter to the cache.
CCACHE_BASEDIR="$PWD/$made/from" "${pip[@]}" wheel --no-build-isolation --no-deps -w "$made" "$made/from" \
  ${SLIMPACK_WHEEL_FLAGS:+-C "cmake.define.CMAKE_CXX_FLAGS_RELEASE=$SLIMPACK_WHEEL_FLAGS -DNDEBUG"} >>"$log" 2>&1 ||
  { cat "$log" && exit 1; }
"${pip[@]}" install --no-deps "$made"/slimpack-*.whl
for file in "$made"/slimpack-*.{tar.gz,whl}; do echo "made: ${file##*/}, $(stat -c %s "$file") bytes"; done
OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -q -rs "$@"
