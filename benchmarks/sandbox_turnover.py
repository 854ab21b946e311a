"""How many sandboxes are made, used once and ended a second, and what memory each takes."""

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


async def turnover(opened: OpenSandbox, count: int) -> dict[str, float]:
    """Make, use and end so many sandboxes, four at a time; return how fast, and their memory."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with slots, opened() as box:
            assert (await box.exec(["true"])).ok

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    per_s = count / (time.perf_counter() - began)
    before = available_mib()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(opened())
        each = (before - available_mib()) / count
    return {"per_s": round(per_s, 1), "host_mib_each": round(each, 1)}


async def turnovers(count: int) -> dict[str, dict[str, float]]:
    """Do so with containers and with namespaces."""
    async with open_engine(Profile()) as (engine, profile):

        @contextlib.asynccontextmanager
        async def container() -> AsyncIterator[Sandbox]:
            async with await DockerSandbox.create(engine, profile) as box:
                yield box

        return {
            "ours": await turnover(container, count),
            "bubblewrap": await turnover(partial(open_sandbox, "bubblewrap"), count),
        }


def available_mib() -> float:
    """Return the memory that the host has left."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvail")) / 1024
