#!/usr/bin/env bash
# Runs test files again and again, beside two programs that keep the processor busy: a test that
# depends on the machine's speed fails some of the runs.
#   scripts/under_load.sh TEST_FILE... [-- PYTEST_ARGUMENT...]
#   RUNS=5 scripts/under_load.sh tests/cluster/test_local_fleet.py -- -k stopped
# Each run has a pytest of its own. Exit code: 1 if any run failed.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-.venv/bin/python}
RUNS=${RUNS:-20}
files=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    files+=("$1")
    shift
done
[ $# -eq 0 ] || shift
if [ ${#files[@]} -eq 0 ]; then
    echo "usage: scripts/under_load.sh TEST_FILE... [-- PYTEST_ARGUMENT...]" >&2
    exit 2
fi

folder=$(mktemp -d)
busy=()
trap 'kill "${busy[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
for _ in 1 2; do
    (while kill -0 $$; do :; done) & # not even SIGKILL leaves it behind
    busy+=($!)
done

failed=0
for file in "${files[@]}"; do
    for ((run = 1; run <= RUNS; run++)); do
        code=0
        OMP_NUM_THREADS=1 "$PYTHON" -m pytest -p no:cacheprovider "$file" "$@" \
            >"$folder/output" 2>&1 </dev/null || code=$?
        echo "$file $run/$RUNS: exit $code, $(tail -n 1 "$folder/output")"
        [ $code -eq 0 ] && continue
        failed=$((failed + 1))
        [ -e "$folder/first" ] || cp "$folder/output" "$folder/first"
        { grep -oE '^(FAILED|ERROR) [^ ]+' "$folder/output" || echo "$file"; } >>"$folder/names"
    done
done
total=$((RUNS * ${#files[@]}))
if [ $failed -gt 0 ]; then
    printf '\nThe first failure:\n'
    cat "$folder/first"
    printf '\nHow often each test failed:\n'
    sort "$folder/names" | uniq -c
fi
echo "$failed of $total runs failed"
[ $failed -eq 0 ]
