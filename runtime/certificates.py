"""What HTTP clients check a server's certificate with."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

from vf.runtime.http_door import is_loopback


def verify_for(url: str | None) -> ssl.SSLContext | bool:
    """Return what a client of ``httpx`` gets as ``verify`` for a server's URL.

    Loading the known authorities takes 50 ms of every new client. A server of this machine that is
    asked by plain HTTP has no certificate, so its clients get a context that trusts nobody: were
    they sent elsewhere by a redirect, they would refuse to follow.
    """
    try:
        parts = urlsplit(url or "")
        local = parts.scheme == "http" and is_loopback(parts.hostname or "")
    except ValueError:
        return True
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if local else True
