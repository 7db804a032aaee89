#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the reference of all public headers in build/docs/html, by doxygen. Ends with status 1 where
# doxygen warns.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v doxygen >/dev/null || {
  echo "doxygen is not installed (Debian: apt-get install doxygen)" >&2
  exit 1
}
log=build/docs/warnings.log
mkdir -p build/docs
doxygen docs/Doxyfile
if [[ -s $log ]]; then
  cat "$log"
  echo "doxygen warns $(wc -l <"$log") times" >&2
  exit 1
fi
echo "build/docs/html/index.html"
