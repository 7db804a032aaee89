#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws the pictures of the README and of docs/slimpack_planner.md again, with the program of
# scripts/demo.sh or scripts/test.sh, or another: scripts/figures.sh [PROGRAM]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
slimpack="${1:-build/release/bin/slimpack}"
work=build/figures
mkdir -p "$work"

# README: the eight GPUs of its table, by slimpack and by the nearest rival whose answer is a plan, each
# at the degrees that `slimpack tune` finds best for it.
request="examples/data/longsft_mix.lengths --context 32768 --overlong split --batch-tokens 1M"
draw() {  # PLANNER DEGREES
  # shellcheck disable=SC2086
  "$slimpack" plan $request --planner "$1" $2 -o "$work/$1.json"
  "$slimpack" simulate "$work/$1.json" --svg "docs/$1.svg"
}
draw kk "--dp 2 --pp 2 --tp 2"
draw slimpack "--pp 8"

# LENGTH COUNT OTHER_LENGTH OTHER_COUNT: document lengths, one a line.
lengths() {
  for ((i = 0; i < $2; ++i)); do echo "$1"; done
  for ((i = 0; i < ${4:-0}; ++i)); do echo "$3"; done
}
# Phase 1: one long sample, four ranks.
lengths 49152 1 4096 20 | "$slimpack" compare - --model llama-1b --dp 4 --max-units 6 \
  --planners slimpack-unmerged,slimpack --svg docs/phase1.svg
# Phase 2: one long sample, four stages, at most 24 packs a pass.
lengths 32768 1 4096 16 | "$slimpack" compare - --pp 4 --chunks 1 --max-units 24 --weights with \
  --planners slimpack-samples,slimpack --svg docs/phase2.svg
# Device orders: list scheduling with the head on the last stage, lockstep with a sharded head.
lengths 4096 40 | "$slimpack" compare - --pp 4 --chunks 1 --max-units 24 --weights with --effort thorough \
  --planners slimpack-lasthead,slimpack --svg docs/orders.svg
# The search: fast, then normal.
for effort in fast normal; do
  lengths 32768 1 4096 16 | "$slimpack" plan - --dp 2 --pp 2 --effort "$effort" -o "$work/$effort.json"
  "$slimpack" simulate "$work/$effort.json" --svg "docs/search_$effort.svg"
done
