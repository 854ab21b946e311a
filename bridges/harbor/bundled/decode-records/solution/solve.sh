#!/bin/sh
set -e
cp /solution/decode.py /app/decode.py
