"""Ports that are free, and that nothing else is given while a server starts again."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

# Below those that systems give to outgoing connections (from 32,768 on Linux, from 49,152 by
# RFC 6335), of which one could take the port while a server that had it is started again; and
# below Kubernetes' node ports.
FREE_PORTS = range(20_000, 30_000)
TRIES = 100

_given: set[int] = set()  # to what may not listen yet


def free_port(host: str) -> int:
    """Return a free port that outgoing connections do not take, and no caller was given before.

    Args:
        host: The address of this machine for which it must be free.

    Raises:
        OSError: If none can be bound.
    """
    for port in random.SystemRandom().sample(FREE_PORTS, TRIES):
        with suppress(OSError):
            if port not in _given and bind(host, port):
                _given.add(port)
                return port
    return bind(host, 0)


def bind(host: str, port: int) -> int:
    """Bind a port for a moment, and return its number.

    Raises:
        OSError: If it cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])
