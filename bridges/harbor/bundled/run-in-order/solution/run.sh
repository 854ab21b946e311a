#!/bin/bash
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
count=0
running=0
while IFS= read -r line || [ -n "$line" ]; do
    if [ "$running" -ge "$1" ]; then
        wait -n
        running=$((running - 1))
    fi
    count=$((count + 1))
    { sh -c "$line" > "$folder/$count" < /dev/null || touch "$folder/$count.failed"; } &
    running=$((running + 1))
done
wait
for number in $(seq "$count"); do
    cat "$folder/$number"
done
failed=$(find "$folder" -name '*.failed' | wc -l)
exit "$failed"
