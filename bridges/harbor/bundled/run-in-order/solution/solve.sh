#!/bin/sh
set -e
cp /solution/run.sh /app/run.sh
chmod 755 /app/run.sh
