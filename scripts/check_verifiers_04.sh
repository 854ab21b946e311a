#!/usr/bin/env bash
# Runs the tests of v1 tasksets with verifiers 0.4, which cannot be installed beside the 0.3 that the
# other tests need: it goes into a folder of its own, in front of what is installed.
#   scripts/check_verifiers_04.sh [VERSION]
# Exit code: that of the tests; 1 if the packages cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=${1:-0.4.0}
PYTHON=${PYTHON:-.venv/bin/python}
FOLDER=build/verifiers-$VERSION

if [ ! -e "$FOLDER/ready" ]; then
    rm -rf "$FOLDER"
    # Without dependencies, but for what it needs newer than what is there, or besides.
    "$PYTHON" -m pip install --quiet --no-deps --target "$FOLDER" \
        "verifiers==$VERSION" mcp==2.0.0 mcp-types==2.0.0 httpx2 httpcore2 prime-runs
    touch "$FOLDER/ready"
fi
PYTHONPATH="$PWD:$PWD/$FOLDER" "$PYTHON" -m pytest -p no:cacheprovider -q \
    tests/environments/neighbours/test_from_verifiers_v1.py
