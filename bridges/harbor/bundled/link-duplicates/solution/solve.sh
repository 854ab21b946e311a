#!/bin/sh
set -e
cp /solution/dedupe.sh /app/dedupe.sh
chmod 755 /app/dedupe.sh
