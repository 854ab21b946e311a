#!/bin/sh
set -e
cd /app/repo
git merge --no-commit colours || true
printf '%s\n' amber azure blue cyan green jade > palette.txt
printf '%s\n' 'depth = 16' 'gamma = 2.4' 'mode = lab' 'white = d65' > settings.ini
git add -A
git commit -q -m "Merge colours"
