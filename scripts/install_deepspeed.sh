#!/usr/bin/env bash
# Installs DeepSpeed beside what is in .venv, without compiling any of its extensions (a run that
# needs one compiles it then). Does nothing where it is new enough.
#   scripts/install_deepspeed.sh
# Exit code: 0 where it can be imported after that, else 1.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-.venv/bin/python}
here() { "$PYTHON" -c 'from vf.trainer.launch import check_deepspeed; check_deepspeed()' 2>/dev/null; }

if ! here; then
    # Its setup reads torch's version: it must see the one that is installed, and no other.
    "$PYTHON" -m pip install --quiet -c constraints/cpu.txt setuptools wheel
    DS_BUILD_OPS=0 "$PYTHON" -m pip install --quiet --no-build-isolation -c constraints/cpu.txt \
        'deepspeed>=0.19.4'
fi
DS_ACCELERATOR=cpu "$PYTHON" -c 'import deepspeed' >/dev/null
here
