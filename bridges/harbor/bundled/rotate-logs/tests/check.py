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
    [0, {"x": "", "x.1": "now", "x.2": "old 1", "x.3": "old 2"}],
    [0, {"a b.log": "", "a b.log.1": "one"}],
    [0, {"x": "", "x.1": "kept"}],
    [0, {"x.1": "kept"}],
    [0, {"x": "", "x.1": "now", "x.2": "p", "x.4": "q", "x.11": "r"}],
    [2, {"x": "now", "x.1": "p"}],
    [2, {"x": "now", "x.1": "p"}],
    [2, {"x": "now"}],
    [0, {"x": "", "x.1": "now", "x.1.gz": "other", "x.bak": "other"}],
]
found = json.loads(read("/logs/artifacts/out.json"))
expect([[code, files] for code, _, files in found] == wanted, f"wrong: {found}")
expect(all(said for code, said, _ in found if code), "errors are not said")
