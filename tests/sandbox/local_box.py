"""A sandbox on this machine for tests, and a way to find what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from vf.sandbox.local import UnsafeLocalSandbox

T = TypeVar("T")


def inside(body: Callable[[UnsafeLocalSandbox], Awaitable[T]]) -> T:
    """Run a coroutine function with a fresh sandbox."""

    async def run() -> T:
        async with UnsafeLocalSandbox(unsafe_local=True) as box:
            return await body(box)

    return asyncio.run(run())


@contextlib.asynccontextmanager
async def boxes(count: int) -> AsyncIterator[list[UnsafeLocalSandbox]]:
    """Open so many sandboxes, for calls that wait beside each other."""
    async with contextlib.AsyncExitStack() as stack:
        made = [UnsafeLocalSandbox(unsafe_local=True) for _ in range(count)]
        yield await asyncio.gather(*map(stack.enter_async_context, made))


def running(mark: str) -> list[int]:
    """Return the pids of living processes that have this text among their arguments."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if mark.encode() in (folder / "cmdline").read_bytes() and state not in "ZX":
                    found.append(int(folder.name))
    return found


def mark(number: int) -> str:
    """Return a time in seconds to `sleep`, by which the sleepers of this process can be found.

    Other test processes run the same tests meanwhile. No mark is part of another.
    """
    return f"{number}{os.getpid():07d}.5"


def child_of(pid: int) -> int:
    """Return the pid of a process's first child."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def numbers_of(pid: int) -> list[str]:
    """Return a process's pids, from this machine's PID namespace to its own."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a command that has ended
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(line.split()[1:] for line in lines if line.startswith("NSpid:"))
    return []
