#!/usr/bin/env bash
# Runs the tests that concern verifiers' v1 API and MCP with verifiers 0.4 and mcp 2, which cannot be
# installed beside the 0.3 and 1 that the other tests need: they go into a folder of their own, in
# front of what is installed.
#   scripts/check_verifiers_04.sh [VERSION]
# Exit code: that of the tests; 1 if the packages cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=${1:-0.4.0}
PYTHON=${PYTHON:-.venv/bin/python}
source scripts/own_folder.sh

# Of its dependencies, what it needs newer than what is there, or besides.
own_folder "build/verifiers-$VERSION" \
    "verifiers==$VERSION" mcp==2.0.0 mcp-types==2.0.0 httpx2 httpcore2 prime-runs prime-traces
"$PYTHON" -m pytest -p no:cacheprovider -q \
    tests/bridges/verifiers/test_from_verifiers_v1.py \
    tests/bridges/verifiers/test_from_verifiers_user.py \
    tests/bridges/verifiers/test_from_verifiers_remote.py \
    tests/bridges/verifiers/test_to_verifiers_rollouts.py \
    tests/bridges/verifiers/test_to_verifiers_loading.py \
    tests/tools/mcp
