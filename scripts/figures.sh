#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws the pictures of the README and of docs/slimpack_planner.md again, with the program of
# scripts/demo.sh or scripts/test.sh, or another: scripts/figures.sh [PROGRAM]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
slimpack="${1:-build/release/bin/slimpack}"
work=build/figures
mkdir -p "$work"

# README: one step of documents up to 16K tokens on four stages, by two planners.
for planner in megatron slimpack; do
  "$slimpack" plan examples/data/longsft_mix.lengths --pp 4 --chunks 1 --context 16384 --overlong split \
    --batch-tokens 160K --planner "$planner" -o "$work/$planner.json"
  "$slimpack" simulate "$work/$planner.json" --svg "docs/$planner.svg"
done

# LENGTH COUNT OTHER_LENGTH OTHER_COUNT: document lengths, one a line.
lengths() {
  for ((i = 0; i < $2; ++i)); do echo "$1"; done
  for ((i = 0; i < ${4:-0}; ++i)); do echo "$3"; done
}
# Phase 1: one long sample, four ranks.
lengths 49152 1 4096 20 | "$slimpack" compare - --model llama-1b --dp 4 --max-units 6 \
  --planners slimpack-unmerged,slimpack --svg docs/phase1.svg
# Phase 2: one long sample, four stages, at most 24 packs a pass.
lengths 32768 1 4096 16 | "$slimpack" compare - --pp 4 --chunks 1 --max-units 24 \
  --planners slimpack-samples,slimpack --svg docs/phase2.svg
# Device orders: list scheduling with the head on the last stage, lockstep with a sharded head.
lengths 4096 40 | "$slimpack" compare - --pp 4 --chunks 1 --max-units 24 \
  --planners slimpack-lasthead,slimpack --svg docs/orders.svg
# The search: 4 candidates, then 128.
for effort in fast normal; do
  lengths 32768 1 4096 16 | "$slimpack" plan - --dp 2 --pp 2 --effort "$effort" -o "$work/$effort.json"
  "$slimpack" simulate "$work/$effort.json" --svg "docs/search_$effort.svg"
done
