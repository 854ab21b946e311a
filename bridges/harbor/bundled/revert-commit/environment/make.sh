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

printf 'def parse(text):\n    return [line.strip() for line in text.splitlines()]\n' > parser.py
printf 'import parser\n' > main.py
commit "Begin"
printf 'A parser for lists.\n' > README
commit "Describe it"
printf 'def parse(text):\n    return text.split("\\n")\n' > parser.py
printf 'fast = true\n' > settings.ini
commit "Speed up the parser"
printf 'import parser\n\nprint(parser.parse("a\\nb"))\n' > main.py
commit "Print an example"
printf 'A parser for lists.\n\nLines are stripped.\n' > README
commit "Say more"
