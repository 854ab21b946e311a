"""What a supervisor is sent when it starts: its own code."""

from __future__ import annotations

import json
import struct
from importlib import resources

# In the order in which they are loaded inside; None makes a package.
MODULES = (
    ("vf", None),
    ("vf.sandbox", None),
    ("vf.sandbox.frames", "frames.py"),
    ("vf.sandbox.ends", "ends.py"),
    ("vf.sandbox.folder", "folder.py"),
    ("vf.sandbox.inside", None),
    ("vf.sandbox.inside.kernel", "inside/kernel.py"),
    ("vf.sandbox.inside.loop", "inside/loop.py"),
    ("vf.sandbox.inside.users", "inside/users.py"),
    ("vf.sandbox.inside.program", "inside/program.py"),
    ("vf.sandbox.inside.keeper", "inside/keeper.py"),
    ("vf.sandbox.inside.memory", "inside/memory.py"),
    ("vf.sandbox.inside.box", "inside/box.py"),
    ("vf.sandbox.inside.feed", "inside/feed.py"),
    ("vf.sandbox.inside.calls", "inside/calls.py"),
    ("vf.sandbox.inside.console", "inside/console.py"),
    ("vf.sandbox.inside.files", "inside/files.py"),
    ("vf.sandbox.inside.tunnel", "inside/tunnel.py"),
    ("vf.sandbox.inside.main", "inside/main.py"),
)


def boot() -> bytes:
    """Return what the supervisor's loader reads first: its code."""
    sources = [(name, file and source_of(file)) for name, file in MODULES]
    data = json.dumps(sources).encode()
    return struct.pack(">I", len(data)) + data


def source_of(file: str) -> str:
    """Return the source of a file of this package."""
    return resources.files("vf.sandbox").joinpath(file).read_text("utf-8")
