#!/bin/sh
# Dates are fixed, so that the commits have the same names each time.
set -e
mkdir -p /app/repo && cd /app/repo
git init -q -b main
git config user.name "Robin Doe" && git config user.email robin@example.com
clock=1700000000
commit() {
    clock=$((clock + 3600))
    git add -A
    GIT_AUTHOR_DATE="$clock +0000" GIT_COMMITTER_DATE="$clock +0000" \
        git commit -q --allow-empty -m "$1"
}

for number in $(seq 1 48); do
    rate=19 && [ "$number" -ge 31 ] && rate=$((20 - 2 * (number % 2)))
    {
        echo "import sys"
        echo
        echo "# revision $((number * 7919 % 1000))"
        [ $((number % 11)) -eq 4 ] && [ "$number" -lt 31 ] && echo "import missing_$number"
        echo "RATE = $rate"
        echo 'amount = float(sys.argv[1])'
        echo 'print(round(amount + amount * RATE / 100))'
    } > tax.py
    commit "Work on the taxes, part $((number * 29 % 97))"
done
