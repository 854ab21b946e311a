"""Work that no signal interrupts, and the process that ends beside it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from vf.runtime.uninterruptible import await_for, wait_for

PROGRAM = """
import asyncio, atexit, sys, threading
from vf.runtime.command import run_command
from vf.runtime.interrupts import run_until_signal
from vf.runtime.uninterruptible import await_for, wait_for

def work():
    print("working", flush=True)
    threading.Event().wait()

async def awaiting():
    try:
        await await_for(work)
    finally:
        print("closed")

atexit.register(print, "at exit")
sys.exit(run_command("vf-any", lambda: {body}))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize(
    ("body", "closed"),
    [("wait_for(work)", ""), ("run_until_signal(awaiting)", "closed\n")],
)
def test_a_signal_ends_the_process_beside_work_that_never_ends(
    body: str, closed: str, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    said = "interrupted" if number == signal.SIGINT else f"stopped by {number.name}"
    assert (process.returncode, out, err) == (
        128 + number,
        f"{closed}at exit\n",
        f"vf-any: {said}\n",
    )


def test_results_and_errors_come_from_another_thread() -> None:
    here = threading.get_ident()
    assert wait_for(threading.get_ident) != here
    assert asyncio.run(await_for(threading.get_ident)) != here
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(await_for(lambda: 1 // 0))
