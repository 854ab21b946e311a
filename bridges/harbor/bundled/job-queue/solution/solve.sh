#!/bin/sh
set -e
cp /solution/jobs.py /app/jobs.py
