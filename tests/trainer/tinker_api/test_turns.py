"""In which order the thread that computes runs the requests of several models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from vf.trainer.tinker_api.turns import MOST_SHORT, Turns

Submit = Callable[[str], list[Future[Any]]]


class Log:
    """Requests that write down their names, which wait until they are let go.

    A name begins with the model's; a capital letter behind it is a pass.
    """

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self.turns, self.order, self.go = Turns(thread), list[str](), threading.Event()
        thread.submit(self.go.wait)

    def submit(self, names: str) -> list[Future[Any]]:
        return [self.turns.submit(n[0], self.work(n), long=n[1].isupper()) for n in names.split()]

    def work(self, name: str) -> Callable[[], str]:
        def run() -> str:
            self.order.append(name)
            if "!" in name:
                raise ValueError(name)
            return name

        return run


@pytest.fixture
def log() -> Iterator[Log]:
    with ThreadPoolExecutor(1) as thread:
        log = Log(thread)
        yield log
        log.go.set()


@pytest.mark.parametrize(
    ("submitted", "expected"),
    [
        ("aP bP cP as bs", "aP as bP bs cP"),
        ("aP aP aP bP cP", "aP bP cP aP aP"),
        ("aP as at aP bP bs", "aP as at bP bs aP"),
        ("as at bs bt", "as bs at bt"),
    ],
    ids=["a step before others' passes", "passes by turns", "pipelined", "short ones by turns"],
)
def test_requests_run_by_turns(log: Log, submitted: str, expected: str) -> None:
    futures = log.submit(submitted)
    log.go.set()
    assert [future.result() for future in futures] == submitted.split()
    assert log.order == expected.split()


def test_short_requests_do_not_keep_a_pass_waiting(log: Log) -> None:
    futures = log.submit("aP " + "bs " * (3 * MOST_SHORT))
    log.go.set()
    for future in futures:
        future.result()
    assert log.order.index("aP") == MOST_SHORT


def test_what_fails_or_is_cancelled_is_no_other_request(log: Log) -> None:
    failing, cancelled, own, other = log.submit("aP! as at bs")
    cancelled.cancel()
    log.go.set()
    with pytest.raises(ValueError, match="aP!"):
        failing.result()
    assert (own.result(), other.result()) == ("at", "bs")
    assert "as" not in log.order
