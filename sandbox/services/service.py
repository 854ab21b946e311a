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
PACE = 4 * 2**20  # bytes of it a second: one that writes without end must not keep us busy
SAID = 2000  # characters of it in an error
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between tries of a health check


class Service:
    """A service that is running, or was.

    A service that ends while the episode runs has ended through what ran in it, or was sent to it:
    that is for whoever scores the episode, and no failure.

    Attributes:
        spec: What the Compose file says of it.
        sandbox: Its container. Files of a side service are read and written as root.
        user: Whom its commands run as.
        ended: How its program ended; None while it runs, or where it has none.

    Args:
        spec: What the Compose file says of it.
        sandbox: Its container.
        command: What it runs: nothing where it only waits.
        health: How it shows that it works, if it does.
        user: Whom commands run as; None for the sandbox's own user.
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
        """Put its files there, and start its program.

        Raises:
            OSError: A file does not fit, say, or the container has ended.
            SandboxError: The container is lost.
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
        """Wait until its health check succeeds; at once where it has none.

        It is tried more often than the file says, so that nobody waits longer than need be, and
        for as long as the file says.

        Raises:
            SandboxError: It has not when its time is over, or its program has failed.
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
                said = (done.stdout + done.stderr)[-SAID:].strip()
                raise self._error(f"is not healthy after {patience:.0f} s: {said}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE, health.interval)

    async def completed(self) -> None:
        """Wait until its program has ended well.

        Raises:
            SandboxError: It has ended otherwise.
        """
        if self._task is not None:
            await asyncio.shield(self._task)
        if self.ended is None or not self.ended.ok:
            raise self._error("has not completed")

    def check(self) -> None:
        """Make sure that it runs, or has ended well.

        Raises:
            SandboxError: It has not.
        """
        if self.ended is not None and not self.ended.ok:
            raise self._error("has ended")

    async def leave(self) -> None:
        """Follow its program no more."""
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

    def _error(self, what: str) -> SandboxError:
        code = "" if self.ended is None else f" (exit code {self.ended.returncode})"
        said = self.log[-SAID:].strip() or "nothing"
        return SandboxError(f"the service {self.spec.name!r} {what}{code}; it wrote: {said}")

    async def _copy(self, source: Path, target: str) -> None:
        if await asyncio.to_thread(source.is_dir):
            await self.sandbox.upload(source, target, leave_out=())
            return
        with tempfile.TemporaryDirectory(prefix="vf-") as folder:
            place = PurePosixPath(target)
            await asyncio.to_thread(shutil.copy, source, Path(folder, place.name))
            await self.sandbox.upload(folder, str(place.parent), leave_out=())

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
