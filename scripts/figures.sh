#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws the pictures of the README again: one step of documents up to 16K tokens on four stages, by two
# planners. Needs the build of scripts/demo.sh or scripts/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
slimpack=build/release/bin/slimpack
work=build/figures
mkdir -p "$work"
for planner in megatron slimpack; do
  "$slimpack" plan examples/data/longsft_mix.lengths --pp 4 --chunks 1 --context 16384 --overlong split \
    --batch-tokens 160K --planner "$planner" -o "$work/$planner.json"
  "$slimpack" simulate "$work/$planner.json" --svg "docs/$planner.svg"
done
