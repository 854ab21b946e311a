"""The contract over a session: the common part of sandboxes with a supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, Self, TypeVar

from vf.runtime.errors import HostLost, SandboxError
from vf.sandbox.contract import LEFT_OUT, Address, ExecResult, Output, Process
from vf.sandbox.folder import Unpack, pack
from vf.sandbox.process import SessionProcess
from vf.sandbox.session import Session

log = logging.getLogger("vf.sandbox")

T = TypeVar("T")

# The sandbox's names may conflict with existing ones here, which is not this machine's failure.
IN_THE_WAY = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)
KILLED = 137  # a shell's exit code for a program that SIGKILL ended


class Ended(Exception):
    """The sandbox has ended because of what ran in it; the message says how."""


class SessionSandbox(ABC):
    """Implements :class:`~vf.sandbox.contract.Sandbox`, except for its beginning and its end.

    A lost sandbox is judged once: see :meth:`_judge`. It is then closed in the background, since
    nothing in it may survive; callers get the error without waiting for that.

    Attributes:
        name: Its name in error messages.
    """

    def __init__(self, name: str, session: Session | None = None) -> None:
        self.name = name
        self._session = session
        self._used = False  # whether code has run in it
        self._verdict: asyncio.Future[Ended | SandboxError] | None = None
        self._closed = False  # by its owner
        self._closing: asyncio.Future[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether it can be used, as far as this process knows."""
        return self._closing is None and self._session is not None and self._session.lost is None

    @property
    def closed(self) -> bool:
        """Whether its owner has closed it."""
        return self._closed

    async def exec(
        self,
        cmd: list[str] | str,
        *,
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        user: str | None = None,
        max_output: int = 100_000,
        on_output: Callable[[Output], None] | None = None,
    ) -> ExecResult:
        """Run a program to completion; see :meth:`Sandbox.exec`."""
        return await self._run(
            lambda session: session.exec(
                cmd,
                input=input,
                cwd=cwd,
                env=env,
                timeout=timeout,
                user=user,
                max_output=max_output,
                on_output=on_output,
            )
        )

    async def start(
        self,
        cmd: list[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Process:
        """Start a program in the background; see :meth:`Sandbox.start`."""
        self._used |= self.alive
        process = await self._operate(
            lambda session: session.start(cmd, cwd=cwd, env=env, user=user)
        )
        return SandboxProcess(self, process)

    async def python(self, code: str, *, timeout: float = 30.0) -> ExecResult:
        """Run code in the persistent interpreter; see :meth:`Sandbox.python`."""
        return await self._run(lambda session: session.python(code, timeout=timeout))

    async def bash(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """Run a command in the persistent shell; see :meth:`Sandbox.bash`."""
        return await self._run(lambda session: session.bash(command, timeout=timeout))

    async def read_file(self, path: str, *, max_bytes: int = 50 * 2**20) -> bytes:
        """Return a file's content; see :meth:`Sandbox.read_file`."""
        return await self._operate(
            lambda session: session.read_file(path, max_bytes=max_bytes), path, errno.ENOENT
        )

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Write a file; see :meth:`Sandbox.write_file`."""
        await self._operate(lambda session: session.write_file(path, content), path)

    async def upload(
        self,
        folder: str | os.PathLike[str],
        to: str = ".",
        *,
        leave_out: Collection[str] = LEFT_OUT,
        max_bytes: int = 64 * 2**20,
    ) -> None:
        """Copy a folder of this machine into the sandbox; see :meth:`Sandbox.upload`."""
        data = await asyncio.to_thread(pack, folder, leave_out, max_bytes)
        await self._operate(lambda session: session.unpack(to, data), to)

    async def download(
        self,
        path: str,
        to: str | os.PathLike[str],
        *,
        leave_out: Collection[str] = (),
        max_bytes: int = 64 * 2**20,
    ) -> None:
        """Copy a folder of the sandbox to this machine; see :meth:`Sandbox.download`."""
        data = await self._operate(
            lambda session: session.pack(path, leave_out=leave_out, max_bytes=max_bytes),
            path,
            errno.ENOENT,
        )
        await asyncio.to_thread(_unpack, data, path, to)

    async def snapshot(self) -> str:
        """Save the state of its files, if possible; see :meth:`Sandbox.snapshot`."""
        raise NotImplementedError(f"{type(self).__name__} cannot keep the state of its files")

    async def end_programs(self) -> None:
        """Kill every program that runs; see :meth:`~vf.sandbox.audit.Auditable.end_programs`."""
        await self._operate(lambda session: session.end_programs())

    async def forward(self, address: Address, *, port: int = 0) -> int:
        """Let programs inside reach one address; see :meth:`Sandbox.forward`."""
        return await self._operate(lambda session: session.forward(address, port=port))

    async def close(self) -> None:
        """End it with everything in it. Safe to call twice.

        Raises:
            SandboxError: If it cannot be ended.
        """
        self._closed = True
        await asyncio.shield(self._end())

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""
        await self.close()

    @abstractmethod
    async def _close(self) -> None:
        """End it: called once, or again if it was cancelled."""

    @abstractmethod
    async def _outside(self) -> str | None:
        """Return the external cause of the sandbox's end; None if what ran in it ended it.

        Called once the session is lost. Must return within seconds.

        Raises:
            HostLost: If the machine that it was on, or the connection to it, is lost.
        """

    def _end(self) -> asyncio.Future[None]:
        if self._closing is None or self._closing.cancelled():
            self._closing = asyncio.ensure_future(self._close())
            # It may never be awaited: retrieve a failure, so that asyncio does not log it.
            self._closing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._closing

    async def _run(self, call: Callable[[Session], Awaitable[ExecResult]]) -> ExecResult:
        """Run code; if the sandbox has ended because of code, that is the result."""
        began = time.monotonic()
        self._used |= self.alive
        try:
            return await self._ask(call)
        except Ended as end:
            return _ended(end, began)

    async def _ask(self, call: Callable[[Session], Awaitable[T]]) -> T:
        """Call the session.

        Raises:
            Ended: If the sandbox has ended because of what ran in it.
            SandboxError: If it is lost for another reason, closed, or was never started.
        """
        if self._session is None or self._closed:
            state = "not started" if self._session is None else "closed"
            raise SandboxError(f"the sandbox {self.name} is {state}")
        if self._verdict is None:
            try:
                return await call(self._session)
            except SandboxError as error:
                raise await self.judged(error) from None
        raise await self.judged(SandboxError("it was lost before"))

    async def _operate(
        self,
        call: Callable[[Session], Awaitable[T]],
        path: str | None = None,
        code: int = errno.EIO,
    ) -> T:
        """Call the session; in a sandbox that has ended, the operation fails as an OSError."""
        try:
            return await self._ask(call)
        except Ended as end:
            raise OSError(code, str(end), path) from None

    async def judged(self, error: SandboxError) -> Ended | SandboxError:
        """Return the error for the loss of the session."""
        if self._closed:
            return error
        if self._verdict is None:
            self._verdict = asyncio.ensure_future(self._judge(error))
        verdict = await asyncio.shield(self._verdict)
        return type(verdict)(*verdict.args)  # a new one each time: tracebacks add up

    async def _judge(self, error: SandboxError) -> Ended | SandboxError:
        """Decide what caused the loss, then close the sandbox.

        The code that ran in it caused it, unless an external failure or end is known. With the
        opposite default, code could avoid being scored by killing a supervisor without a trace.
        """
        try:
            outside = await self._outside()
        except HostLost as lost:
            self._end()
            return HostLost(f"{error} ({lost})")
        self._end()
        if not self._used:  # then no code had run in it
            return SandboxError(*error.args)
        if outside is None:
            message = "has ended through what ran in it; its files and state are gone"
            return Ended(f"the sandbox {message}: {error}")
        return SandboxError(f"{error} ({outside})")


def _unpack(data: bytes, path: str, to: str | os.PathLike[str]) -> None:
    """Unpack a sandbox's records into a folder here. Blocks.

    Raises:
        OSError: If existing files here, and those of the sandbox, do not fit together.
        SandboxError: If this machine fails to write it.
    """
    try:
        with contextlib.closing(Unpack(os.fspath(to), foreign=True)) as folder:
            folder.feed(data)
            folder.finish()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in IN_THE_WAY:
            raise
        raise SandboxError(
            f"{path!r} could not be written to {os.fspath(to)!r}: {error}"
        ) from error


class SandboxProcess:
    """Implements :class:`~vf.sandbox.contract.Process` for a sandbox that judges its own loss.

    Args:
        sandbox: The sandbox that it runs in.
        process: The program, for the sandbox's session.
    """

    def __init__(self, sandbox: SessionSandbox, process: SessionProcess) -> None:
        self._sandbox, self._process = sandbox, process
        self._began = time.monotonic()

    async def __aiter__(self) -> AsyncGenerator[Output]:
        """Yield its output; see :meth:`Process.__aiter__`."""
        async with contextlib.aclosing(aiter(self._process)) as pieces:
            try:
                async for piece in pieces:
                    yield piece
            except SandboxError as error:
                if not isinstance(verdict := await self._sandbox.judged(error), Ended):
                    raise verdict from error

    async def write(self, data: bytes) -> None:
        """Send bytes to its standard input; see :meth:`Process.write`."""
        try:
            await self._process.write(data)
        except SandboxError as error:
            verdict = await self._sandbox.judged(error)
            if isinstance(verdict, Ended):
                raise BrokenPipeError(errno.EPIPE, str(verdict)) from error
            raise verdict from error

    async def end_input(self) -> None:
        """Close its standard input."""
        await self._process.end_input()

    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        """Wait until it has ended; see :meth:`Process.wait`."""
        try:
            return await self._process.wait(timeout=timeout)
        except SandboxError as error:
            verdict = await self._sandbox.judged(error)
            if isinstance(verdict, Ended):
                return _ended(verdict, self._began)
            raise verdict from error

    async def kill(self) -> None:
        """End it with everything that it started; see :meth:`Process.kill`."""
        try:
            await self._process.kill()
        except SandboxError as error:
            verdict = await self._sandbox.judged(error)
            if not (isinstance(verdict, Ended) or self._sandbox.closed):
                raise verdict from error


def _ended(end: Ended, began: float) -> ExecResult:
    return ExecResult(KILLED, stderr=f"[{end}]\n", ended=True, duration=time.monotonic() - began)


async def see_through(work: Coroutine[Any, Any, None]) -> None:
    """Wait for the end of a sandbox, even if this is cancelled, once or twice."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()):
        log.warning("a sandbox could not be ended: %s", error)
