#!/bin/sh
set -e
cd /app/repo
cat > /tmp/try.sh <<'END'
said=$(python3 tax.py 100 2> /dev/null) || exit 125
[ "$said" = 119 ]
END
git bisect start HEAD "$(git rev-list --max-parents=0 HEAD)" > /dev/null
git bisect run sh /tmp/try.sh > /dev/null
git rev-parse refs/bisect/bad > /app/answer.txt
git bisect reset > /dev/null
