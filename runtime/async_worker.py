"""The other end of :mod:`vf.runtime.async_processes`: many calls of a function in one loop."""

from __future__ import annotations

import asyncio
import importlib
import json
import operator
import os
import pickle
import selectors
import signal
import socket
import struct
import time
import traceback
from collections import deque
from functools import partial
from typing import Any

from vf.runtime import errors
from vf.runtime.calling import call_for_text
from vf.runtime.garbage import fewer_collections

CALL, CANCEL = "call", "cancel"  # what comes in, pickled: (CALL, number, args), (CANCEL, number)
# What goes out, in JSON: [kind, number, ...].
READY, UNUSABLE, HEARD, DONE, RAISED = "ready", "unusable", "heard", "done", "raised"
_LONGEST_TURN = 0.05  # seconds of CPU, after which another call begins also in a busy loop
_LENGTH = struct.Struct("!Q")


async def receive(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next message; None when the other end has closed."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def send(writer: asyncio.StreamWriter, message: bytes) -> None:
    """Send a message, without waiting for it to be read."""
    writer.write(_LENGTH.pack(len(message)) + message)


def serve(fd: int, module: str, name: str, file: str | None) -> None:
    """Call a function as often as the socket asks, until its other end closes.

    Args:
        fd: The socket.
        module: The function's module.
        name: Its qualified name there.
        file: The file that the module must be from.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    ours = socket.socket(fileno=fd)
    ours.set_inheritable(False)  # else a program that a call starts could keep it open
    turns = _Turns()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        runner.run(_serve(ours, module, name, file, turns))


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


async def _serve(
    ours: socket.socket, module: str, name: str, file: str | None, turns: _Turns
) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        fn = _find(module, name, file)
    except (Exception, SystemExit) as error:  # whatever the author's code raises
        _answer(writer, UNUSABLE, 0, errors.author_lines(error, module))
        await writer.drain()
        return
    _answer(writer, READY, 0)
    calls: dict[int, asyncio.Task[None]] = {}
    with fewer_collections():
        while (message := await receive(reader)) is not None:
            kind, number, *args = pickle.loads(message)
            if kind == CALL:
                work = _call(writer, number, fn, args[0], turns)
                calls[number] = asyncio.create_task(work)
                calls[number].add_done_callback(partial(_end, writer, calls, number))
            else:
                _answer(writer, HEARD, number)  # which shows that this loop is alive
                if number in calls:
                    calls[number].cancel()


def _end(
    writer: asyncio.StreamWriter,
    calls: dict[int, asyncio.Task[None]],
    number: int,
    call: asyncio.Task[None],
) -> None:
    del calls[number]
    if call.cancelled():  # before it began, so it has not answered
        _answer(writer, RAISED, number, "CancelledError", "", "", False)


def _find(module: str, name: str, file: str | None) -> Any:
    loaded = importlib.import_module(module)
    there = getattr(loaded, "__file__", None)
    if file is not None and not (there and os.path.samefile(there, file)):
        raise ImportError(f"{module} is {there} here, and not {file}")
    return operator.attrgetter(name)(loaded)


async def _call(
    writer: asyncio.StreamWriter, number: int, fn: Any, packed: bytes, turns: _Turns
) -> None:
    try:
        await turns.begin()
        _answer(writer, DONE, number, await call_for_text(fn, *pickle.loads(packed)))
    except BaseException as error:
        kind = type(error)
        shown = kind.__name__, str(error), "".join(traceback.format_exception(error))
        _answer(writer, RAISED, number, *shown, kind.__module__ == errors.__name__)
        if not isinstance(error, Exception | asyncio.CancelledError):
            raise


def _answer(writer: asyncio.StreamWriter, *message: Any) -> None:
    send(writer, json.dumps(message).encode())
