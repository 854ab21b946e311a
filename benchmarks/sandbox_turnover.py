"""How many sandboxes are made, used once and ended a second, and what memory one takes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.opening import open_engine
from vf.sandbox.contract import OpenSandbox, Sandbox
from vf.sandbox.hosting.source import open_sandbox

AT_ONCE = 4
MANY = 8  # times as many without an engine: they are cheaper
STEADY = 1.0  # MiB; less than this changes in a second once what has ended is freed


async def turnover(opened: OpenSandbox, count: int) -> float:
    """Make, use and end so many sandboxes, four at a time; return how many that is a second."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with slots, opened() as box:
            assert (await box.exec(["true"])).ok

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return round(count / (time.perf_counter() - began), 1)


async def memory_each(opened: OpenSandbox, count: int) -> float:
    """Return what so many idle sandboxes take of the host's memory, MiB each."""
    before = await steady_mib()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(opened())
        return round((before - await steady_mib()) / count, 1)


async def turnovers(count: int) -> dict[str, dict[str, float]]:
    """Do so with containers and with namespaces, of which also the memory is measured."""
    async with open_engine(Profile()) as (engine, profile):

        @contextlib.asynccontextmanager
        async def container() -> AsyncIterator[Sandbox]:
            async with await DockerSandbox.create(engine, profile) as box:
                yield box

        containers = await turnover(container, count)
    bubblewrap = partial(open_sandbox, "bubblewrap")
    return {
        "ours": {"per_s": containers},
        "bubblewrap": {
            "per_s": await turnover(bubblewrap, MANY * count),
            "host_mib_each": await memory_each(bubblewrap, MANY * count),
        },
    }


async def steady_mib() -> float:
    """Return the memory that the host has left, once that changes no more."""
    before = available_mib()
    while True:
        await asyncio.sleep(1.0)
        now = available_mib()
        if abs(now - before) < STEADY:
            return now
        before = now


def available_mib() -> float:
    """Return the memory that the host has left."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvail")) / 1024
