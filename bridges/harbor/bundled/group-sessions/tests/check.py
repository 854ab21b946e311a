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
    ["cy", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z", 2, {"view": 2}],
    ["cy", "2024-03-01T05:15:00Z", "2024-03-01T05:15:00Z", 1, {"view": 1}],
    ["ann", "2024-03-30T23:30:00Z", "2024-03-31T00:29:59Z", 3, {"buy": 1, "view": 2}],
    ["abe", "2024-03-31T00:00:00Z", "2024-03-31T00:00:00Z", 1, {"view": 1}],
    [
        "bob",
        "2024-03-31T00:00:00Z",
        "2024-03-31T00:02:00Z",
        3,
        {"login": 1, "logout": 1, "view": 1},
    ],
    ["bob", "2024-03-31T00:02:01Z", "2024-03-31T00:02:01Z", 2, {"logout": 1, "view": 1}],
    ["bob", "2024-03-31T00:02:02Z", "2024-03-31T00:02:02Z", 1, {"view": 1}],
    ["bob", "2024-03-31T00:02:05Z", "2024-03-31T00:02:05Z", 2, {"login": 1, "logout": 1}],
    ["ann", "2024-03-31T01:00:00Z", "2024-03-31T01:00:00Z", 1, {"view": 1}],
]
keys = ("user", "start", "end", "events", "kinds")
code, found = json.loads(read("/logs/artifacts/out.json"))
expect(code == 0 and found == [dict(zip(keys, each)) for each in wanted], f"wrong: {found}")
