#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what building slimpack needs and this machine lacks.
#
#   scripts/deps.sh         compiler, CMake, Ninja, and the libraries of programs and tests
#   scripts/deps.sh --ci    besides, what .ci/run needs: clang 14, a compiler cache, a solver, doxygen and a browser for
#                           tests; scripts/python_packages.sh installs clang's tools
#   scripts/deps.sh --python    what `pip install .` needs and no more: compiler, headers that it compiles, Python's and venv
#
# Looks for commands and headers first, so it does nothing where all is there, whatever the
# distribution. Otherwise it asks apt-get, as root or by a sudo that needs no password. Where neither
# is possible it prints what to install and ends with status 1.
set -euo pipefail

if (($# > 1)) || [[ ! "${1:-}" =~ ^(|--ci|--python)$ ]]; then
  echo "deps.sh: takes --ci, --python or nothing, got $*" >&2
  exit 2
fi

missing=()
lacks() { [[ " ${missing[*]} " == *" $1 "* ]] || missing+=("$1"); }
need_command() {  # COMMAND PACKAGE
  command -v "$1" >/dev/null 2>&1 || lacks "$2"
}
need_header() {  # HEADER PACKAGE [DIRECTORY]
  printf '#include <%s>\n' "$1" | "${CXX:-c++}" -x c++ -std=c++20 ${3:+-I"$3"} -E - >/dev/null 2>&1 ||
    lacks "$2"
}

find_missing() {
  missing=()
  need_command "${CXX:-c++}" g++
  python3 -c "import json, unittest" >/dev/null 2>&1 || lacks python3
  need_header nlohmann/json.hpp nlohmann-json3-dev
  need_header CLI/CLI.hpp libcli11-dev
  need_header fmt/core.h libfmt-dev
  need_header Eigen/Core libeigen3-dev /usr/include/eigen3
  if [[ "${1:-}" == --python ]]; then
    python3 -c "import ensurepip, venv" >/dev/null 2>&1 || lacks python3-venv
    python3 -c "import os, sysconfig; os.stat(sysconfig.get_path('include') + '/Python.h')" >/dev/null 2>&1 ||
      lacks python3-dev
    return
  fi
  need_command cmake cmake
  need_command ninja ninja-build
  need_header doctest/doctest.h doctest-dev
  need_header benchmark/benchmark.h libbenchmark-dev
  need_command mpicxx libopenmpi-dev
  need_command mpirun openmpi-bin
  if [[ "${1:-}" == --ci ]]; then
    need_command g++ g++
    need_command ccache ccache
    need_command clang++-14 clang-14
    [[ -e /usr/lib/python3/dist-packages/clang/cindex.py ]] || lacks python3-clang-14
    need_command glpsol glpk-utils
    need_command doxygen doxygen
    # Elsewhere a browser has other names, or is no package; its tests are skipped where there is none.
    if [[ $'\n'"$(cat /etc/os-release 2>/dev/null)"$'\n' == *$'\nID=debian\n'* ]]; then
      need_command chromium chromium
    fi
    compgen -G '/usr/lib/llvm-14/lib/clang/14*/lib/linux/libclang_rt.fuzzer-*.a' >/dev/null ||
      lacks libclang-rt-14-dev
  fi
}

find_missing "${1:-}"
if ((${#missing[@]} > 0)); then
  as_root=()
  if ((EUID != 0)) && command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
  fi
  if ! command -v apt-get >/dev/null 2>&1 || { ((EUID != 0)) && ((${#as_root[@]} == 0)); }; then
    {
      echo "slimpack cannot be built yet. Missing, by the names of Debian 12: ${missing[*]}"
      echo "Install them and run this again; on Debian and its kin:"
      echo "  sudo apt-get install -y --no-install-recommends ${missing[*]}"
    } >&2
    exit 1
  fi
  echo "Installing with apt-get: ${missing[*]}"
  "${as_root[@]}" apt-get -o Acquire::Retries=3 -qq update </dev/null
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 -qq install -y \
    --no-install-recommends "${missing[@]}" </dev/null >/dev/null
  find_missing "${1:-}"
  if ((${#missing[@]} > 0)); then
    echo "apt-get installed the packages, but these still cannot be found: ${missing[*]}" >&2
    exit 1
  fi
fi

if [[ "${1:-}" == --python ]]; then exit 0; fi  # pip brings a CMake
version="$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')"
if [[ "$(printf '%s\n' 3.24 "$version" | sort -V | head -n 1)" != 3.24 ]]; then
  echo "slimpack needs CMake 3.24 or newer, found $version." >&2
  exit 1
fi
