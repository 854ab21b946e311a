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


ten = [f"line {i}\n" for i in range(1, 11)]


def with_lines(**changed):
    """Return the ten lines with some replaced, by their number after an underscore."""
    return "".join(changed.get(f"_{i}", line) for i, line in enumerate(ten, 1))


wanted = [
    with_lines(_3="LINE 3\n"),
    with_lines(_1="a\nb\n", _10=""),
    "x\n" + with_lines(_3="three\n", _9="nine\n"),
    "first\n" + with_lines() + "last\n",
    ["Rejected", 1],
    ["Rejected", 2],
    "a\nc\n",
    "a\nc",
    ["Rejected", 1],
    "a\n\nc\n",
    "s\nt\nS\nt\ns\nt\ns\n",
    "s\nt\nx\nu\n",
    "a\r\nc\r\n",
    ["Rejected", 1],
    "-- z\n++ w\n",
    "ValueError",
    "ValueError",
    "ValueError",
    "a\nb\n",
    "",
    "\f a\x0bb\ne\n",
]
found, good = json.loads(read("/logs/artifacts/out.json"))
for index, (ours, theirs) in enumerate(zip(wanted, found)):
    expect(ours == theirs, f"patch {index}: {theirs!r}, not {ours!r}")
expect(len(found) == len(wanted) and good == 200, f"{good} of 200 random patches")
