#!/usr/bin/env bash
# Runs a command of this clone as an ordinary user, without capabilities or supplementary groups:
#   scripts/as_user.sh .venv/bin/python -m pytest tests/sandbox/test_bubblewrap.py
# Needs root. Where the clone or its Python lies in a folder that other users may not enter, a mount
# namespace of the command's own makes just these two visible there, read-only.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${VF_AS_USER:-} != mounting ]]; then
    [[ $(id -u) == 0 ]] || { echo "as_user: needs root, to become another user" >&2; exit 1; }
    VF_AS_USER=mounting exec unshare --mount "$0" "$@"
fi
unset VF_AS_USER

needed=("$PWD" "$(.venv/bin/python -c 'import sys; print(sys.base_prefix)')")
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
closed=()
for number in "${!needed[@]}"; do
    mkdir "$home/$number"
    mount --bind "${needed[number]}" "$home/$number"
    folder=${needed[number]}
    outermost=
    while [[ $folder != / ]]; do
        folder=$(dirname "$folder")
        ((0$(stat -c %a "$folder") & 1)) || outermost=$folder
    done
    [[ -z $outermost ]] || closed+=("$outermost")
done
for folder in $(printf '%s\n' "${closed[@]}" | sort -u); do
    mount -t tmpfs -o mode=755 tmpfs "$folder"
done
for number in "${!needed[@]}"; do
    mkdir -p "${needed[number]}"
    mount --bind -o ro "$home/$number" "${needed[number]}"
    umount "$home/$number"
done
mkdir "$home/tmp"
chown -R 65534:65534 "$home"
cd "$PWD" # the mount, not what it covers
export HOME=$home TMPDIR=$home/tmp PYTHONDONTWRITEBYTECODE=1
setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all "$@"
