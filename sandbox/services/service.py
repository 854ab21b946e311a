"""One service of an episode: a container that is a sandbox, with the service's program in it.

So a service has what a sandbox has: it ends with its client, has limits and a lifetime. Commands
run beside its program, and files can be read, also once the program has ended.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import Any

from vf.runtime.errors import SandboxError
from vf.sandbox.contract import ExecResult, Process, Sandbox
from vf.sandbox.services.service_spec import Health, ServiceSpec

log = logging.getLogger("vf.sandbox")

LOG = 64 * 2**10  # bytes that are kept of a service's output: the last ones
PACE = 4 * 2**20  # bytes of it a second: endless output must not keep this process busy
ERROR_OUTPUT = 2000  # characters of it in an error
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between tries of a health check


class Service:
    """A service that is running, or has ended.

    A service that ends while the episode runs has ended through what ran in it, or was sent to it:
    that does not count as a failure, and the episode is scored.

    Attributes:
        spec: The service's spec from the Compose file.
        sandbox: Its container. Files of a side service are read and written as root.
        user: The user that its commands run as.
        ended: The result of its program; None while it runs, or if it has none.

    Args:
        spec: The service's spec from the Compose file.
        sandbox: The service's container.
        command: The service's program: empty if it only waits.
        health: The service's health check, if it has one.
        user: The user that commands run as; None for the sandbox's own user.
    """

    def __init__(
        self,
        spec: ServiceSpec,
        sandbox: Sandbox,
        command: tuple[str, ...],
        health: Health | None,
        user: str | None = None,
    ) -> None:
        self.spec, self.sandbox, self.user = spec, sandbox, user
        self.ended: ExecResult | None = None
        self._command, self._health = command, health
        self._log = bytearray()
        self._task: asyncio.Task[None] | None = None

    @property
    def log(self) -> str:
        """The end of what its program has written."""
        return self._log.decode("utf-8", "replace")

    async def exec(self, cmd: list[str] | str, **options: Any) -> ExecResult:
        """Run a command as its user; see :meth:`~vf.sandbox.contract.Sandbox.exec`."""
        return await self.sandbox.exec(cmd, **{"user": self.user, **options})

    async def start(self) -> None:
        """Copy its files to the container, and start its program.

        Raises:
            OSError: If a file does not fit, for instance, or the container has ended.
            SandboxError: If the container is lost.
        """
        with tempfile.TemporaryDirectory(prefix="vf-") as empty:
            for folder in self.spec.folders:
                await self.sandbox.upload(empty, folder)
        for source, target in self.spec.copies:
            await self._copy(source, target)
        if self._command:
            process = await self.sandbox.start(list(self._command), user=self.user)
            self._task = asyncio.get_running_loop().create_task(self._follow(process))

    async def healthy(self) -> None:
        """Wait until its health check succeeds; return at once without one.

        It is tried more often than the file says, for a quick start, and for as long as the file
        says.

        Raises:
            SandboxError: If it is still unhealthy when its time is over, or its program has failed.
        """
        health = self._health
        if health is None or (self.ended is not None and self.ended.ok):
            return
        began, pause = time.monotonic(), FIRST_PAUSE
        patience = health.start_period + health.retries * (health.interval + health.timeout)
        test = health.test if isinstance(health.test, str) else list(health.test)
        while True:
            if self.ended is not None:
                raise self._error("has ended before it was healthy")
            done = await self.exec(test, timeout=health.timeout)
            if done.ok:
                return
            if done.ended or time.monotonic() - began > patience:
                output = (done.stdout + done.stderr)[-ERROR_OUTPUT:].strip()
                raise self._error(f"is not healthy after {patience:.0f} s: {output}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE, health.interval)

    async def completed(self) -> None:
        """Wait until its program has ended well.

        Raises:
            SandboxError: If it has ended otherwise.
        """
        if self._task is not None:
            await asyncio.shield(self._task)
        if self.ended is None or not self.ended.ok:
            raise self._error("has not completed")

    def check(self) -> None:
        """Check that it runs, or has ended well.

        Raises:
            SandboxError: If it has ended otherwise.
        """
        if self.ended is not None and not self.ended.ok:
            raise self._error("has ended")

    async def leave(self) -> None:
        """Stop following its program."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def close(self) -> None:
        """Destroy its container."""
        await self.leave()
        try:
            await self.sandbox.close()
        except SandboxError as error:
            log.warning("the service %r could not be destroyed: %s", self.spec.name, error)

    def _error(self, problem: str) -> SandboxError:
        code = "" if self.ended is None else f" (exit code {self.ended.returncode})"
        output = self.log[-ERROR_OUTPUT:].strip() or "nothing"
        return SandboxError(f"the service {self.spec.name!r} {problem}{code}; it wrote: {output}")

    async def _copy(self, source: Path, target: str) -> None:
        if await asyncio.to_thread(source.is_dir):
            await self.sandbox.upload(source, target, leave_out=())
            return
        with tempfile.TemporaryDirectory(prefix="vf-") as folder:
            path = PurePosixPath(target)
            await asyncio.to_thread(shutil.copy, source, Path(folder, path.name))
            await self.sandbox.upload(folder, str(path.parent), leave_out=())

    async def _follow(self, process: Process) -> None:
        """Keep the end of its output until it ends."""
        read = 0
        try:
            async for piece in process:
                self._log += piece.data
                del self._log[:-LOG]
                read += len(piece.data)
                if read >= LOG:
                    await asyncio.sleep(read / PACE)
                    read = 0
            self.ended = await process.wait()
        except SandboxError as error:
            log.warning("the service %r is lost: %s", self.spec.name, error)
            self.ended = ExecResult(-1, stderr=f"[{error}]\n", ended=True)
