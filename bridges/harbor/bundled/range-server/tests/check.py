"""Grade the task. What the agent wrote is only read here, never run."""

import hashlib
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


def full(text, body=None):
    tag = hashlib.sha256(text.encode()).hexdigest()[:16]
    named = {"ETag": f'"{tag}"', "Content-Length": str(len(text)), "Accept-Ranges": "bytes"}
    return [200, text if body is None else body, named]


def part(first, last):
    whole = full("0123456789")[2]
    named = {"Content-Range": f"bytes {first}-{last}/10", "Content-Length": str(last - first + 1)}
    return [206, "0123456789"[first : last + 1], {**whole, **named}]


def code(status):
    return [status, "", {}]


ten = full("0123456789")
beyond = [416, "", {"Content-Range": "bytes */10"}]
wanted = [ten, full("0123456789", "")]
wanted += [part(2, 4), part(7, 9), part(7, 9), part(5, 9), part(0, 9), beyond, part(0, 0)]
wanted += [ten, beyond, ten, ten]
wanted += [full(""), [416, "", {"Content-Range": "bytes */0"}], ten]
wanted += [code(304), code(304), code(304), ten, ten, part(1, 2)]
wanted += [code(404), code(404), code(400), code(400), code(400)]
wanted += [code(201), full("fresh"), code(204), full("in chunks!")]
wanted += [code(412), code(412), code(404), code(204), full("won"), code(400), code(405)]
found, names = json.loads(read("/logs/artifacts/out.json"))
for index, (ours, theirs) in enumerate(zip(wanted, found)):
    expect(ours == theirs, f"request {index}: {theirs}, not {ours}")
expect(len(found) == len(wanted), "not all requests were answered")
expect(names == ["empty", "new file", "sub", "ten"], f"other files: {names}")
