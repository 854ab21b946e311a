#!/bin/sh
set -e
cd /app/store
find . -type f -printf '%s %P\n' | sort -k1,1nr | head -5 > /app/largest.txt
