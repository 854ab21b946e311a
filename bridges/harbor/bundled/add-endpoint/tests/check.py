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


found = json.loads(read("/logs/artifacts/out.json"))
wanted = [
    [200, {"status": "ok", "version": "1.4.2", "requests": 0}],
    [200, {"hello": "zoe"}],
    [200, {"echo": "text"}],
    [404, {"error": "not found"}],
    [200, {"status": "ok", "version": "1.4.2", "requests": 4}],
    [405, None],
    [200, {"status": "ok", "version": "2.0-rc1", "requests": 6}],
    [503, {"status": "no version"}],
    [404, {"error": "not found"}],
    [200, {"status": "ok", "version": "3", "requests": 9}],
]
expect(found == wanted, f"wrong: {found}")
