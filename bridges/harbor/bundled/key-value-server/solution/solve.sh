#!/bin/sh
set -e
cp /solution/server.py /app/server.py
