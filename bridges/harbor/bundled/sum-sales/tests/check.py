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


found = json.loads(read("/app/totals.json"))
wanted = {"north": 2310.0, "south": 135.25, "east": 12347089.25, "west": 0.0}
expect(isinstance(found, dict) and found.keys() == wanted.keys(), "other regions")
for region, amount in wanted.items():
    given = found[region]
    expect(type(given) in (int, float) and abs(given - amount) < 1e-6, f"{region} is wrong")
    expect(round(given, 2) == given, f"{region} has more than two decimals")
