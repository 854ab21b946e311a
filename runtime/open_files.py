"""How many files and connections this process may have open at once."""

from __future__ import annotations

import logging
import sys

from vf.runtime.share import own_share

if sys.platform != "win32":
    import resource

log = logging.getLogger(__name__)

ENOUGH = 65_536  # macOS refuses more, and some programs walk through all that they may have
SPARE = 128  # for libraries, logs, traces, and the pipes of worker processes
MOST = 16_384  # connections; the ports of one machine do not suffice for many more


def raise_limit() -> None:
    """Raise the soft limit of open files (``ulimit -n``) to the hard one, for this process.

    The processes that it starts inherit it. A limit that cannot be raised stays as it is.
    """
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError) as error:
        log.info("the limit of open files stays at %d: %s", soft, error)


def limit() -> int:
    """Return how many files this process may have open; a high number where there is no limit."""
    if sys.platform == "win32":
        return ENOUGH
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENOUGH if soft == resource.RLIM_INFINITY else min(soft, ENOUGH)


def connections() -> int:
    """Return how many connections a client, or a server, may have open in this process.

    Half of what is left after ``SPARE``: an engine that runs in the trainer's process has both ends
    of each connection, and sandboxes and tools need files as well. Worker processes ask one engine,
    whose open files and ports they share.
    """
    return max(8, own_share().of(min(MOST, (limit() - SPARE) // 2)))


def sandboxes() -> int:
    """Return how many sandboxes this process may have open: a quarter of what is left likewise."""
    return max(4, (limit() - SPARE) // 4)


def burst() -> int:
    """Return how many connections a server may accept at one go, before it sees who they are."""
    return max(16, min(2048, limit() // 16))
