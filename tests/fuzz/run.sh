#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs each fuzz target of a build for so many seconds and prints its executions.
#
#   tests/fuzz/run.sh BUILD SECONDS [TARGET...]
#
# BUILD is a build folder configured with clang++ and -DSLIMPACK_FUZZ=ON. What a target finds goes to
# BUILD/fuzz/TARGET; an input that breaks it lies there as crash-*. Ends with status 1 if one did.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if (($# < 2)); then
  echo "usage: tests/fuzz/run.sh BUILD SECONDS [TARGET...]" >&2
  exit 2
fi
build="$(cd "$1" && pwd)" || exit 2
seconds="$2"
shift 2
targets=("$@")
if ((${#targets[@]} == 0)); then
  for folder in "$here"/corpus/*/; do targets+=("$(basename "$folder")"); done
fi
failed=0
total=0
for target in "${targets[@]}"; do
  program="$build/bin/fuzz_$target"
  if [[ ! -x $program ]]; then
    echo "$program is missing: build it first" >&2
    exit 2
  fi
  work="$build/fuzz/$target"
  mkdir -p "$work/found"
  dictionary=()
  [[ -f $here/$target.dict ]] && dictionary=("-dict=$here/$target.dict")
  if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$work/" "${dictionary[@]}" "$work/found" "$here/corpus/$target" >"$work/log" 2>&1; then
    verdict=ok
  else
    verdict="BROKEN, see $work/log"
    failed=1
  fi
  runs="$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")"
  total=$((total + ${runs:-0}))
  printf '%-14s %12s executions  %s\n' "$target" "${runs:-0}" "$verdict"
done
printf '%-14s %12s executions\n' total "$total"
exit "$failed"
