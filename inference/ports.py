"""Ports that servers listen on."""

from __future__ import annotations

import errno
import importlib.util

from vf.runtime.errors import ConfigError
from vf.runtime.ports import bind, free_port

ADVICE = "change inference.host or inference.port; port 0 is any free one"


def choose_port(host: str, port: int, advice: str = ADVICE) -> int:
    """Return ``port``, or a free one for 0 that outgoing connections do not take.

    Args:
        host: The address to listen on.
        port: From 0 to 65535.
        advice: The advice if it cannot be used.

    Raises:
        ConfigError: If the port is in use, or the host is not this machine's. The message names
            the process that uses the port, if it can be known.
    """
    try:
        return bind(host, port) if port else free_port(host)
    except OSError as error:
        why = error.strerror
        if error.errno == errno.EADDRINUSE:
            why = f"{why}{_holder(port)}"
        raise ConfigError(f"cannot listen on port {port} of {host} ({why}); {advice}") from error


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
