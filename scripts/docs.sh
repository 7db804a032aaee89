#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the reference of all public headers in build/docs/html, by doxygen. Ends with status 1 where
# doxygen warns, or where more declarations than today have no comment: the limits below only fall.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
types_and_functions=12  # types, and what is declared in a namespace
members=833             # of types, whose own comment may say enough

command -v doxygen >/dev/null || {
  echo "doxygen is not installed (Debian: apt-get install doxygen)" >&2
  exit 1
}
log=build/docs/warnings.log
mkdir -p build/docs
doxygen docs/Doxyfile
status=0
if grep -v ' is not documented\.$' "$log"; then
  echo "doxygen warns" >&2
  status=1
fi
# check WHAT LIMIT COUNT
check() {
  echo "$1 without a comment: $3, at most $2"
  (($3 <= $2)) || status=1
}
outer=' Compound | of (namespace|file) '
check "types and functions" "$types_and_functions" "$(grep -cE "$outer.*is not documented" "$log" || true)"
# Friends are comparisons of all members.
check members "$members" "$(grep ' is not documented' "$log" | grep -cvE "$outer|[(]friend[)]" || true)"
if ((status != 0)); then
  echo "what has no comment stands in $log" >&2
else
  echo "build/docs/html/index.html"
fi
exit "$status"
