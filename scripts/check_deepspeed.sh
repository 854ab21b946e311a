#!/usr/bin/env bash
# Runs the tests of DeepSpeed's ZeRO with DeepSpeed in a folder of its own, without its compiled
# extensions: beside it, every process that imports Accelerate would print what DeepSpeed has to say.
#   scripts/check_deepspeed.sh [VERSION]
# Exit code: that of the tests; 1 if the packages cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=${1:-0.19.8}
PYTHON=${PYTHON:-.venv/bin/python}
FOLDER=build/deepspeed-$VERSION
source scripts/own_folder.sh

# Its setup reads torch's version: it must see the one that is installed, and no other.
[ -e "$FOLDER/ready" ] || "$PYTHON" -m pip install --quiet setuptools wheel
export DS_BUILD_OPS=0 DS_ACCELERATOR=cpu
own_folder "$FOLDER" --no-build-isolation "deepspeed==$VERSION" hjson einops py-cpuinfo
"$PYTHON" -c 'import deepspeed' >/dev/null # without it, its tests would be skipped
"$PYTHON" -m pytest -p no:cacheprovider -q -k zero \
    tests/trainer/learning/sharding/test_ranks.py tests/trainer/learning/sharding/test_zero_settings.py
