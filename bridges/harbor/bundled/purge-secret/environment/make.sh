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

mkdir deploy
printf 'echo deploy\n' > deploy/run.sh
commit "Begin"
printf -- '-----BEGIN PRIVATE KEY-----\none\n' > deploy/key.pem
commit "Add what is needed to deploy"
printf 'Deploys.\n' > README
commit "Describe it"
git tag v1
git checkout -q -b release
git mv deploy old
commit "Move the old way of deploying"
printf -- '-----BEGIN PRIVATE KEY-----\ntwo\n' > old/key.pem
commit "Renew the key"
git checkout -q main
git rm -q deploy/key.pem
commit "Remove the key"
printf 'echo deploy now\n' > deploy/run.sh
commit "Say when"
git checkout -q -b feature v1
printf 'x\n' > feature.txt
commit "Add a feature"
git checkout -q main
clock=$((clock + 3600))
GIT_AUTHOR_DATE="$clock +0000" GIT_COMMITTER_DATE="$clock +0000" \
    git merge -q --no-ff -m "Merge the feature" -X ours feature
GIT_COMMITTER_DATE="$clock +0000" git tag -a -m "Second version" v2
