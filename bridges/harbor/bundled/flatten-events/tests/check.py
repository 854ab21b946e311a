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


wanted = """\
id,user.name,user.email,tags
1,Ada,ada@example.com,a;b
x-2,"O'Hara, Jo",,
3,,,
,,nobody@example.com,one
5,"the ""Boss""
of all",é@example.com,x;y;z
0,,,0
"""
found = json.loads(read("/logs/artifacts/out.json"))
expect(found == [0, wanted], f"wrong: {found}")
