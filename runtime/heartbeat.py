"""An occasional message from long work when no terminal shows progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

SECONDS = 5.0  # of silence before a word


class Heartbeat:
    """Says what is being done whenever nothing has been said for a while.

    Args:
        say: Prints a line; called in a thread.
        doing: Returns what is being done, or nothing for no line.
        seconds: Silence before a line, in seconds.
    """

    def __init__(
        self, say: Callable[[str], None], doing: Callable[[], str], seconds: float = SECONDS
    ) -> None:
        self._say, self._doing, self._seconds = say, doing, seconds
        self._spoke = time.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen. Safe to call twice."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._thread.start()

    def spoke(self) -> None:
        """Note that something has been said just now."""
        self._spoke = time.monotonic()

    def stop(self) -> None:
        """End; no line comes after this. Safe to call twice."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _beat(self) -> None:
        wait = self._seconds
        while not self._ended.wait(wait):
            wait = self._spoke + self._seconds - time.monotonic()
            if wait <= 0:
                self.spoke()
                wait = self._seconds
                if line := self._doing():
                    self._say(line)


@contextmanager
def working(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done: a spinner on a terminal, elsewhere a line every few seconds.

    Args:
        console: The console that shows it.
        text: The work that comes first.

    Returns:
        A context, in which it gives a function that takes what is being done from now on.
    """
    if console.is_terminal:
        from rich.text import Text

        with console.status(Text(text)) as status:
            yield lambda now: status.update(Text(now))
        return
    started, doing = time.monotonic(), text

    def update(now: str) -> None:
        nonlocal doing
        doing = now

    heartbeat = Heartbeat(
        lambda line: console.print(line, soft_wrap=True),
        lambda: f"{doing} {time.monotonic() - started:.0f} s",
    )
    heartbeat.start()
    try:
        yield update
    finally:
        heartbeat.stop()
