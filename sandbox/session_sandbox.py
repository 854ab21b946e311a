"""The contract over a session: what the sandboxes that have a supervisor share."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Self, TypeVar

from vf.runtime.errors import SandboxError
from vf.sandbox.contract import LEFT_OUT, Address, ExecResult
from vf.sandbox.folder import UNPACK, UNPACK_FAILED, pack
from vf.sandbox.session import Session

T = TypeVar("T")

UPLOAD_TIMEOUT = 120.0  # seconds
KILLED = 137  # what a shell says of a program that SIGKILL ended


class Ended(Exception):
    """The sandbox has ended through what ran in it; the message says how."""


class SessionSandbox(ABC):
    """Implements :class:`~vf.sandbox.contract.Sandbox`, but for its beginning and its end.

    A sandbox that is lost is judged once: see :meth:`_judge`. It is then closed in the background,
    since whatever survives in there must not; nobody waits for that to learn of the loss.

    Attributes:
        name: What error messages call it.
    """

    def __init__(self, name: str, session: Session | None = None) -> None:
        self.name = name
        self._session = session
        self._used = False  # whether anybody's code has run in it
        self._verdict: asyncio.Future[Ended | SandboxError] | None = None
        self._closed = False  # by its owner
        self._closing: asyncio.Future[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether it can be used, for all that is known."""
        return self._closing is None and self._session is not None and self._session.lost is None

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
    ) -> ExecResult:
        """Run a program to its end; see :meth:`Sandbox.exec`."""
        return await self._run(
            lambda session: session.exec(
                cmd,
                input=input,
                cwd=cwd,
                env=env,
                timeout=timeout,
                user=user,
                max_output=max_output,
            )
        )

    async def python(self, code: str, *, timeout: float = 30.0) -> ExecResult:
        """Run code in a lasting interpreter; see :meth:`Sandbox.python`."""
        return await self._run(lambda session: session.python(code, timeout=timeout))

    async def bash(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """Run a command in a lasting shell; see :meth:`Sandbox.bash`."""
        return await self._run(lambda session: session.bash(command, timeout=timeout))

    async def read_file(self, path: str, *, max_bytes: int = 50 * 2**20) -> bytes:
        """Return a file's content; see :meth:`Sandbox.read_file`."""
        try:
            return await self._ask(lambda session: session.read_file(path, max_bytes=max_bytes))
        except Ended as end:
            raise FileNotFoundError(errno.ENOENT, str(end), path) from None

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Write a file; see :meth:`Sandbox.write_file`."""
        try:
            await self._ask(lambda session: session.write_file(path, content))
        except Ended as end:
            raise OSError(errno.EIO, str(end), path) from None

    async def upload(
        self,
        folder: str | os.PathLike[str],
        to: str = ".",
        *,
        leave_out: Collection[str] = LEFT_OUT,
        max_bytes: int = 64 * 2**20,
    ) -> None:
        """Copy a folder of this machine's into the sandbox; see :meth:`Sandbox.upload`."""
        data = await asyncio.to_thread(pack, folder, leave_out, max_bytes)
        unpack = ["python3", "-I", "-S", "-c", UNPACK, to]
        try:
            done = await self._ask(
                lambda session: session.exec(unpack, input=data, timeout=UPLOAD_TIMEOUT)
            )
        except Ended as end:
            raise OSError(errno.EIO, str(end), to) from None
        if done.returncode == UNPACK_FAILED:
            number = int(done.stdout)
            raise OSError(number, os.strerror(number), to)
        if not done.ok:
            why = f"the folder could not be unpacked (exit code {done.returncode}): {done.stderr}"
            raise OSError(errno.EIO, why[-2000:], to)

    async def forward(self, address: Address, *, port: int = 0) -> int:
        """Let what runs inside reach one address; see :meth:`Sandbox.forward`."""
        try:
            return await self._ask(lambda session: session.forward(address, port=port))
        except Ended as end:
            raise OSError(errno.EIO, str(end)) from None

    async def close(self) -> None:
        """End it with everything in it. Safe to call twice.

        Raises:
            SandboxError: That is not possible.
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
        """Return what ended the sandbox, if that was not what ran in it; None otherwise.

        Asked once the session is lost. Must answer within seconds.
        """

    def _end(self) -> asyncio.Future[None]:
        if self._closing is None or self._closing.cancelled():
            self._closing = asyncio.ensure_future(self._close())
            # Perhaps nobody awaits it: retrieve a failure, so that asyncio does not log it.
            self._closing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._closing

    async def _run(self, call: Callable[[Session], Awaitable[ExecResult]]) -> ExecResult:
        """Run code; where it ends the sandbox, or has done so before, that is its result."""
        began = time.monotonic()
        self._used |= self.alive
        try:
            return await self._ask(call)
        except Ended as end:
            took = time.monotonic() - began
            return ExecResult(KILLED, stderr=f"[{end}]\n", ended=True, duration=took)

    async def _ask(self, call: Callable[[Session], Awaitable[T]]) -> T:
        """Call the session.

        Raises:
            Ended: The sandbox has ended through what ran in it.
            SandboxError: It is lost for another reason, closed, or was never started.
        """
        if self._session is None or self._closed:
            state = "not started" if self._session is None else "closed"
            raise SandboxError(f"the sandbox {self.name} is {state}")
        if self._verdict is None:
            try:
                return await call(self._session)
            except SandboxError as error:
                if self._closed:
                    raise
                if self._verdict is None:
                    self._verdict = asyncio.ensure_future(self._judge(error))
        verdict = await asyncio.shield(self._verdict)
        raise type(verdict)(*verdict.args)  # a new one each time: tracebacks add up

    async def _judge(self, error: SandboxError) -> Ended | SandboxError:
        """Decide whose doing the loss is, then have the sandbox closed.

        It is the doing of the code that ran in it, unless something outside is known to have failed
        or to have ended it. With the other default code could choose not to be scored: by whatever
        kills a supervisor without a trace.
        """
        outside = await self._outside() if self._used else "no code had run in it"
        self._end()
        if outside is None:
            how = "has ended through what ran in it; its files and state are gone"
            return Ended(f"the sandbox {how}: {error}")
        return SandboxError(f"{error} ({outside})" if self._used else str(error))
