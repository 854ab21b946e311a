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

amend() {
    clock=$((clock + 3600))
    git add -A
    GIT_AUTHOR_DATE="$clock +0000" GIT_COMMITTER_DATE="$clock +0000" \
        git commit -q --amend --reset-author --no-edit
}
printf 'one\n' > base.txt
commit "Begin"
printf 'one\ntwo\n' > base.txt
commit "Count"
git checkout -q -b experiment
for number in 1 2 3; do
    printf 'draft %s\n' "$number" > "try$number.txt"
    commit "Try number $number (experiment)"
    printf 'final %s\n' "$number" > "try$number.txt"
    amend
done
git checkout -q -b other main
printf 'x\n' > other.txt
commit "Something else"
printf 'draft 9\n' > try9.txt
commit "Try number 9"
git checkout -q main
git branch -q -D experiment other
printf '# Ideas\n\n- count further\n- %s\n' "$(seq -s ' ' 5)" > ideas.md
git add ideas.md
git rm -q -f ideas.md
printf 'one\ntwo\nthree\n' > base.txt
commit "Count on"
rm -rf .git/logs .git/ORIG_HEAD
