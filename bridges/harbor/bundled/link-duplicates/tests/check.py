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


wanted = {
    "b": "a/ y",
    "a/z": "a/ y",
    "a/ y": "a/ y",
    "c/-n": "c/-n",
    "c/one\ntwo": "c/-n",
    "d": "d",
    "e": "e",
    "f": "f",
    "g": "g",
    "a/zz": "a/zz",
    "linked": "a/zz",
    "linked too": "a/zz",
}
runs, kept, same, link = json.loads(read("/logs/artifacts/out.json"))
expect(kept == wanted and same and link, f"wrong links: {kept}")
expect(runs == [[0, str(2 * len("same text") + len("other") + len("pair"))], [0, "0"]], f"{runs}")
