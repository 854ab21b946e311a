#!/bin/bash
export LC_ALL=C
declare -A first gone
saved=0
while IFS= read -r -d '' path; do
    sum=$(sha256sum < "$path")
    size=$(stat -c %s -- "$path")
    inode=$(stat -c %d:%i -- "$path")
    key="$size $sum"
    if [ -z "${first[$key]+set}" ]; then
        first[$key]=$path
        gone[$inode]=kept
        continue
    fi
    [ "$path" -ef "${first[$key]}" ] && continue
    [ -n "${gone[$inode]+set}" ] || saved=$((saved + size))
    gone[$inode]=gone
    ln -f -- "${first[$key]}" "$path"
done < <(find "$1" -type f -size +0c -print0 | sort -z)
echo "$saved"
