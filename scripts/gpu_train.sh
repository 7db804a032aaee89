#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The trainer on a CUDA device, in less than ten minutes a part: `check` builds it and compares gradients with
# the reference, of the smallest preset and of a model whose attention runs on the fastest path; `learn` its
# loss with the CPU's, of both; `rate` gives one rank's share of the card's rate, `ranks` several ranks on one
# card under two planners. All but the first need what `check` has built.
#
#   scripts/gpu_train.sh [OUT [check|learn|rate|ranks ...]]     OUT: where results go, build/gpu_train; all parts
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
all_parts=(check learn rate ranks)
source scripts/gpu_stages.sh "${1:-build/gpu_train}" "${@:2}"
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
# tiny has head dimension 32, which only the plain path has.
wide=bench/cuda/head_dim_128.json
check() {
  local degrees checked
  for checked in "tiny 4096" "$wide 2048"; do
    for degrees in "--pp 1 --dp 1" "--pp 2 --dp 1" "--pp 2 --dp 2" "--pp 1 --dp 1 --tp 2"; do
      echo "model ${checked% *}, $degrees"
      # shellcheck disable=SC2086
      "$bin/$program" --backend cuda --model "${checked% *}" $degrees --check \
        --batch-tokens "${checked#* }" || return
    done
  done >"$out/check.txt"
}
curves() {  # MODEL STEPS
  local one=(--model "$1" --dp 1 --pp 1 --steps "$2" --seed 1)
  "$bin/mini_trainer" "${one[@]}" --log "$scratch/cpu.jsonl" &&
    "$bin/$program" --backend cuda "${one[@]}" --log "$scratch/cuda.jsonl" &&
    "$python" bench/cuda/curves.py "$scratch/cpu.jsonl" "$scratch/cuda.jsonl" >>"$out/curves.md"
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
export wide

describe_machine >>"$log"
part check
stage configure 60 bash -c configure
stage build 330 cmake --build "$build" -j "$(nproc)" --target mini_trainer slimpack_program
stage check 170 bash -c check
part learn
stage curves 280 bash -c 'curves tiny "$steps"'
stage curves128 280 bash -c 'curves "$wide" "$((steps < 20 ? steps : 20))"'
part rate
stage rate 200 bash -c rate
part ranks
stage pp4 240 bash -c 'ranks 4x1'
stage pp2dp2 240 bash -c 'ranks 2x2'
finish
