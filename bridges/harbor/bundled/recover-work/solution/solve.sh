#!/bin/sh
set -e
cd /app/repo
git fsck --no-reflogs --unreachable > /tmp/lost.txt
newest=$(grep 'unreachable commit' /tmp/lost.txt | cut -d' ' -f3 | while read -r commit; do
    git log -1 --format='%ct %H %s' "$commit"
done | grep '3 (experiment)$' | sort -n | tail -1 | cut -d' ' -f2)
git branch experiment "$newest"
grep 'unreachable blob' /tmp/lost.txt | cut -d' ' -f3 | while read -r blob; do
    if [ "$(git cat-file blob "$blob" | head -1)" = "# Ideas" ]; then
        git cat-file blob "$blob" > /app/ideas.md
    fi
done
