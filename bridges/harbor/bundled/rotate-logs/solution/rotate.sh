#!/bin/bash
usage() { echo "usage: rotate.sh FILE KEEP" >&2; exit 2; }
[ $# -eq 2 ] || usage
file=$1 keep=$2
[[ $keep =~ ^[0-9]+$ ]] && [ "$keep" -gt 0 ] || usage
[ -s "$file" ] || exit 0
numbers=()
for path in "$file".*; do
    number=${path#"$file".}
    [[ -f $path && $number =~ ^[1-9][0-9]*$ ]] && numbers+=("$number")
done
for number in $(printf '%s\n' "${numbers[@]}" | sort -nr); do
    if [ "$number" -ge "$keep" ]; then
        rm -f "$file.$number"
    else
        mv "$file.$number" "$file.$((number + 1))"
    fi
done
mv "$file" "$file.1"
: > "$file"
