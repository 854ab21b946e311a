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
    "hello-world",
    "creme-brulee-a-la-carte",
    "strasse-and-co",
    "untitled",
    "r-and-d",
    "one-two",
    "one-two",
    "abcd",
    "a",
    "angstrom-2",
    "snake-case-name",
    "untitled",
    "one-two",
    "aou-n",
    "news-3",
    "news-4",
    ["news", "news-2", "news-3", "news-4"],
    "x",
    "the-quick-brown-fox-jumps-over-lazy-dogs",
    "the-quick-brown-fox-jumps-over-lazy-dogs",
    "the-quick-brown-fox-jumps-over-lazy-2",
    40,
]
found = json.loads(read("/logs/artifacts/out.json"))
expect(found == wanted, f"wrong: {found}")
