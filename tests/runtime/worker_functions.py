"""Functions for the tests of worker processes, which must be able to import them."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import vf


def add(a: int, b: int) -> int:
    return a + b


def process_id(trace: vf.Trace | None = None) -> int:
    return os.getpid()


def wait_for_another(path: str) -> int:
    """Write the parent's process id into a file, or return it if another's is there."""
    try:
        with open(path, "x") as file:
            file.write(str(os.getppid()))
    except FileExistsError:
        return os.getppid()
    signal.pause()
    return 0


def dies_of_a_bomb(golden: str, stated: list[str], precision: int) -> bool:
    """Compare answers as Math-Verify does, but that some of them end the process."""
    if "bomb" in (golden, *stated):
        os._exit(1)
    if "kill" in stated:
        os.kill(os.getpid(), signal.SIGKILL)
    if "raise" in stated:
        raise OSError("no space left on device")
    return stated == [golden]


def spins() -> None:
    while True:
        pass


def allocates() -> int:
    return len(bytearray(1 << 40))


def raises(message: str) -> None:
    raise KeyError(message)


def hang_after_telling(path: str) -> None:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    signal.pause()


def dies(code: int) -> None:
    os._exit(code)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exits() -> None:
    sys.exit("enough")


def unpicklable() -> Any:
    return lambda: 0


def prints() -> str:
    print("said aloud")
    return "done"


@vf.cpu_bound
def long_reply(trace: vf.Trace) -> float:
    """Share of the reply that is there; computed elsewhere."""
    assert os.getpid() != trace.info["caller"]
    return min(1.0, len(trace.reply) / 10)


@vf.cpu_bound(timeout=0.3)
def hangs(trace: vf.Trace) -> float:
    while True:
        pass


@vf.cpu_bound(timeout=600)
def busy(trace: vf.Trace) -> float:
    """Compute until the file is there; return whether that is in another process than the loop."""
    while not os.path.exists(trace.info["until"]):
        pass
    return float(os.getpid() != trace.info["caller"])
