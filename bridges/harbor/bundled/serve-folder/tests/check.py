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
    [200, "text/html", "<h1>Hello</h1>\n"],
    [200, "text/markdown", "# Notes\n"],
    [200, "text/html", "fresh page"],
    [200, "text/markdown", "late"],
]
found = json.loads(read("/logs/artifacts/out.json"))
expect(found[:4] == wanted, f"wrong: {found}")
expect(found[4][0] == 404 and found[5] == [200, "text/markdown", "late"], f"wrong: {found}")
expect(found[6:] == [False] * 3, "serves what is outside")
