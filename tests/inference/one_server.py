"""The leases of one server, as tests need them that watch or break what it serves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vf.inference.leases import Member, Router, Slot
from vf.inference.serving import Served, Serving
from vf.runtime.errors import ServerDown


def leases_of(serving: Serving, base_url: str = "http://127.0.0.1:1/v1") -> Router:
    """Return the leases of a server that serves this."""
    return Router([Slot(Member(base_url), serving)])


@contextmanager
def leased(serving: Serving) -> Iterator[Served]:
    """Be a request under way until the block ends.

    Raises:
        ServerDown: There is no server at the moment.
    """
    served = serving.begin()
    if served is None:
        raise ServerDown(serving.absence)
    try:
        yield served
    finally:
        serving.end(served)
