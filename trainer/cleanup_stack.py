"""Stops resources at the end, last started first, whatever fails on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

log = logging.getLogger(__name__)


class CleanupStack:
    """Stops what was started, in the reverse order.

    An error is logged and keeps nothing else from being stopped. A signal interrupts only what is
    being stopped at that moment; it is raised once everything has been stopped.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def add(self, stop: Callable[[], object]) -> None:
        """Have something stopped, before everything that was added earlier."""

        def logged() -> None:
            try:
                stop()
            except Exception:
                log.exception("while closing")

        self._stack.callback(logged)

    def close(self) -> None:
        """Stop everything. Safe to call twice."""
        self._stack.close()
