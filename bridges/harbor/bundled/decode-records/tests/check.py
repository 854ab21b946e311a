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
    [0, [{"text": "grüße"}, {"time": 4000000000, "value": -0.5}]],
    [0, [{"numbers": [5, 3, 3, -70000, 1 << 30]}, {"numbers": []}, {"text": "x" * 300}]],
    [0, [{"text": "inside"}, {"text": "after"}]],
    [0, [{"text": "ok"}]],
    [0, [{"text": "ok"}]],
    [0, [{"numbers": [1]}]],
    [0, [{"text": "whole"}]],
    [0, []],
    [1, []],
    [1, []],
    [1, []],
]
found = json.loads(read("/logs/artifacts/out.json"))
expect(found == wanted, f"wrong: {found}")
