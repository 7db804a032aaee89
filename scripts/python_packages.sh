#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs NumPy and safetensors from PyPI into build/python, for scripts/check_hugging_face.py. Where
# that cannot be done it says so and ends well: the check is then skipped.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
has() { "$1" -c 'import numpy, safetensors' >/dev/null 2>&1; }
if has python3 || has build/python/bin/python; then exit 0; fi
mkdir -p build
if python3 -m venv build/python >build/python.log 2>&1 &&
  build/python/bin/python -m pip install -q --timeout 10 --retries 1 numpy safetensors >>build/python.log 2>&1; then
  echo "Installed NumPy and safetensors into build/python"
else
  echo "NumPy and safetensors cannot be installed (build/python.log): scripts/check_hugging_face.py is skipped"
fi
exit 0
