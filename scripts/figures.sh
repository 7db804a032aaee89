#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws the pictures of the README and of docs/slimpack_planner.md again, and makes the gallery of report
# pages, build/gallery/index.html, with the program of scripts/demo.sh or scripts/test.sh, or another:
# scripts/figures.sh [PROGRAM]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
slimpack="${1:-build/release/bin/slimpack}"
work=build/figures
mkdir -p "$work"

# README: the eight GPUs of its table, by slimpack and by the nearest rival whose answer is a plan, each
# at the degrees that `slimpack tune` finds best for it; for slimpack, of those with a pipeline.
request="examples/data/longsft_mix.lengths --context 32768 --overlong split --batch-tokens 1M"
draw() {  # PLANNER DEGREES
  # shellcheck disable=SC2086
  "$slimpack" plan $request --planner "$1" $2 -o "$work/$1.json"
  "$slimpack" simulate "$work/$1.json" --svg "docs/$1.svg"
}
draw kk "--dp 2 --pp 2 --tp 2"
draw slimpack "--dp 2 --pp 4"

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

# The gallery: pages that open without a network, and one that lists them with the commands that made them.
gallery=build/gallery
rm -rf "$gallery" && mkdir -p "$gallery"
exec 3>"$gallery/index.html"
cat >&3 <<'HTML'
<!doctype html>
<html lang="en"><meta charset="utf-8"><title>slimpack: report pages</title>
<style>body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}pre{background:#f3f4f6;padding:.6em;white-space:pre-wrap}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}a{color:#4a94e8}pre{background:#161b22}}</style>
<h1>Report pages</h1>
<p>Each page is one file without a network: timelines to zoom into, the cause of each gap, memory and the critical path.</p>
HTML
page() {  # FILE TITLE SENTENCE ARGUMENT...: slimpack ARGUMENT... --html
  local file="$1" title="$2" sentence="$3"
  shift 3
  "$slimpack" "$@" --html "$gallery/$file" >/dev/null
  printf '<h2><a href="%s">%s</a></h2>\n<p>%s</p>\n<pre>slimpack' "$file" "$title" "$sentence" >&3
  local argument
  for argument in "$@" --html "$file"; do printf ' %s' "$(sed 's/&/\&amp;/g; s/</\&lt;/g' <<<"$argument")" >&3; done
  printf '</pre>\n' >&3
}
# shellcheck disable=SC2086
page eight_gpus.html "Eight GPUs, every planner" \
  "A million tokens of llama-7b at context 32K, all planners at dp 2 x pp 4, forced: who waits where." \
  compare $request --dp 2 --pp 4
page slimpack.html "The same step at the best degrees of slimpack that have a pipeline" \
  "Two ranks of four stages; the gradients of weights fill what would be waits." simulate "$work/slimpack.json"
page kk.html "The nearest rival whose answer is a plan, at its best degrees" \
  "Packs of the Karmarkar-Karp method, two tensor-parallel ranks." simulate "$work/kk.json"
lengths 262144 1 4096 100 >"$work/one_long.lengths"
page one_long_sample.html "One sample of 256K tokens among a hundred of 4K" \
  "Sixteen GPUs: the long sample is cut into slices and shared by a context-parallel group; without groups, without slices." \
  compare "$work/one_long.lengths" --context 262144 --dp 4 --pp 4 --planners slimpack,slimpack-unmerged,slimpack-samples,megatron-cp
# shellcheck disable=SC2086
page little_memory.html "Little memory" \
  "The same million tokens on eight a100 with 64 GB: what is recomputed decides, and who needs too much." \
  compare examples/data/longsft_mix.lengths --context 131072 --overlong split --batch-tokens 1M --cluster a100 --memory 64G --dp 1 --pp 8 \
  --planners slimpack,slimpipe-order,megatron-interleaved
page tensor_parallel.html "Sixty-four GPUs, llama-70b" \
  "Four ranks of eight stages of two tensor-parallel devices at context 128K." \
  compare examples/data/longsft_mix.lengths --context 131072 --overlong split --batch-tokens 4M --model llama-70b --dp 4 --pp 8 --tp 2 \
  --planners slimpack,slimpipe-order,megatron-cp
exec 3>&-
