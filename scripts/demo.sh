#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From document lengths to a plan, to its time on a cluster, to steps that are really executed, and a
# model that learns. Installs what is missing, builds in build/release, leaves what it makes in build/demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/deps.sh
if command -v ccache >/dev/null 2>&1; then
  export CMAKE_CXX_COMPILER_LAUNCHER="${CMAKE_CXX_COMPILER_LAUNCHER-ccache}"
fi
cmake --preset release
echo "Building slimpack, the mini-trainer and two examples (build/release)."
cmake --build --preset release --target slimpack_program mini_trainer execute_plan draw_traces
began=$SECONDS
out=build/demo
rm -rf "$out"
mkdir -p "$out"
bin=build/release/bin

say() { printf '\n== %s\n' "$*"; }
show() {  # runs a command and shows it as a reader would type it
  printf '$ %s\n' "${*#"$bin/"}"
  "$@"
}

say "Documents: instructions, question-answering, meetings, papers, novels"
show "$bin/slimpack" lengths examples/data/longsft_mix.lengths

request=(examples/data/longsft_mix.lengths --model llama-7b --cluster h100 --dp 2 --pp 4
  --context 32768 --overlong split --batch-tokens 1M)
planners="$("$bin/slimpack" --list-planners | awk '{print $1}')"
say "One step of about a million tokens for a 7B model on 8 GPUs, by each planner"
written=()
for planner in $planners; do
  if show "$bin/slimpack" plan "${request[@]}" --planner "$planner" -o "$out/$planner.json" 2>"$out/said"; then
    written+=("$planner")
  elif grep 'is modelled on the simulator only' "$out/said"; then  # slimpack compare and evaluate simulate it
    continue
  else
    cat "$out/said" >&2
    exit 1
  fi
done
rm "$out/said"

say "The validator, which shares no formula with planners and simulator"
for planner in "${written[@]}"; do
  show "$bin/slimpack" validate "$out/$planner.json"
done

say "The step in time: where the devices wait, what they hold"
show "$bin/slimpack" simulate "$out/slimpack.json" --trace "$out/trace.json" --svg "$out/timeline.svg"

say "A small matrix of settings, every planner at its best degrees, and the page of it"
show "$bin/slimpack" evaluate bench/evaluation/small.json --store "$out/evaluation.jsonl"
printf '$ bench/evaluation.py evaluation.jsonl >evaluation.md\n'
bench/evaluation.py "$out/evaluation.jsonl" >"$out/evaluation.md"

say "The same for a tiny model on real text, two ranks of two stages; and now it is executed"
show "$bin/slimpack" plan examples/data/text.jsonl --model tiny --dp 2 --pp 2 --context 512 --overlong split \
  --granularity 32 --planner slimpack -o "$out/tiny.json"
show "$bin/slimpack" validate "$out/tiny.json"
show "$bin/execute_plan" "$out/tiny.json"

say "A tiny model learns this repository's own text, one rank a core, for about a minute"
show "$bin/mini_trainer" --steps 300 --save "$out/model" | awk '!/^step/ || $2 % 50 == 1 || $2 == 300'

say "Documents of very different lengths on two stages: measured steps under two planners"
steps=(--data "$out/documents.lengths" --pp 2 --dp 1 --steps 4 --batch-tokens 16384 --context 8192)
awk '!/^#/ && NF { n = int($1 / 64); print (n > 1 ? n : 2) }' examples/data/longsft_mix.lengths >"$out/documents.lengths"
for planner in megatron slimpack; do
  show "$bin/mini_trainer" "${steps[@]}" --planner "$planner" --trace "$out/$planner.measured.json"
done
"$bin/draw_traces" "megatron, measured=$out/megatron.measured.json" "slimpack, measured=$out/slimpack.measured.json" \
  >"$out/measured.svg"

say "Done in $((SECONDS - began)) s after the build. To look at:"
printf '  %s\n' "$out/trace.json (open in https://ui.perfetto.dev)" "$out/timeline.svg (open in a browser)" \
  "$out/evaluation.md (planners compared over the small matrix)" "$out/measured.svg (both measured steps on one time axis)" "$out/model (opens in transformers)"
