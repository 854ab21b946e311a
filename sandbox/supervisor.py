"""The script that runs inside a sandbox: ``python3 -I supervisor.py [flags]``, frames on stdin.

It is only the loader. The client first sends a 32-bit length and a JSON list of [module, source]
pairs, the modules of ``vf.sandbox.inside`` and what they import; they are loaded from memory, and
``vf.sandbox.inside.main`` takes over. So an image needs nothing but Python 3.9, no file of it can
be older than the client, and no file of it can be touched from inside. It also runs as
``python3 -I -c "$(cat supervisor.py)" [flags]``.

The flags are those of ``vf.sandbox.inside.main``.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import types


def receive(size: int) -> bytes:
    """Return exactly so many bytes of stdin, and leave what follows for the frames."""
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            sys.exit("supervisor: stdin ended before the code had arrived")
        data += more
    return data


def load() -> None:
    """Make the modules that the client sends."""
    (size,) = struct.unpack(">I", receive(4))
    for name, source in json.loads(receive(size)):
        module = types.ModuleType(name)
        module.__file__ = f"<{name}>"
        if source is None:
            module.__path__ = []
        sys.modules[name] = module
        if source is not None:
            exec(compile(source, module.__file__, "exec"), module.__dict__)


if __name__ == "__main__":
    load()
    sys.exit(sys.modules["vf.sandbox.inside.main"].main(sys.argv[1:]))
