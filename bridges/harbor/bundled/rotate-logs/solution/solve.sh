#!/bin/sh
set -e
cp /solution/rotate.sh /app/rotate.sh
chmod 755 /app/rotate.sh
