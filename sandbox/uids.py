"""Uids that only one sandbox of a machine has."""

from __future__ import annotations

import itertools
import os

WIDE = range(2**28, 2**29)  # no account of a machine, and no subordinate id, is in it
_count = itertools.count(int.from_bytes(os.urandom(4), "big"))


def next_uids(uids: range = WIDE) -> tuple[int, int]:
    """Return two uids for one sandbox: the supervisor's, and one for the model's code.

    They are taken one after the other, from a random start. Linux counts inotify instances, message
    queues, pending signals and more by uid on the whole machine, so sandboxes with one uid could
    starve each other of them.
    """
    first = 2 * next(_count) % len(uids)
    return uids[first], uids[first + 1]
