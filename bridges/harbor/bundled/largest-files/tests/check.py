"""Grade the task. What the agent wrote is only read here, never run."""

import os
import sys


def read(path, limit=1 << 20):
    """Return a file's text. A link could lead to a file of the verifier's."""
    if os.path.realpath(path) != path or os.path.getsize(path) > limit:
        sys.exit(f"{path} is a link, or too long")
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def expect(condition, what):
    """End without a reward if the condition does not hold."""
    if not condition:
        sys.exit(what)


wanted = """\
120001 c/.cache
91008 a/b/old data.bin
91007 a/b/data.bin
80500 c/d/e/deep.log
70123 a/report.pdf
"""
expect(read("/app/largest.txt").strip() == wanted.strip(), "not the five largest")
