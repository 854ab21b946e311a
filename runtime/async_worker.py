"""The other end of :mod:`vf.runtime.async_processes`: many calls of a function in one loop."""

from __future__ import annotations

import asyncio
import importlib
import math
import operator
import os
import pickle
import selectors
import signal
import socket
import time
from collections import deque
from contextlib import ExitStack
from typing import Any

from vf.runtime.calling import call_for_text
from vf.runtime.errors import ConfigError, author_lines
from vf.runtime.garbage import fewer_collections
from vf.runtime.peers import Handler, Peer

_LONGEST_TURN = 0.05  # seconds of CPU, after which another call begins also in a busy loop


def serve(fd: int) -> None:
    """Call a function as often as the socket asks, until its other end closes.

    Args:
        fd: The socket.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    ours = socket.socket(fileno=fd)
    ours.set_inheritable(False)  # else a program that a call starts could keep it open
    turns = _Turns()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        runner.run(_serve(ours, turns))


class _Turns(selectors.DefaultSelector):
    """Lets calls begin one after the other, each when there is nothing else to do in the loop.

    Those that begin together would come to their first wait together, and until then leave idle
    whatever they wait for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[asyncio.Event] = deque()
        self._latest = 0.0

    async def begin(self) -> None:
        """Wait for a turn to begin."""
        turn = asyncio.Event()
        self._waiting.append(turn)
        await turn.wait()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Do what the loop asks for; where it has nothing to do, or not for long, call the next."""
        busy = timeout is not None and timeout <= 0
        if not self._waiting or (busy and time.process_time() < self._latest + _LONGEST_TURN):
            return super().select(timeout)
        events = super().select(0)
        if not events or busy:
            self._waiting.popleft().set()
            self._latest = time.process_time()
        return events


async def _serve(ours: socket.socket, turns: _Turns) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    fn: Any = None
    with ExitStack() as stack:

        async def load(module: str, name: str, file: str | None) -> None:
            nonlocal fn
            try:
                fn = _find(module, name, file)
            except (Exception, SystemExit) as error:  # whatever the author's code raises
                raise ConfigError(author_lines(error, module)) from None
            stack.enter_context(fewer_collections())

        async def call(packed: bytes) -> str | None:
            await turns.begin()
            return await call_for_text(fn, *pickle.loads(packed))

        async def react() -> None:
            """Show that this loop is alive."""

        handlers: dict[str, Handler] = {"load": load, "call": call, "react": react}
        await Peer(reader, writer, handlers, silence=math.inf).serve()


def _find(module: str, name: str, file: str | None) -> Any:
    loaded = importlib.import_module(module)
    there = getattr(loaded, "__file__", None)
    if file is not None and not (there and os.path.samefile(there, file)):
        raise ImportError(f"{module} is {there} here, and not {file}")
    return operator.attrgetter(name)(loaded)
