"""Ports that servers listen on."""

from __future__ import annotations

import errno
import importlib.util
import random
import socket
from contextlib import suppress

from vf.runtime.errors import ConfigError

ADVICE = "change inference.host or inference.port; port 0 is any free one"
# Below those that systems give to outgoing connections (from 32,768 on Linux, from 49,152 by
# RFC 6335), of which one could take the port while a server that had it is started again; and
# below Kubernetes' node ports.
FREE_PORTS = range(20_000, 30_000)
TRIES = 100


def choose_port(host: str, port: int, advice: str = ADVICE) -> int:
    """Return ``port``, or a free one for 0 that outgoing connections do not take.

    Args:
        host: The address to listen on.
        port: From 0 to 65535.
        advice: What to do if it cannot be used.

    Raises:
        ConfigError: The port is in use (says by which process, if it can be known), or the host is
            not this machine's.
    """
    for tried in random.SystemRandom().sample(FREE_PORTS, TRIES) if port == 0 else ():
        with suppress(OSError):
            return _bind(host, tried)
    try:
        return _bind(host, port)
    except OSError as error:
        why = error.strerror
        if error.errno == errno.EADDRINUSE:
            why = f"{why}{_holder(port)}"
        raise ConfigError(f"cannot listen on port {port} of {host} ({why}); {advice}") from error


def _bind(host: str, port: int) -> int:
    """Bind a port for a moment, and return its number.

    Raises:
        OSError: It cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def _holder(port: int) -> str:
    """Return which process listens on a port, in words; nothing if the system does not say."""
    if importlib.util.find_spec("psutil") is None:
        return ""
    import psutil

    try:
        held = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        pid = next((c.pid for c in held if c.laddr and c.laddr.port == port), None)
        return f": process {pid} has it, {psutil.Process(pid).name()}" if pid else ""
    except psutil.Error:  # another user's process, or one that has just ended
        return ""
