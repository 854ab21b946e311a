#!/bin/sh
set -e
cp /solution/patcher.py /app/patcher.py
