"""The code that is sent to a supervisor when it starts."""

from __future__ import annotations

import functools
import marshal
import struct
from importlib import resources

from vf.sandbox.supervisor import MARSHAL_VERSION, kind_of_python

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
    ("vf.sandbox.inside.sockets", "inside/sockets.py"),
    ("vf.sandbox.inside.memory", "inside/memory.py"),
    ("vf.sandbox.inside.box", "inside/box.py"),
    ("vf.sandbox.inside.feed", "inside/feed.py"),
    ("vf.sandbox.inside.calls", "inside/calls.py"),
    ("vf.sandbox.inside.console", "inside/console.py"),
    ("vf.sandbox.inside.files", "inside/files.py"),
    ("vf.sandbox.inside.tunnel", "inside/tunnel.py"),
    ("vf.sandbox.inside.main", "inside/main.py"),
)


@functools.cache
def boot(modules: tuple[tuple[str, str | None], ...] = MODULES) -> bytes:
    """Return modules, by default the supervisor's, in the form that its loader reads.

    It holds the source and the compiled code: compiling takes 60 ms of a processor, more than the
    rest of a supervisor's start, and most have the same kind of Python as this process.
    """
    code = [(name, *(_both(name, file) if file else (None, None))) for name, file in modules]
    data = marshal.dumps((kind_of_python(), code), MARSHAL_VERSION)
    return struct.pack(">I", len(data)) + data


def _both(name: str, file: str) -> tuple[str, bytes]:
    """Return a module's source, and its code in marshal's format."""
    source = source_of(file)
    return source, marshal.dumps(compile(source, f"<{name}>", "exec", dont_inherit=True))


def source_of(file: str) -> str:
    """Return the source of a file of this package."""
    return resources.files("vf.sandbox").joinpath(file).read_text("utf-8")
