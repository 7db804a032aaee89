#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a compiler and puts what ptxas says of kernels into OBJECT.ptxas, where OBJECT follows -o; all
# else that the compiler says is passed on:
#   keep_ptxas_report.sh nvcc ... -o OBJECT ...
object=
previous=
for word in "$@"; do
  [ "$previous" = -o ] && object=$word
  previous=$word
done
[ -n "$object" ] || exec "$@"
rm -f "$object.ptxas"
"$@" 2>"$object.messages"
status=$?
reports='^ptxas info|bytes stack frame|Function properties'
grep -E "$reports|^ptxas" "$object.messages" >"$object.ptxas"
grep -Ev "$reports" "$object.messages" >&2
rm -f "$object.messages"
exit "$status"
