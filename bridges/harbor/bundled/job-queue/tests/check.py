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


wanted = [[204, ""]]
wanted += [[201, {"id": number}] for number in (1, 2, 3, 4, 5)]
wanted += [
    [200, {"id": 2, "name": "b", "attempt": 1}],
    [409, True],
    [200, {}],
    [200, {"id": 4, "name": "d", "attempt": 1}],
    [200, {"id": 2, "name": "b", "attempt": 2}],
    [200, {"id": 2, "name": "b", "state": "taken"}],
    [200, {"id": 4, "name": "d", "state": "taken"}],
    [200, {"id": 5, "name": "e", "state": "waiting"}],
    [200, {}],
    [200, {"id": 2, "name": "b", "attempt": 3}],
    [200, {}],
    [200, {"id": 2, "name": "b", "state": "dead"}],
    [200, {"id": 1, "name": "a", "attempt": 1}],
    [200, {}],
    [409, True],
    [200, {"id": 1, "name": "a", "state": "done"}],
    [404, True],
    [404, True],
    [409, True],
]
wanted += [[400, True]] * 5
wanted += [[40, 40, 6, 45]]
found = json.loads(read("/logs/artifacts/out.json"))
expect(found == wanted, f"wrong: {found}")
