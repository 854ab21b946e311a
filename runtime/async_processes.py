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
import json
import math
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

from vf.runtime import lifeline
from vf.runtime.batching import PerLoop
from vf.runtime.errors import ConfigError, RemoteError, WorkerLost
from vf.runtime.own_deadline import own_deadline
from vf.runtime.peers import Peer
from vf.runtime.worker_handles import import_path

START_TIMEOUT = 120.0  # seconds for a process to start and import the function's module
HEAR_TIMEOUT = 10.0  # seconds for its loop to notice that a call was cancelled
END_TIMEOUT = 1.0  # seconds for a process to end by itself, when its loop ends
_COMMAND = (
    "import json, sys; fd, sys.path[:] = json.loads(sys.argv[1]); "
    "from vf.runtime.async_worker import serve; serve(fd)"
)


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
            VfError: If the function raised it.
            RemoteError: If the function raised anything else, or its process ended.
            ConfigError: If the function cannot be imported, or the arguments cannot be pickled.
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
        text: str | None = await self._child(index).call(packed)
        return text

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
    """One process, and the connection to it."""

    def __init__(self, function: tuple[str, str, str | None], what: str) -> None:
        self._function, self._what = function, what
        self.load = 0  # calls under way in it
        self._ready = asyncio.Event()
        # Why no call can be made.
        self._fault: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._peer: Peer
        self._lifeline = -1
        # Not in the context of the rollout that happens to come first.
        self._task = asyncio.create_task(self._look_after(), context=Context())

    @property
    def ended(self) -> bool:
        return self._fault.done() or self._task.done()

    async def call(self, packed: bytes) -> Any:
        self.load += 1
        try:
            with own_deadline():
                await self._started()
            work = asyncio.create_task(self._peer.call("call", packed))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                await self._cancel(work)
                raise
            except WorkerLost:
                if self._peer.lost is None:  # the function raised it
                    raise
                raise await self._fault from None
        finally:
            self.load -= 1

    async def _started(self) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT) as deadline:
                await self._ready.wait()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            self._kill()
            raise RemoteError(f"{self._what} did not start within {START_TIMEOUT:g} s") from error
        if self._fault.done():
            raise self._fault.result()

    async def _cancel(self, work: asyncio.Task[Any]) -> None:
        """Cancel a call and wait for its end; a process that does not react is killed."""
        work.cancel()
        reaction = asyncio.create_task(self._peer.call("react"))
        ends = asyncio.gather(work, reaction, return_exceptions=True)
        await asyncio.wait([reaction], timeout=HEAR_TIMEOUT)
        if not reaction.done():
            self._fail(
                RemoteError(
                    f"{self._what} was killed: for {HEAR_TIMEOUT:g} s nothing in it could run, "
                    "since a call computed or blocked without awaiting"
                )
            )
            self._kill()
        await ends

    def _fail(self, error: Exception) -> None:
        if not self._fault.done():
            self._fault.set_result(error)

    def _kill(self) -> None:
        """Let the guard end the process at once, with everything that it started."""
        if self._lifeline >= 0:
            with suppress(OSError):  # the guard has ended already
                os.write(self._lifeline, b"x")  # a process that was forked may hold the pipe open
            os.close(self._lifeline)
            self._lifeline = -1

    async def _look_after(self) -> None:
        """Run the process and the connection to it; the end of the event loop is their end."""
        process: asyncio.subprocess.Process | None = None
        serving: asyncio.Task[None] | None = None
        try:
            process, self._peer = await self._start()
            serving = asyncio.create_task(self._peer.serve())
            with suppress(WorkerLost):  # its exit code says more
                await self._peer.call("load", *self._function)
            self._ready.set()
            await serving
            self._fail(RemoteError(f"{self._what} ended {_ending(await process.wait())}"))
        except OSError as error:
            self._fail(RemoteError(f"{self._what} cannot be started: {error}"))
        except ConfigError as error:
            module, name, _ = self._function
            self._fail(
                ConfigError(f"{self._what}: importing {name} from {module} failed there:\n{error}")
            )
        finally:
            self._fail(RemoteError(f"{self._what} has ended"))
            self._ready.set()
            if serving is not None:
                serving.cancel()  # which closes the connection
            await self._end(process)

    async def _start(self) -> tuple[asyncio.subprocess.Process, Peer]:
        ours, theirs = socket.socketpair()
        reading, self._lifeline = os.pipe()
        guard = [sys.executable, "-I", "-S", lifeline.__file__, str(reading), "0"]
        settings = json.dumps([theirs.fileno(), import_path()])
        try:
            process = await asyncio.create_subprocess_exec(
                *guard,
                *(sys.executable, "-c", _COMMAND, settings),
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
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return process, Peer(reader, writer, {}, self._what, silence=math.inf)

    async def _end(self, process: asyncio.subprocess.Process | None) -> None:
        if process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_TIMEOUT)
        self._kill()
        if process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), lifeline.KILL_SECONDS)


def _ending(code: int) -> str:
    number = code - 128 if code > 128 else -code
    with suppress(ValueError):
        name = signal.Signals(number).name
        memory = ", perhaps because memory ran out" if name == "SIGKILL" else ""
        return f"with {name}{memory}"
    return f"with exit code {code}"
