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

for number in $(seq 1 24); do
    case $number in
        1) printf 'retries = 3\n' > client.ini ;;
        6) printf 'retries = 5\ntimeout = 7\n' > client.ini ;;
        9) git mv client.ini network.ini ;;
        13) printf 'timeout = 7\nretries = 7\n' > network.ini ;;
        15) printf 'timeout = 9\nretries = 4\n' > network.ini ;;
        19) printf 'timeout = 9\nretries = 7\n' > network.ini ;;
        22) git mv network.ini net.ini && printf 'timeout = 9\nretries = 2\n' > net.ini ;;
        *) printf 'note %s\n' "$number" >> notes.txt ;;
    esac
    commit "Change number $((number * 37 % 101))"
done
