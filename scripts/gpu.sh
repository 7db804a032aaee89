#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All that needs a CUDA device, in two parts of less than ten minutes each: `check` builds the CUDA backend,
# runs its tests and some of them under compute-sanitizer; `measure`, where that has been built, measures,
# measures PyTorch on the same shapes, writes a report, and runs the sanitizer's other tools.
#
#   scripts/gpu.sh [OUT [check|measure ...]]     OUT: where results go, build/gpu unless said otherwise; both parts
#
# Needs a device, the CUDA Toolkit, CMake and the header doctest/doctest.h, in the system or in
# FOLDER/include with CMAKE_PREFIX_PATH=FOLDER; Python with PyTorch for the comparison. No network.
# Stages run in turn even after one has failed; those that need what is missing are skipped and say so.
# Each has a bound of seconds and a part SLIMPACK_GPU_SECONDS (570). Ends with status 1 if a stage failed.
# SLIMPACK_GPU_STAGES: only these, e.g. "configure build tests"; without the first two what lies in the build
# folder is used, of another machine too. SLIMPACK_GPU_BUILD: the build folder.
#
# In OUT: summary.txt, log.txt, bench.json, pytorch.json, report.md.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
results="bench.json pytorch.json report.md"
all_parts=(check measure)
source scripts/gpu_stages.sh "${1:-build/gpu}" "${@:2}"

sanitize() {  # TOOL
  local tool status
  tool="$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer)" || {
    echo "compute-sanitizer is not installed"
    return 77
  }
  # Tests in the suite `large` are too slow under it. SLIMPACK_GPU_SANITIZED chooses test cases.
  "$tool" --tool "$1" --error-exitcode 9 --launch-timeout 0 \
    "$build/bin/test_cuda" -tse="large*" ${SLIMPACK_GPU_SANITIZED:+-tc="$SLIMPACK_GPU_SANITIZED"} >"$scratch/said" 2>&1
  status=$?
  cat "$scratch/said"
  if grep -q "Device not supported" "$scratch/said"; then
    echo "compute-sanitizer does not support this device"
    return 77
  fi
  return "$status"
}
# Fails where there is no device. Where the device lacks a path, its cases are skipped by name.
test_all() {
  SLIMPACK_MUST_RUN=device "$build/bin/test_cuda" --no-colors=true
}
one_rank_of_nccl() {
  if ! [[ -x $build/bin/test_nccl ]]; then
    cmake --build "$build" --target help | grep -qw test_nccl || {
      echo "NCCL was not found"
      return 77
    }
    cmake --build "$build" --target test_nccl || return
  fi
  "$build/bin/test_nccl" --no-colors=true
}
compare() {
  "$python" -c 'import torch' 2>/dev/null || {
    echo "PyTorch is not installed"
    return 77
  }
  "$build/bin/bench_cuda" --list >"$scratch/cases.json" &&
    "$python" bench/cuda/pytorch.py "$scratch/cases.json" -o "$out/pytorch.json" --budget-ms 200 --seconds 110
}
write_report() {
  local files=("$out/bench.json")
  [[ -f $out/pytorch.json ]] && files+=("$out/pytorch.json")
  "$python" bench/cuda/report.py "${files[@]}" -o "$out/report.md" --command scripts/gpu.sh \
    --command "bench_cuda --json bench.json --budget-ms 200" --command "bench/cuda/pytorch.py cases.json -o pytorch.json --budget-ms 200"
}
configure() {
  local generator=()
  command -v ninja >/dev/null 2>&1 || generator=(-G "Unix Makefiles")
  cmake --preset cuda -B "$build" "${generator[@]}" -DSLIMPACK_CUDA_ALONE=ON -DCMAKE_UNITY_BUILD=OFF
}
export -f sanitize test_all one_rank_of_nccl compare write_report configure

describe_machine >>"$log"

part check
stage configure 60 bash -c configure
stage build 240 cmake --build "$build" -j "$(nproc)" --target test_cuda bench_cuda cuda_attention
stage tests 120 bash -c test_all
stage nccl 60 bash -c one_rank_of_nccl
stage example 20 "$build/bin/cuda_attention"
stage memcheck 60 bash -c 'sanitize memcheck'
part measure
stage bench 180 "$build/bin/bench_cuda" --json "$out/bench.json" --budget-ms 200 --seconds 150
stage pytorch 130 bash -c compare
stage report 20 bash -c write_report
stage racecheck 120 bash -c 'sanitize racecheck'
stage synccheck 80 bash -c 'sanitize synccheck'
finish
