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


wanted = [[200, "5"], [200, "-2"], [200, "1"], [200, "1"], [400, ""], [200, "0"]]
wanted += [[200, "0"], [200, "1"], [404, ""], [200, "0"], [200, "4"], True]
wanted += [[200, "0"], [200, "100"], [200, "6"], [200, "4"], [200, "8"]]
wanted += [[200, "8"], [200, "100"], [200, "8"], [200, "9"]]
found = json.loads(read("/logs/artifacts/out.json"))
expect(found == wanted, f"wrong: {found}")
