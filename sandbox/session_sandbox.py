"""The contract over a session: what the sandboxes that have a supervisor share."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Self

from vf.runtime.errors import SandboxError
from vf.sandbox.contract import ExecResult
from vf.sandbox.session import Session


class SessionSandbox(ABC):
    """Implements :class:`~vf.sandbox.contract.Sandbox`, but for its beginning and its end.

    A sandbox that is lost is closed at once: whatever survives in there must not.

    Attributes:
        name: What error messages call it.
    """

    def __init__(self, name: str, session: Session | None = None) -> None:
        self.name = name
        self._session = session
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
        async with self._in_use() as session:
            return await session.exec(
                cmd,
                input=input,
                cwd=cwd,
                env=env,
                timeout=timeout,
                user=user,
                max_output=max_output,
            )

    async def python(self, code: str, *, timeout: float = 30.0) -> ExecResult:
        """Run code in a lasting interpreter; see :meth:`Sandbox.python`."""
        async with self._in_use() as session:
            return await session.python(code, timeout=timeout)

    async def bash(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """Run a command in a lasting shell; see :meth:`Sandbox.bash`."""
        async with self._in_use() as session:
            return await session.bash(command, timeout=timeout)

    async def read_file(self, path: str, *, max_bytes: int = 50 * 2**20) -> bytes:
        """Return a file's content; see :meth:`Sandbox.read_file`."""
        async with self._in_use() as session:
            return await session.read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Write a file; see :meth:`Sandbox.write_file`."""
        async with self._in_use() as session:
            await session.write_file(path, content)

    async def close(self) -> None:
        """End it with everything in it. Safe to call twice.

        Raises:
            SandboxError: That is not possible.
        """
        if self._closing is None or self._closing.cancelled():
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    @abstractmethod
    async def _close(self) -> None:
        """End it: called once, or again if it was cancelled."""

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""
        await self.close()

    @contextlib.asynccontextmanager
    async def _in_use(self) -> AsyncIterator[Session]:
        if self._session is None or self._closing is not None:
            state = "not started" if self._session is None else "closed"
            raise SandboxError(f"the sandbox {self.name} is {state}")
        try:
            yield self._session
        except SandboxError as error:
            try:
                await self.close()
            except SandboxError as second:
                raise second from error
            raise
