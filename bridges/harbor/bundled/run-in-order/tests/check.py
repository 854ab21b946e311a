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
    [0, "g 3\n" * 3],
    [0, "fine\n" * 6],
    [0, "long\n2\n3\n4\n"],
    [2, "a\nb\nc\nno endd\n"],
    [0, ""],
]
found = json.loads(read("/logs/artifacts/out.json"))
expect(found == wanted, f"wrong: {found}")
