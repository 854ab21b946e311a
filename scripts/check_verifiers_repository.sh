#!/usr/bin/env bash
# Loads every environment of verifiers' repository, and compares which of them load with the list
# that docs/verifiers.md counts. Two of them need the network when they are loaded.
#   scripts/check_verifiers_repository.sh
# Exit code: that of the tests; another if the repository cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-.venv/bin/python}
LIST=tests/bridges/verifiers/their_repository.toml
COMMIT=$(sed -n 's/^commit = "\(.*\)"$/\1/p' "$LIST")
FOLDER=build/verifiers-repository
[ -d "$FOLDER" ] || git clone -q "${URL:-https://github.com/PrimeIntellect-ai/verifiers}" "$FOLDER"
git -C "$FOLDER" checkout -q "$COMMIT"
VF_VERIFIERS_REPOSITORY=$PWD/$FOLDER "$PYTHON" -m pytest -p no:cacheprovider -q \
    tests/bridges/verifiers/test_their_repository.py
