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


house = ["base", "garden", "walls", "doors", "roof", "paint", "art"]
two = [
    ["base", 0, 0, 4],
    ["garden", 1, 0, 2],
    ["walls", 0, 4, 9],
    ["roof", 0, 9, 12],
    ["doors", 1, 9, 10],
    ["paint", 0, 12, 14],
    ["art", 0, 14, 15],
]
one = [
    ["base", 0, 0, 4],
    ["walls", 0, 4, 9],
    ["roof", 0, 9, 12],
    ["doors", 0, 12, 13],
    ["garden", 0, 13, 15],
    ["paint", 0, 15, 17],
    ["art", 0, 17, 18],
]
ring = ["Cycle", ["a", "b", "c", "a"], "a -> b -> c -> a"]
wanted = [house, two, one, ["ValueError", ""], [15, 4, 10, 2, 14, 12, 9]]
wanted += [ring, ring, ["Cycle", ["s", "s"], "s -> s"], ["KeyError", "p"], ["ValueError", ""]]
wanted += [["b", "c", "a"], 3, ["b", "c"], [["b", 0, 0, 1], ["c", 1, 0, 1], ["a", 0, 1, 4]]]
wanted += [[["c", 0, 0, 2], ["a", 0, 2, 2], ["b", 0, 2, 2], ["d", 0, 2, 3]]]
wanted += [[["c", 0, 0, 2], ["a", 1, 0, 0], ["b", 1, 0, 0], ["d", 1, 0, 1]]]
wanted += [True, 20000, ["t19999", 0, 19999, 20000], ["end", 0, 286, 287], 2001, 60]
found = json.loads(read("/logs/artifacts/out.json"))
for index, (ours, theirs) in enumerate(zip(wanted, found)):
    expect(ours == theirs, f"result {index}: {theirs}, not {ours}")
expect(len(found) == len(wanted), "not all results are there")
