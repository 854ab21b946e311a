"""The leases of one server, as tests need them that watch or break what it serves."""

from __future__ import annotations

from vf.inference.leases import Member, Router, Slot
from vf.inference.serving import Serving


def leases_of(serving: Serving, base_url: str = "http://127.0.0.1:1/v1") -> Router:
    """Return the leases of a server that serves this."""
    return Router([Slot(Member(base_url), serving)])
