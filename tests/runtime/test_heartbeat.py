"""Long work says that it is alive, and says nothing more than that."""

from __future__ import annotations

import io
import threading

from rich.console import Console

from tests.waiting import wait_until
from vf.runtime.heartbeat import Heartbeat, working


def test_silence_is_ended_with_what_is_being_done() -> None:
    said: list[str] = []
    heartbeat = Heartbeat(said.append, lambda: "loading", seconds=0.01)
    heartbeat.start()
    wait_until(lambda: len(said) > 1)
    heartbeat.stop()
    assert set(said) == {"loading"}
    assert not any(thread.name == "heartbeat" for thread in threading.enumerate())


def test_work_that_ends_soon_prints_no_line() -> None:
    file = io.StringIO()
    with working(Console(file=file), "checking ...") as say:
        say("still checking ...")
    assert file.getvalue() == ""
