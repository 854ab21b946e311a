"""Ending in order, as seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys
from vf.runtime.interrupts import Terminated, orderly_end
{before}
try:
    with orderly_end(launched={launched}):
        try:
            print("ready", flush=True)
            {wait}
        finally:
            if {again}:
                signal.raise_signal(signal.SIGTERM)
            print("closed", flush=True)
except Terminated as error:
    print(error, error.number)
"""


def run(number: int, *, wait: str = "signal.pause()", before: str = "", **values: bool) -> str:
    settings = {"launched": False, "again": False, **values}
    code = PROGRAM.format(before=before, wait=wait, **settings)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    return said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_is_open_is_closed_whatever_comes_next(number: signal.Signals) -> None:
    assert run(number, again=True) == f"closed\n{number.name} {number.value}\n"


def test_a_launcher_may_pass_on_an_interrupt() -> None:
    assert run(signal.SIGINT, launched=True) == f"closed\nSIGINT {signal.SIGINT.value}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_a_callback_that_drops_what_is_raised_is_not_lost(
    number: signal.Signals,
) -> None:
    """As imports have them: of the weak reference to each module's lock."""
    wait = f"weakref.ref(set(), lambda _: os.kill(os.getpid(), {number.value})); signal.pause()"
    said = run(0, before="import os, weakref", wait=wait)
    assert said == f"closed\n{number.name} {number.value}\n"


def test_nohup_is_respected() -> None:
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    assert run(signal.SIGHUP, before=before, wait="sys.stdin.read()") == "closed\n"


def test_a_process_ends_whose_parent_died_before_it_looked() -> None:
    code = "from vf.runtime.interrupts import end_with_parent\nend_with_parent({})\ninput()"
    for started_by, ending in ((os.getpid(), 0), (os.getpid() + 1, -signal.SIGTERM)):
        command = [sys.executable, "-c", code.format(started_by)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            if not ending:
                assert process.stdin is not None
                process.stdin.write(b"\n")
                process.stdin.close()
            assert process.wait(60) == ending
