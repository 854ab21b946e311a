"""The script that runs inside a sandbox: ``python3 -I supervisor.py [flags]``, frames on stdin.

It is only the loader. The client first sends a 32-bit length and, in marshal's format, the kind of
its Python and a list of (module, source, code): the modules of ``vf.sandbox.inside`` and what they
import. They are loaded from memory, compiled if this is another kind of Python, and the last one's
``main`` takes over: that of ``vf.sandbox.inside.main``, or of what starts many supervisors. So an
image needs nothing but Python 3.9, no file of it can be older than the client, and no file of it
can be changed from inside. It also runs as ``python3 -I -c "$(cat supervisor.py)" [flags]``.

The flags are those of the last module.
"""

from __future__ import annotations

import marshal
import os
import struct
import sys
import types

MARSHAL_VERSION = 4  # known to every Python since 3.4


def kind_of_python() -> str:
    """Return the version on which compiled code depends; all of it, before a release."""
    final = sys.version_info.releaselevel == "final"
    return f"{sys.implementation.cache_tag} {sys.version_info[:2] if final else sys.version}"


def receive(size: int) -> bytes:
    """Return exactly ``size`` bytes of stdin, and leave the rest for the frames."""
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            sys.exit("supervisor: stdin ended before the code had arrived")
        data += more
    return data


def load() -> types.ModuleType:
    """Load the modules that the client sends; return the last."""
    (size,) = struct.unpack(">I", receive(4))
    kind, modules = marshal.loads(receive(size))
    compiled = kind == kind_of_python()
    for name, source, code in modules:
        module = types.ModuleType(name)
        module.__file__ = f"<{name}>"
        if source is None:
            module.__path__ = []
        sys.modules[name] = module
        if source is not None:
            made = marshal.loads(code) if compiled else compile(source, module.__file__, "exec")
            exec(made, module.__dict__)
    return module


if __name__ == "__main__":
    sys.exit(load().main(sys.argv[1:]))
