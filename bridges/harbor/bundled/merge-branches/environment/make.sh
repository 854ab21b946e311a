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

printf '%s\n' amber blue coral green > palette.txt
printf '%s\n' 'depth = 8' 'gamma = 2.2' 'mode = rgb' 'old = 1' > settings.ini
printf 'Colours.\n' > README
commit "Begin"
git checkout -q -b colours
printf '%s\n' amber azure blue coral green jade > palette.txt
commit "Add two colours"
printf '%s\n' 'depth = 16' 'gamma = 2.2' 'mode = lab' > settings.ini
printf 'import palette\n' > convert.py
commit "Use another space"
git checkout -q main
printf '%s\n' amber blue cyan green > palette.txt
printf '%s\n' 'depth = 10' 'gamma = 2.4' 'mode = rgb' 'old = 1' 'white = d65' > settings.ini
commit "Change the palette"
printf 'Colours, and how to name them.\n' > README
commit "Describe it"
