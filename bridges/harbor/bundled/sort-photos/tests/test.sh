#!/bin/sh
# The agent's container is gone: this one was made from the task's image for grading only.
if python3 -I /tests/check.py; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
