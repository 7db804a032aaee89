#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the packages of a release and uses each as a stranger would; prints sizes and seconds.
#
#   scripts/packages.sh           archive and Debian package of build/release, unpacked where nothing else
#                                 is, their program run and a project built that finds the library; sdist and
#                                 wheel that scripts/python_tests.sh has made, checked by twine and auditwheel
#                                 and installed into a new venv
#   scripts/packages.sh --conan   the Conan recipe against this tree, in a home of its own, without a remote
#
# What is not built yet is built. A release is made of a build folder without tests, for a machine of any
# kind: cmake --preset release -B build/package -DSLIMPACK_BUILD_TESTS=OFF -DSLIMPACK_NATIVE=OFF, then
# SLIMPACK_BUILD=build/package scripts/packages.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
built="${SLIMPACK_BUILD:-build/release}"
work="$PWD/build/packages"
python="${PYTHON:-python3}"
mkdir -p "$work"

report() {  # WHAT SINCE PATH...
  printf '%s: %s s, %s bytes\n' "$1" "$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $2 }")" \
    "$(du -bc "${@:3}" | tail -n 1 | cut -f 1)"
}
tools() {  # PACKAGE... into a venv
  [[ -x $work/tools/bin/python ]] || "$python" -m venv "$work/tools"
  "$work/tools/bin/python" -m pip install -q --disable-pip-version-check --timeout 10 --retries 1 "$@"
}

if [[ ${1:-} == --conan ]]; then
  tools 'conan>=2,<3'
  export CONAN_HOME="$work/conan"
  rm -rf "$CONAN_HOME"
  since=$EPOCHREALTIME
  "$work/tools/bin/conan" profile detect >/dev/null 2>&1
  "$work/tools/bin/conan" create packaging/conan --no-remote -o '&:dependencies=system' -s compiler.cppstd=20
  report "conan create" "$since" "$CONAN_HOME/p"
  exit
fi

version="$(sed -nE 's/^#define SLIMPACK_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' include/slimpack/core/version.hpp |
  paste -sd .)"
grep -qF "\"version\": \"$version\"" packaging/vcpkg/slimpack/vcpkg.json ||
  { echo "packaging/vcpkg/slimpack/vcpkg.json does not have version $version" >&2 && exit 1; }
grep -qF "## [$version]" CHANGELOG.md || { echo "CHANGELOG.md does not have version $version" >&2 && exit 1; }

[[ -f $built/CMakeCache.txt ]] || cmake --preset release -B "$built"
cmake --build "$built" --target slimpack_program slimpack_planners slimpack_report
rm -rf "$work/made" && mkdir -p "$work/made"
generators=TGZ
if command -v dpkg-shlibdeps >/dev/null 2>&1; then generators='TGZ;DEB'; fi
since=$EPOCHREALTIME
cpack -G "$generators" --config "$built/CPackConfig.cmake" -B "$work/made" >"$work/cpack.log" 2>&1 ||
  { cat "$work/cpack.log" && exit 1; }
for file in "$work"/made/*.{tar.gz,deb}; do
  [[ ! -f $file ]] || report "made: ${file##*/}" "$since" "$file"
done

# A project that finds the library below a prefix and builds two of its programs.
use() {  # NAME PREFIX
  "$2/bin/slimpack" --version | grep "^slimpack $version (commit "
  printf '700\n40\n1500\n' | "$2/bin/slimpack" plan - --model tiny --effort fast -o "$work/$1.json"
  since=$EPOCHREALTIME
  cmake -DCONSUMER=find_package -DPREFIX="$2" -DTARGETS='plan_compiled|picture' -DSLIMPACK="$PWD" -DWORK="$work/$1-consumer" \
    -DGENERATOR=Ninja -DCOMPILER="${CXX:-c++}" -P tests/consumer/check.cmake
  report "$1: a project that uses it, built" "$since" "$work/$1-consumer/build"
}
rm -rf "$work/root" "$work/unpacked" && mkdir -p "$work/unpacked"
since=$EPOCHREALTIME
tar -xf "$work"/made/slimpack-*.tar.gz -C "$work/unpacked" --strip-components 1
report "archive unpacked" "$since" "$work/unpacked"
if [[ $generators == TGZ ]]; then
  echo "note: no dpkg-shlibdeps: no Debian package made"
  use archive "$work/unpacked"
else
  since=$EPOCHREALTIME
  dpkg -x "$work"/made/slimpack_*.deb "$work/root"
  report "Debian package unpacked" "$since" "$work/root"
  dpkg --field "$work"/made/slimpack_*.deb
  use deb "$work/root/usr"
  diff -r "$work/root/usr" "$work/unpacked"  # the archive has the same files
fi

wheels=(build/wheel/made/slimpack-"$version"-*.whl)
if [[ ! -f ${wheels[0]} ]]; then
  echo "note: no wheel of version $version: scripts/python_tests.sh makes it"
elif ! tools twine auditwheel 2>"$work/tools.log"; then
  echo "note: twine and auditwheel cannot be installed ($work/tools.log): sdist and wheel not checked"
else
  "$work/tools/bin/python" -m twine check --strict build/wheel/made/slimpack-"$version"{.tar.gz,-*.whl}
  "$work/tools/bin/python" -m auditwheel show "${wheels[0]}"
  rm -rf "$work/venv" && "$python" -m venv "$work/venv"
  since=$EPOCHREALTIME
  "$work/venv/bin/python" -m pip install -q --disable-pip-version-check "${wheels[0]}"
  report "wheel installed with NumPy" "$since" "$work/venv/lib"/python*/site-packages/{slimpack,numpy}*
  "$work/venv/bin/slimpack" --version | grep "^slimpack $version (commit [0-9a-f]"  # through the sdist
  (cd / && "$work/venv/bin/python" -c 'import slimpack; print(slimpack.plan([700, 40, 1500], model="tiny", effort="fast").iteration_s)')
fi
