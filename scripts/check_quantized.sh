#!/usr/bin/env bash
# Runs the tests of 8-bit AdamW and of 4-bit weights with bitsandbytes in a folder of its own: beside
# it, every process that imports PEFT would load it, and print what it has to say.
#   scripts/check_quantized.sh [VERSION]
# Exit code: that of the tests; 1 if the package cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=${1:-0.50.2}
PYTHON=${PYTHON:-.venv/bin/python}
source scripts/own_folder.sh

own_folder "build/bitsandbytes-$VERSION" "bitsandbytes==$VERSION"
"$PYTHON" -c 'import bitsandbytes' >/dev/null # without it, its tests would be skipped
"$PYTHON" -m pytest -p no:cacheprovider -q \
    tests/trainer/learning/model/test_quantized.py tests/trainer/learning/sharding/test_master_weights.py \
    tests/trainer/sft/test_training.py
