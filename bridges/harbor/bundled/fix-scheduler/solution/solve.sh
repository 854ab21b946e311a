#!/bin/sh
set -e
cp /solution/graph.py /solution/schedule.py /app/plan/
