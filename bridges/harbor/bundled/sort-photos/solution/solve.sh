#!/bin/sh
set -e
cd /app/photos
for path in IMG_[0-9]*_[0-9]*.*; do
    date=$(echo "$path" | cut -c5-12)
    number=$(echo "$path" | cut -c14-16)
    folder=$(echo "$date" | cut -c1-4)/$(echo "$date" | cut -c5-6)
    mkdir -p "$folder"
    mv "$path" "$folder/$(echo "$date" | cut -c7-8)-$number.jpg"
done
