# SPDX-License-Identifier: Apache-2.0
# For gpu.sh and gpu_train.sh: a folder for results, stages that each have a bound of seconds, a summary.
#   source scripts/gpu_stages.sh OUT [PART ...]
# Stages belong to the part named last by `part`; only PARTs of those listed in `all_parts` run, or all of
# them. A part has SLIMPACK_GPU_SECONDS (570), which its stages' bounds are not to exceed together.
# Sets out, build, scratch, log, summary; files named in `results` are removed where all parts run, or where
# the first does. Call `finish` at the end.
out="${1:-build/gpu}"
parts=("${@:2}")
((${#parts[@]})) || parts=("${all_parts[@]}")
for chosen in "${parts[@]}"; do
  [[ " ${all_parts[*]} " == *" $chosen "* ]] || {
    echo "$(basename "$0"): a part must be one of ${all_parts[*]}, got $chosen" >&2
    exit 2
  }
done
build="${SLIMPACK_GPU_BUILD:-build/cuda}"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
log="$out/log.txt"
summary="$out/summary.txt"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
if [[ " ${parts[*]} " == *" ${all_parts[0]} "* ]]; then : >"$log" && : >"$summary"; fi
[[ " ${parts[*]} " != *" ${all_parts[0]} "* ]] || for result in $results; do rm -f "$out/$result"; done
python=python3
export out build scratch python
failed=0
skip=77

say() { printf '%s\n' "$*" | tee -a "$summary"; }

part() {  # NAME
  runs=0
  [[ " ${parts[*]} " != *" $1 "* ]] || runs=1
  last=$((SECONDS + ${SLIMPACK_GPU_SECONDS:-570}))
}

stage() {  # NAME SECONDS COMMAND...
  ((runs)) || return 0
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

describe_machine() {
  date -u +%Y-%m-%dT%H:%M:%SZ
  git log -1 --format='commit %H' 2>/dev/null
  nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv 2>&1
  nvcc --version 2>&1 | tail -n 2
}
finish() {
  say "$(printf '%-12s %4d s  %s' total $SECONDS "$failed failed")"
  ((failed == 0))
}
