#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs from PyPI into build/python what checks need and Debian has not: NumPy and safetensors for
# scripts/check_hugging_face.py, protobuf for tests/cli/chakra_test.py, clang-format and clang-tidy, whose
# versions decide what they say, and where nvcc is without cuobjdump and nvdisasm, these for
# scripts/check_cuda_code.py. Where that cannot be done it says so and ends well: those checks are then
# skipped.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=build/python/bin/python
log=build/python.log
mkdir -p build
: >"$log"
[[ -x $python ]] || python3 -m venv build/python >>"$log" 2>&1
install() { # PACKAGE...
  "$python" -m pip install -q --disable-pip-version-check --timeout 10 --retries 1 "$@" >>"$log" 2>&1 &&
    echo "Installed into build/python: $*"
}
has_arrays() { "$1" -c 'import numpy, safetensors' >/dev/null 2>&1; }
has_arrays python3 || has_arrays "$python" || install numpy safetensors ||
  echo "NumPy and safetensors cannot be installed ($log): scripts/check_hugging_face.py is skipped"
reads_messages() { "$1" -c 'import google.protobuf' >/dev/null 2>&1; }
reads_messages python3 || reads_messages "$python" || install protobuf ||
  echo "protobuf cannot be installed ($log): tests/cli/chakra_test.py is skipped"
tools=(clang-format==19.1.7 clang-tidy==23.1.4)
has_tools() {
  for tool in "${tools[@]}"; do
    [[ "$("build/python/bin/${tool%==*}" --version 2>/dev/null)" == *"version ${tool#*==}"* ]] || return 1
  done
}
has_tools || install "${tools[@]}" ||
  echo "${tools[*]} cannot be installed ($log): the stages format and tidy of .ci/run are skipped"
nvcc="$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc)"
reads_code() { [[ -x $(dirname "$(readlink -f "$nvcc")")/$1 ]] || compgen -G "build/python/lib/python3*/site-packages/nvidia/cu*/bin/$1" >/dev/null; }
readers=(nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37)
[[ -z $nvcc ]] || { reads_code cuobjdump && reads_code nvdisasm; } || install "${readers[@]}" ||
  echo "${readers[*]} cannot be installed ($log): scripts/check_cuda_code.py is skipped"
exit 0
