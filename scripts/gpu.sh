#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All that needs a CUDA device, in less than ten minutes: builds the CUDA backend, runs its tests, runs
# some of them under compute-sanitizer, measures, measures PyTorch on the same shapes, writes a report.
#
#   scripts/gpu.sh [OUT]     OUT: where results go, build/gpu unless said otherwise
#
# Needs a device, the CUDA Toolkit, CMake and the header doctest/doctest.h, in the system or in
# FOLDER/include with CMAKE_PREFIX_PATH=FOLDER; Python with PyTorch for the comparison. No network.
# Stages run in turn even after one has failed; those that need what is missing are skipped and say so.
# Each has a bound of seconds and all together SLIMPACK_GPU_SECONDS (570). Ends with status 1 if a stage failed.
# SLIMPACK_GPU_STAGES: only these, e.g. "configure build tests". SLIMPACK_GPU_BUILD: the build folder.
#
# In OUT: summary.txt, log.txt, bench.json, pytorch.json, report.md.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="${1:-build/gpu}"
build="${SLIMPACK_GPU_BUILD:-build/cuda}"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
log="$out/log.txt"
summary="$out/summary.txt"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
: >"$log"
: >"$summary"
rm -f "$out"/{bench.json,pytorch.json,report.md}
last=$((SECONDS + ${SLIMPACK_GPU_SECONDS:-570}))
failed=0
skip=77

say() { printf '%s\n' "$*" | tee -a "$summary"; }

stage() {  # NAME SECONDS COMMAND...
  local name="$1" bound="$2" begin=$SECONDS left=$((last - SECONDS)) status verdict
  shift 2
  [[ $name == report ]] || left=$((left - 10))  # whatever was measured is reported
  if [[ -n ${SLIMPACK_GPU_STAGES:-} && " $SLIMPACK_GPU_STAGES " != *" $name "* ]]; then return; fi
  printf '\n== %s: %s\n' "$name" "$*" >>"$log"
  if ((left < 5)); then
    verdict="FAILED: no time left"
    failed=$((failed + 1))
  else
    timeout -k 5 "$((bound < left ? bound : left))" "$@" </dev/null >"$scratch/$name" 2>&1
    status=$?
    cat "$scratch/$name" >>"$log"
    case $status in
      0) verdict=passed ;;
      "$skip") verdict="skipped: $(tail -n 1 "$scratch/$name")" ;;
      124 | 137) verdict="FAILED: cut off after $((SECONDS - begin)) s" ;;
      *) verdict="FAILED with status $status: $(tail -n 1 "$scratch/$name" | cut -c1-200)" ;;
    esac
    [[ $verdict == FAILED* ]] && failed=$((failed + 1))
  fi
  say "$(printf '%-12s %4d s  %s' "$name" $((SECONDS - begin)) "$verdict")"
}

python=python3
sanitize() {  # TOOL
  local tool status
  tool="$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer)" || {
    echo "compute-sanitizer is not installed"
    return 77
  }
  # Tests in the suite `large` are too slow under it. SLIMPACK_GPU_SANITIZED chooses test cases.
  "$tool" --tool "$1" --error-exitcode 9 --launch-timeout 0 \
    "$build/bin/test_cuda" -tse=large ${SLIMPACK_GPU_SANITIZED:+-tc="$SLIMPACK_GPU_SANITIZED"} >"$scratch/said" 2>&1
  status=$?
  cat "$scratch/said"
  if grep -q "Device not supported" "$scratch/said"; then
    echo "compute-sanitizer does not support this device"
    return 77
  fi
  return "$status"
}
# A test program that finds no device has tested nothing.
test_all() {
  "$build/bin/test_cuda" --no-colors=true
  local status=$?
  if ((status == 77)); then return 1; fi
  return "$status"
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
export -f sanitize test_all compare write_report configure
export out build scratch python

{
  date -u +%Y-%m-%dT%H:%M:%SZ
  git log -1 --format='commit %H' 2>/dev/null
  nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv 2>&1
  nvcc --version 2>&1 | tail -n 2
} >>"$log"

stage configure 60 bash -c configure
stage build 240 cmake --build "$build" -j "$(nproc)" --target test_cuda bench_cuda cuda_attention
stage tests 120 bash -c test_all
stage example 20 "$build/bin/cuda_attention"
stage memcheck 60 bash -c 'sanitize memcheck'
stage racecheck 60 bash -c 'sanitize racecheck'
stage synccheck 40 bash -c 'sanitize synccheck'
stage bench 180 "$build/bin/bench_cuda" --json "$out/bench.json" --budget-ms 200 --seconds 150
stage pytorch 130 bash -c compare
stage report 20 bash -c write_report
say "$(printf '%-12s %4d s  %s' total $SECONDS "$failed failed")"
((failed == 0))
