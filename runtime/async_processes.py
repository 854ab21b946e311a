"""A function that mainly waits, called many times concurrently, in separate processes.

What it computes in between, such as the Python of a framework, then competes with this process
for cores only, and not for the interpreter's lock. Unlike those of
:mod:`vf.runtime.process_pool`, which compute one thing at a time, each process has an event loop
with many calls under way.

The processes belong to an event loop and end with it, or with this process, however it ends: a
guard (:mod:`vf.runtime.lifeline`) kills each of them with everything that it started.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import operator
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any

from vf.runtime import async_worker, errors, lifeline
from vf.runtime.async_worker import CALL, CANCEL, HEARD, RAISED, READY, UNUSABLE
from vf.runtime.batching import PerLoop
from vf.runtime.errors import ConfigError, InfrastructureError
from vf.runtime.own_deadline import own_deadline
from vf.runtime.worker_handles import import_path

START_TIMEOUT = 120.0  # seconds for a process to start and import the function's module
HEAR_TIMEOUT = 10.0  # seconds for its loop to notice that a call was cancelled
END_TIMEOUT = 1.0  # seconds for a process to end by itself, when its loop ends
_COMMAND = (
    "import json, sys; fd, sys.path[:], *function = json.loads(sys.argv[1]); "
    "from vf.runtime.async_worker import serve; serve(fd, *function)"
)


class ElsewhereError(Exception):
    """A call failed in its process, or with it.

    Attributes:
        traceback: What was raised there, as Python prints it.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback or message


class AsyncProcesses:
    """Processes that call one function.

    Args:
        fn: A function of a module, sync or async, that returns a text or None.
        count: Number of processes.
        what: The noun for them in errors.
        setting: The setting that asks for them, for the errors.

    Raises:
        ConfigError: If another process cannot import the function.
    """

    def __init__(self, fn: Callable[..., Any], count: int, *, what: str, setting: str) -> None:
        self._function, self._what = locate_function(fn, setting), what
        self._children: PerLoop[list[_Child | None]] = PerLoop(lambda: [None] * count)

    async def start(self) -> None:
        """Start the processes, and don't wait for them."""
        for index in range(len(self._children.get())):
            self._child(index)

    async def call(self, *args: Any) -> str | None:
        """Call the function in the process that has least to do, and return what it returns.

        The start of a process has a deadline of its own.

        Args:
            args: Must be picklable.

        Raises:
            ElsewhereError: If the function raised something, or its process ended.
            InfrastructureError: If the function raised it.
            ConfigError: If the function raised it, cannot be imported, or the arguments cannot be
                pickled.
            asyncio.CancelledError: If the call was cancelled; it has ended.
        """
        try:
            packed = pickle.dumps(args)
        except Exception as error:
            raise ConfigError(
                f"{self._what}: the arguments cannot be sent to a process: {error}"
            ) from error
        children = self._children.get()
        index = min(range(len(children)), key=lambda index: self._child(index).load)
        return await self._child(index).call(packed)

    def _child(self, index: int) -> _Child:
        children = self._children.get()
        child = children[index]
        if child is None or child.ended:
            child = children[index] = _Child(self._function, self._what)
        return child


def locate_function(fn: Callable[..., Any], setting: str) -> tuple[str, str, str | None]:
    """Return a function's module, its name there, and the module's file.

    Raises:
        ConfigError: If it does not have that name there, or another process has no such module.
    """
    module, name = getattr(fn, "__module__", ""), getattr(fn, "__qualname__", "")
    loaded: Any = sys.modules.get(module or "")
    try:
        named = operator.attrgetter(name)(loaded)
    except AttributeError:
        named = None
    if named is not fn or module == "__main__":
        why = (
            "the program's main file, which is not imported"
            if module == "__main__"
            else "not to be found by its name"
        )
        raise ConfigError(
            f"{setting}: a process of its own has to import the function {name or fn!r}, and it is "
            f"{why}. Define it at the top of a module or of the environment's file, or write 0"
        )
    return module, name, getattr(loaded, "__file__", None)


class _Child:
    """One process, and the calls under way in it."""

    def __init__(self, function: tuple[str, str, str | None], what: str) -> None:
        self._function, self._what = function, what
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[str | None]] = {}
        self._heard: dict[int, asyncio.Event] = {}
        self._ready = asyncio.Event()
        self._fault: Exception | None = None  # why no call can be made
        self._writer: asyncio.StreamWriter | None = None
        self._lifeline = -1
        # Not in the context of the rollout that happens to come first.
        self._task = asyncio.create_task(self._look_after(), context=Context())

    @property
    def load(self) -> int:
        return len(self._calls)

    @property
    def ended(self) -> bool:
        return self._fault is not None or self._task.done()

    async def call(self, packed: bytes) -> str | None:
        number = next(self._numbers)
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        try:
            with own_deadline():
                await self._started()
            self._send(CALL, number, packed)
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                await self._cancel(number, future)
                raise
            return future.result()
        finally:
            self._calls.pop(number, None)
            if future.done() and not future.cancelled():
                future.exception()  # it is known by now, or does not matter any more

    async def _started(self) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT) as deadline:
                await self._ready.wait()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            self._kill()
            raise ElsewhereError(
                f"{self._what} did not start within {START_TIMEOUT:g} s"
            ) from error
        if self._fault is not None:
            raise self._fault

    async def _cancel(self, number: int, future: asyncio.Future[str | None]) -> None:
        """Cancel a call and wait for its end; a process that does not react is killed."""
        if future.done():
            return
        heard = self._heard[number] = asyncio.Event()
        self._send(CANCEL, number)
        try:
            async with asyncio.timeout(HEAR_TIMEOUT):
                await heard.wait()
        except TimeoutError:
            self._fault = ElsewhereError(
                f"{self._what} was killed: for {HEAR_TIMEOUT:g} s nothing in it could run, since a "
                "call computed or blocked without awaiting"
            )
            self._kill()
        finally:
            del self._heard[number]
        await asyncio.wait([future])

    def _send(self, *message: Any) -> None:
        if self._writer is not None:
            async_worker.send(self._writer, pickle.dumps(message))

    def _kill(self) -> None:
        """Let the guard end the process at once, with everything that it started."""
        if self._lifeline >= 0:
            with suppress(OSError):  # the guard has ended already
                os.write(self._lifeline, b"x")  # a process that was forked may hold the pipe open
            os.close(self._lifeline)
            self._lifeline = -1

    async def _look_after(self) -> None:
        """Run the process, and take its answers; the end of the event loop is its end."""
        process: asyncio.subprocess.Process | None = None
        try:
            process, reader = await self._start()
            while (message := await async_worker.receive(reader)) is not None:
                self._take(*json.loads(message))
            code = await process.wait()
            self._fault = self._fault or ElsewhereError(f"{self._what} ended {_ending(code)}")
        except OSError as error:
            self._fault = ElsewhereError(f"{self._what} cannot be started: {error}")
        finally:
            self._fault = self._fault or ElsewhereError(f"{self._what} has ended")
            self._ready.set()
            for heard in self._heard.values():
                heard.set()
            for future in self._calls.values():
                if not future.done():
                    future.set_exception(self._fault)
            await self._end(process)

    async def _start(self) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
        ours, theirs = socket.socketpair()
        reading, self._lifeline = os.pipe()
        guard = [sys.executable, "-I", "-S", lifeline.__file__, str(reading), "0"]
        function = json.dumps([theirs.fileno(), import_path(), *self._function])
        try:
            process = await asyncio.create_subprocess_exec(
                *guard,
                *(sys.executable, "-c", _COMMAND, function),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[reading, theirs.fileno()],
                start_new_session=True,  # Ctrl-C is this process's to answer
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(reading)
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        return process, reader

    def _take(self, kind: str, number: int, *answer: Any) -> None:
        future = self._calls.get(number)
        if kind == READY:
            self._ready.set()
        elif kind == UNUSABLE:
            module, name, _ = self._function
            self._fault = ConfigError(
                f"{self._what}: importing {name} from {module} failed there:\n{answer[0]}"
            )
        elif kind == HEARD:
            if number in self._heard:
                self._heard[number].set()
        elif future is None or future.done():
            return
        elif kind == RAISED:
            future.set_exception(_raised(*answer))
        else:
            future.set_result(answer[0])

    async def _end(self, process: asyncio.subprocess.Process | None) -> None:
        if self._writer is not None:
            self._writer.close()
        if process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_TIMEOUT)
        self._kill()
        if process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), lifeline.KILL_SECONDS)


def _raised(name: str, message: str, traceback: str, is_ours: bool) -> Exception:
    """Return what was raised there: the library's own errors as they are."""
    kind = getattr(errors, name, None) if is_ours else None
    if kind is not None and issubclass(kind, InfrastructureError | ConfigError):
        error: Exception = kind(message)
        return error
    return ElsewhereError(f"{name}: {message}", traceback)


def _ending(code: int) -> str:
    number = code - 128 if code > 128 else -code
    with suppress(ValueError):
        name = signal.Signals(number).name
        memory = ", perhaps because memory ran out" if name == "SIGKILL" else ""
        return f"with {name}{memory}"
    return f"with exit code {code}"
