"""Writes traces beside the event loop: encoding a long one takes milliseconds."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from vf.traces.store import TraceStore
from vf.traces.trace import Trace

log = logging.getLogger(__name__)


class TraceWriter:
    """Appends traces to their stores in a thread of its own, in the order in which they came.

    A trace must not be changed once it is here.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vf-traces")
        self._error: OSError | None = None

    def append(self, store: TraceStore, trace: Trace, line: bytes | None = None) -> None:
        """Have a trace appended to a store. For any thread; returns at once.

        Args:
            store: The store to append to.
            trace: The trace to append.
            line: The trace as JSON, if another process has encoded it.
        """
        self._thread.submit(store.append, trace, line).add_done_callback(
            lambda done: self._keep_error(store, done)
        )

    def check(self) -> None:
        """Raise what went wrong since.

        Raises:
            OSError: If a trace could not be written; the message names the file.
        """
        if self._error is not None:
            raise self._error

    def close(self, store: TraceStore) -> None:
        """Write what is left of a store's traces, flush it to disk and close it.

        Raises:
            OSError: If a trace could not be written; the message names the file.
        """
        self._thread.submit(store.close).result()
        self.check()

    def stop(self) -> None:
        """Write what is left, and end the thread. Safe to call twice."""
        self._thread.shutdown()

    def _keep_error(self, store: TraceStore, done: Future[None]) -> None:
        if (error := done.exception()) is not None and self._error is None:
            self._error = OSError(
                f"a trace could not be written to {store.path}: {error}; make room and resume"
            )
            self._error.__cause__ = error
            log.error("%s", self._error)
