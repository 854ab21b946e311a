#!/usr/bin/env bash
# Runs the tests that touch transformers with the lowest version that pyproject.toml allows, in a
# folder of its own in front of what is installed. The other tests run with the version that
# constraints/cpu.txt pins, the highest that is known to work.
#   scripts/check_lowest.sh [VERSION]
# Exit code: that of the tests; 1 if the packages cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

LOWEST=$(sed -n 's/^ *"transformers>=\([0-9.]*\).*/\1/p' pyproject.toml)
VERSION=${1:-$LOWEST}
PYTHON=${PYTHON:-.venv/bin/python}
source scripts/own_folder.sh

own_folder "build/transformers-$VERSION" "transformers==$VERSION"
"$PYTHON" - "$VERSION" <<'CHECK' # the version is "5.19" there, and "5.19.0" here
import sys, transformers
assert f"{transformers.__version__}.".startswith(f"{sys.argv[1]}."), transformers.__version__
CHECK
tests=(
    # The embedded engine's passes through its models and PEFT's, with the engine's attention.
    tests/inference/test_engine_lifecycle.py
    tests/inference/test_engine_sampling.py
    tests/inference/test_prefix_sharing.py
    # Chat templates as transformers renders them, with the keys that it adds to messages.
    tests/inference/test_template_probe.py
    # Models as it reads and writes them, with configs that it validates.
    tests/inference/test_model_files.py
    tests/trainer/saving/test_export.py
    # The attention that it calls, in every family that is trained packed or padded.
    tests/trainer/learning/model/test_self_test.py
    tests/trainer/learning/test_packed_gradients.py
    tests/trainer/learning/attention/test_tree_attention.py
    tests/trainer/learning/model/test_forward.py
    # Names of tensors in composites, and experts that PEFT adapts.
    tests/inference/test_composite.py
    tests/trainer/learning/model/test_lora_targets.py
    # Its Trainer, under TRL's.
    tests/trainer/sft/test_training.py
    # An engine on the trained module, which changes under it.
    tests/trainer/test_engines.py
)
OMP_NUM_THREADS=1 "$PYTHON" -m pytest -p no:cacheprovider -n auto --dist worksteal -m "not slow" \
    "${tests[@]}"
