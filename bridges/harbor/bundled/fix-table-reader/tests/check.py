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


rows = [
    [{"a": "1", "b": "x y"}, {"a": "2", "b": ""}],
    [
        {"a": "x", "n": 1000},
        {"a": "y", "n": -2.5},
        {"a": "z", "n": None},
        {"a": "w", "n": "many"},
        {"a": "last", "n": 1000.0},
    ],
    [{"k": "one | two", "v": "`a|b` c"}, {"k": "\\\\", "v": "`x` | `y|z`"}],
    [{"h": "r"}],
    [{"x": 1, "x_2": "2", "y": "", "x_3": ""}, {"x": 3, "x_2": "4", "y": "5", "x_3": "6"}],
    [{"c": "5", "d": 6}],
    None,
    None,
    None,
    None,
    [],
    [{"q": "`open", "r": "r1"}, {"q": "0012", "r": "3"}],
]
wanted = [
    "ValueError"
    if table is None
    else [[[k, v, type(v).__name__] for k, v in row.items()] for row in table]
    for table in rows
]
found = json.loads(read("/logs/artifacts/out.json"))
expect(found == wanted, f"wrong: {found}")
