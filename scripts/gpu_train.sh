#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The trainer on a CUDA device, in less than ten minutes a part: gradients beside the reference, loss
# beside the CPU's, one rank's share of the card's rate, several ranks on one card under two planners.
#
#   scripts/gpu_train.sh [OUT] [learn|rate|ranks ...]     OUT: where results go, build/gpu_train; all parts
#
# Needs a device, the CUDA Toolkit, CMake, and the packages of the whole tree (docs/cuda.md), in the
# system or in FOLDER with CMAKE_PREFIX_PATH=FOLDER. No network. Bounds and settings as scripts/gpu.sh;
# SLIMPACK_GPU_PROGRAM: another program than mini_trainer, with SLIMPACK_GPU_MODEL, SLIMPACK_GPU_TOKENS
# and SLIMPACK_GPU_STEPS, to try this script where there is no device.
#
# In OUT: summary.txt, log.txt, check.txt, curves.md, rate.jsonl, ranks.md.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
results="check.txt curves.md rate.jsonl ranks.md"
source scripts/gpu_stages.sh "${1:-build/gpu_train}"
parts=("${@:2}")
((${#parts[@]})) || parts=(learn rate ranks)
for part in "${parts[@]}"; do
  [[ $part =~ ^(learn|rate|ranks)$ ]] || {
    echo "gpu_train.sh: a part must be learn, rate or ranks, got $part" >&2
    exit 2
  }
done
program="${SLIMPACK_GPU_PROGRAM:-mini_trainer}"
model="${SLIMPACK_GPU_MODEL:-llama-1b}"
tokens="${SLIMPACK_GPU_TOKENS:-262144}"
context="${SLIMPACK_GPU_CONTEXT:-32768}"
steps="${SLIMPACK_GPU_STEPS:-50}"
lengths=examples/data/longsft_mix.lengths
bin="$build/bin"
export program model tokens context steps lengths bin

configure() {
  local generator=()
  command -v ninja >/dev/null 2>&1 || generator=(-G "Unix Makefiles")
  cmake --preset cuda -B "$build" "${generator[@]}" -DSLIMPACK_CUDA_ALONE=OFF -DSLIMPACK_BUILD_APPS=ON -DSLIMPACK_BUILD_TESTS=OFF -DSLIMPACK_BUILD_BENCH=OFF -DSLIMPACK_BUILD_EXAMPLES=OFF
}
check() {
  local ranks
  for ranks in 1x1 2x1 2x2; do
    echo "pp x dp $ranks"
    "$bin/$program" --backend cuda --pp "${ranks%x*}" --dp "${ranks#*x}" --check --batch-tokens 4096 || return
  done >"$out/check.txt"
}
curves() {
  "$bin/mini_trainer" --dp 1 --pp 1 --steps "$steps" --seed 1 --log "$scratch/cpu.jsonl" &&
    "$bin/$program" --backend cuda --dp 1 --pp 1 --steps "$steps" --seed 1 --log "$scratch/cuda.jsonl" &&
    "$python" bench/cuda/curves.py "$scratch/cpu.jsonl" "$scratch/cuda.jsonl" >"$out/curves.md"
}
rate() {
  "$bin/$program" --backend cuda --dp 1 --pp 1 --model "$model" --data "$lengths" --overlong split --context "$context" \
    --batch-tokens "$tokens" --steps "$((steps < 8 ? steps : 8))" --log "$out/rate.jsonl"
}
ranks() {
  bench/trainer.py "$bin" calibration --program "$program" --more "--backend cuda" --degrees "$1" --model "$model" \
    --lengths "$lengths" --context "$context" --batch-tokens "$tokens" --steps "$((steps < 6 ? steps : 6))" --rounds 1 >>"$out/ranks.md"
}
export -f configure check curves rate ranks

describe_machine >>"$log"
stage configure 60 bash -c configure
stage build 420 cmake --build "$build" -j "$(nproc)" --target mini_trainer slimpack_program
for part in "${parts[@]}"; do
  case $part in
    learn)
      stage check 120 bash -c check
      stage curves 240 bash -c curves
      ;;
    rate) stage rate 200 bash -c rate ;;
    ranks)
      stage pp4 240 bash -c 'ranks 4x1'
      stage pp2dp2 240 bash -c 'ranks 2x2'
      ;;
  esac
done
finish
