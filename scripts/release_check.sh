#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What has to hold before a release and takes too long for each change, besides .ci/run: about an hour on
# two cores. Ends with status 1 if a stage fails; logs lie in build/release_check/.
#
#   scripts/release_check.sh                 every stage
#   scripts/release_check.sh NAME...         only these, e.g. scripts/release_check.sh planners_asan
#   SLIMPACK_FUZZ_SECONDS (60)               how long each reader is fuzzed
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
logs="$PWD/build/release_check"
mkdir -p "$logs"
jobs="$(nproc)"
export CTEST_OUTPUT_ON_FAILURE=1

# Laws at the optimisation of a release and on all their draws, where tests of each change are compiled
# to be built soon and take a third.
stage_optimised() {
  cmake --preset release -B "$logs/optimised" -DSLIMPACK_WERROR=ON -DSLIMPACK_TESTS_OPTIMISED=ON \
    -DSLIMPACK_CUDA_EMULATED=ON &&
    cmake --build "$logs/optimised" -j "$jobs" && ctest --test-dir "$logs/optimised" -j "$jobs" --no-tests=error
}

# The laws of planners, the exhaustive search, the programs of apps/ and the transport over MPI under sanitizers.
stage_planners_asan() {
  cmake --preset asan -B "$logs/asan" -DCMAKE_CXX_COMPILER=clang++-14 -DSLIMPACK_BUILD_BENCH=OFF \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 "-DSLIMPACK_TEST_FOLDERS=cost;schedule;planners;bound" &&
    cmake --build "$logs/asan" -j "$jobs" &&
    ctest --test-dir "$logs/asan" -j "$jobs" --no-tests=error -R '^(cost|schedule|planners|bound|cli|trainer|examples|mpi)'
}

# Plans by headers alone, with all that each compiler may do to floating point and with nothing of it.
stage_determinism() {
  local compiler level program programs=()
  for compiler in g++ clang++-14; do
    for level in "-O0 -ffp-contract=off" "-O3 -march=native -ffp-contract=fast"; do
      program="$logs/plans_$compiler${level%% *}"
      # shellcheck disable=SC2086
      "$compiler" -std=c++20 $level -Iinclude -Itests tests/determinism/plans.cpp -pthread -o "$program" || return
      programs+=("$program")
    done
  done
  cmake -DFIRST="${programs[0]}" "-DOTHERS=$(IFS=';' && echo "${programs[*]:1}")" -DFOLDER=examples/data -DDRAWS=16 \
    -P tests/determinism/compare.cmake
}

# Each reader on input that nobody has thought of.
stage_fuzz() {
  cmake --preset fuzz -B "$logs/fuzz" && cmake --build "$logs/fuzz" -j "$jobs" &&
    tests/fuzz/run.sh "$logs/fuzz" "${SLIMPACK_FUZZ_SECONDS:-60}"
}

stages=(optimised planners_asan determinism fuzz)
(($# > 0)) && stages=("$@")
failed=0
for stage in "${stages[@]}"; do
  if ! declare -F "stage_$stage" >/dev/null; then
    echo "no such stage: $stage" >&2
    exit 2
  fi
  begin=$SECONDS
  verdict=passed
  if ! "stage_$stage" </dev/null >"$logs/$stage.log" 2>&1; then
    verdict=FAILED
    failed=1
    cat "$logs/$stage.log"
  fi
  printf '%-16s %-7s %5d s\n' "$stage" "$verdict" $((SECONDS - begin))
done
exit "$failed"
