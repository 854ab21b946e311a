"""Agents for `test_processes.py`: their processes import this module."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import aiohttp

import vf
from vf.runtime.errors import ToolFailure

LOADED = bool(os.environ.get("VF_TEST_UNUSABLE")) and 1 / 0  # as the test of a failing import wants


async def ask(endpoint: vf.Endpoint) -> str:
    """Ask without a client library, whose import takes long."""
    asked = {"model": endpoint.model, "messages": [{"role": "user", "content": "Go."}]}
    key = {"Authorization": f"Bearer {endpoint.key}"}
    async with (
        aiohttp.ClientSession(headers=key, raise_for_status=True) as session,
        session.post(f"{endpoint.url}/chat/completions", json=asked) as response,
    ):
        answer = await response.json()
    return str(answer["choices"][0]["message"]["content"])


@vf.agent
async def solve(task: vf.Task, endpoint: vf.Endpoint) -> str:
    return f"{await ask(endpoint)} {task.answer} {os.getpid()}"


@vf.agent
def solve_in_a_thread(task: vf.Task, endpoint: vf.Endpoint) -> str:
    return asyncio.run(solve(task, endpoint))


@vf.agent
async def meet(task: vf.Task, endpoint: vf.Endpoint) -> str:
    """End when as many are at work as the task says: they must run at once, and in one process."""
    said = await ask(endpoint)
    MET.append(task.id)
    if len(MET) == task.info["all"]:
        ALL.set()
    await ALL.wait()
    return said


MET: list[str] = []
ALL = asyncio.Event()


@vf.agent
async def begin(task: vf.Task, endpoint: vf.Endpoint) -> str:
    """Say whether another one has begun before this one came to wait for something."""
    BEGUN.append(task.id)
    for _ in range(20):
        await asyncio.sleep(0)
    alone = BEGUN[-1] == task.id
    await ask(endpoint)
    return f"alone: {alone}"


BEGUN: list[str] = []


@vf.agent
async def crash(task: vf.Task, endpoint: vf.Endpoint) -> None:
    if task.info.get("answered"):
        await ask(endpoint)
    raise KeyError("missing")


@vf.agent
async def fail(task: vf.Task, endpoint: vf.Endpoint) -> None:
    await ask(endpoint)
    raise ToolFailure("the tool's server is down")


@vf.agent
async def number(task: vf.Task, endpoint: vf.Endpoint) -> Any:
    await ask(endpoint)
    return 4


@vf.agent
async def wait(task: vf.Task, endpoint: vf.Endpoint) -> None:
    """Start a program and wait, and leave a note on the way out."""
    folder = Path(task.info["folder"])
    await ask(endpoint)
    program = await asyncio.create_subprocess_exec("sleep", "1000")
    (folder / "pids.part").write_text(f"{os.getpid()} {program.pid}")
    (folder / "pids.part").rename(folder / "pids")
    try:
        await asyncio.Event().wait()
    finally:
        program.kill()
        await program.wait()
        (folder / "stopped").touch()


@vf.agent
async def block(task: vf.Task, endpoint: vf.Endpoint) -> None:
    """Hold up the whole event loop."""
    await ask(endpoint)
    threading.Event().wait()


@vf.agent
async def die(task: vf.Task, endpoint: vf.Endpoint) -> str:
    """End the whole process if the task says so."""
    if task.info.get("answered", True):
        await ask(endpoint)
    if task.info.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return str(os.getpid())
