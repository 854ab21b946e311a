"""Servers of the tests, and how an episode is run with their tools."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import vf
from tests.waiting import alive, wait_until
from vf.inference.models.scripted_model import Line
from vf.runtime.calling import call

HERE = Path(__file__).parent
HONEST = [sys.executable, str(HERE / "honest_server.py")]
PLENTY = 120.0  # seconds; a machine that runs tests may be slow
TASK = vf.Task("one", "Begin.", answer=None)
COUNT = {"name": "count", "inputSchema": {"type": "object"}}


def odd(**told: Any) -> list[str]:
    """Return the command of a server that works correctly."""
    return [sys.executable, str(HERE / "odd_server.py"), json.dumps({"tools": [COUNT]} | told)]


def tools(command: Sequence[str] | None = None, **settings: Any) -> vf.McpTools:
    """Return a tool set that has time."""
    return vf.McpTools(command, **({"start_timeout": PLENTY, "timeout": PLENTY} | settings))


class Desk(vf.Environment):
    """An environment with these tools and no others."""

    tool_timeout = PLENTY

    def __init__(self, *sets: vf.McpTools) -> None:
        self.tools = sets


async def check(environment: vf.Environment) -> None:
    """Look whether its tools can be had, as before a run."""
    await call(environment.check)


async def play(environment: vf.Environment, *script: Line) -> vf.Trace:
    """Run one episode."""
    return await vf.rollout(environment, TASK, vf.ScriptedModel(script))


def told(trace: vf.Trace) -> list[str]:
    """Return what the tools answered."""
    assert trace.error is None, trace.error.message
    return [message.content for message in trace.messages if message.role == "tool"]


def is_gone(pid: int) -> bool:
    """Wait for the end of a process that has been killed."""
    return wait_until(lambda: not alive(pid))


def running(word: str) -> list[int]:
    """Return the processes that have a word in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and word in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid() and alive(pid)]


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str], list[str]]]:
    """Serve the honest server over HTTP; yield its address, its process and its log so far."""
    server = subprocess.Popen(
        [*HONEST, "0", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        said: list[str] = []
        for line in server.stderr:
            said.append(line)
            if found := re.search(r"running on (http://[\d.:]+)", line):
                break
        else:
            raise AssertionError(f"the server did not start: {said}")
        # Read on: a server whose pipe is full blocks.
        threading.Thread(target=said.extend, args=(server.stderr,), daemon=True).start()
        yield found[1], server, said
    finally:
        server.kill()
        server.wait(60)
