"""Grade the task. What the agent wrote is only read here, never run."""

import json
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


wanted = [
    "14 10.0.0.1\n7 10.0.0.2\n",
    "4 10.0.0.10\n4 10.0.0.9\n4 2001:db8::1\n",
    "6000000000 a.example\n2 10.0.0.7\n",
    "10 10.1.1.1\n",
]
found = json.loads(read("/logs/artifacts/out.json"))
expect(found == [[0, text] for text in wanted], f"wrong: {found}")
