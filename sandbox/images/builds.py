"""Images of tasks: built from folders or pulled, once for all requests."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from vf.runtime.errors import SandboxError
from vf.runtime.workers import in_thread
from vf.sandbox.bounds import DISK, Pull
from vf.sandbox.container.docker_engine import NOT_THERE, Engine, EngineRefused
from vf.sandbox.container.image import BUILD_ATTEMPTS, is_cache_race
from vf.sandbox.images.context import Context, read_context, write_context
from vf.sandbox.images.ledger import Ledger, ledger_of
from vf.sandbox.images.long_call import Line, Refused, long_call
from vf.sandbox.spec import Build
from vf.sandbox.stats import ImageStats

log = logging.getLogger("vf.sandbox")


FOLDER = Path("~/.cache/vf-rl/images")
REPOSITORY = "vf-build"
PULL_TIMEOUT = 1800.0  # seconds
RETRY_AFTER = 300.0  # seconds until what failed is tried again
LAST_LINES = 15  # of a log, in an error
SPOOL = 2**24  # bytes of a context that are kept in memory


class ImageFailed(SandboxError):
    """An image cannot be built or pulled, or no container can be made from it.

    Attributes:
        log: The build's log file; None without a build.
    """

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # the engine prints a step's stderr in red


@dataclass(slots=True)
class _Request:
    """A requested image."""

    work: asyncio.Task[str]
    waiting: int = 0  # callers that wait for it
    failed_at: float = 0.0


class Images:
    """Builds and pulls images on one engine.

    All callers that request the same image wait for the same work, also across processes. A failure
    is remembered for five minutes. Work for which no caller waits any more is cancelled.

    Args:
        engine: The engine that builds and pulls them.
        at_once: The number of builds and pulls at a time.
        pull: Whether a missing image of a registry is pulled, also one that a Dockerfile starts
            from: ``"missing"``, or ``"never"``.
        disk: The bytes that the images built or pulled here may have together, beside those that
            they start from. Beyond that the least recently used ones are removed.
        folder: The folder for logs and records; by default ``~/.cache/vf-rl/images``.
        repository: The images' repository, before the colon; by default ``vf-build``.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        at_once: int = 2,
        pull: Pull = "missing",
        disk: float = DISK,
        folder: Path | None = None,
        repository: str | None = None,
    ) -> None:
        self._engine = engine
        self._pull = pull
        self._disk = disk
        self._folder = folder or FOLDER.expanduser()
        self._repository = repository or REPOSITORY
        self._slots = asyncio.Semaphore(at_once)
        self._requests: dict[Build | str, _Request] = {}
        self._opened: asyncio.Task[Ledger] | None = None
        self._stats = ImageStats()

    def stats(self) -> ImageStats:
        """Return the counts of requested images."""
        works = [request.work for request in self._requests.copy().values()]
        done = [work for work in works if work.done()]
        failed = sum(work.cancelled() or work.exception() is not None for work in done)
        return replace(self._stats, requested=len(works), ready=len(done) - failed, failed=failed)

    async def image(self, source: Build | str) -> str:
        """Build or pull an image unless it is there, and return its name.

        Args:
            source: The build, or the image's name.

        Raises:
            ConfigError: If there is no such folder, Dockerfile or stage; names the field.
            ImageFailed: If it cannot be built or pulled; names the log.
            SandboxError: If the engine does not respond.
        """
        request = self._requests.get(source)
        if request is None or _may_retry(request):
            work = asyncio.create_task(self._make(source))
            request = self._requests[source] = _Request(work)
        request.waiting += 1
        try:
            return await asyncio.shield(request.work)
        except asyncio.CancelledError:
            if request.work.cancelled():
                raise SandboxError("the engine's images were closed") from None
            if request.waiting == 1:
                self._requests.pop(source, None)  # a new request waits until this has ended
                request.work.cancel()
                await asyncio.wait([request.work])
            raise
        except Exception:
            request.failed_at = request.failed_at or time.monotonic()
            raise
        finally:
            request.waiting -= 1

    def forget(self, source: Build | str) -> None:
        """Check again, at the next request, whether an image is there."""
        request = self._requests.get(source)
        if request is not None and request.work.done():
            del self._requests[source]

    async def close(self) -> None:
        """Cancel builds and pulls in progress."""
        works = [request.work for request in self._requests.values()]
        if self._opened is not None:
            works.append(self._opened)  # type: ignore[arg-type]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    async def _make(self, source: Build | str) -> str:
        if isinstance(source, str):
            return await self._pulled(source)
        return await self._built(source)

    async def _ledger(self) -> Ledger:
        if self._opened is None:
            self._opened = asyncio.create_task(ledger_of(self._engine, self._folder))
        return await asyncio.shield(self._opened)

    async def _pulled(self, name: str) -> str:
        ledger = await self._ledger()
        if await self._id(name) is None:
            if self._pull == "never":
                raise ImageFailed(
                    f'the image {name!r} is not on the engine\'s machine, and pull = "never"; run '
                    f"`docker pull {name}` first"
                )
            async with self._slot(name), ledger.making(name):
                if await self._id(name) is None:
                    await self._fetch(name)
                    ledger.made(name, None)
                    self._count(pulled=1)
            await self._shrink(ledger, name)
        ledger.used(name)
        return name

    async def _fetch(self, name: str) -> None:
        last_status: list[str] = []

        def note(line: Line) -> None:
            last_status[:] = [str(line.get("status") or line.get("error") or "")]

        log.info("pulling the image %s", name)
        try:
            await long_call(
                self._engine, "pull", name, stream=True, on_line=note, timeout=PULL_TIMEOUT
            )
        except Refused as error:
            raise ImageFailed(f"the image {name!r} cannot be pulled: {error}") from error
        except TimeoutError:
            raise ImageFailed(
                f"the image {name!r} was not pulled within {PULL_TIMEOUT:g} s; the last word: "
                f"{''.join(last_status)}"
            ) from None

    async def _built(self, build: Build) -> str:
        ledger = await self._ledger()
        try:
            context: Context = await in_thread(read_context, build)
        except OSError as error:
            raise ImageFailed(f"{build.folder} cannot be read: {error}") from error
        ids = []
        for name in context.images:
            await self.image(name)
            ids.append((name, await self._id(name)))
        digest = hashlib.sha256(f"{context.digest} {sorted(ids)}".encode()).hexdigest()
        image = f"{self._repository}:{digest[:24]}"
        if await self._id(image) is None:
            async with self._slot(build.folder.name), ledger.making(image):
                if await self._id(image) is None:  # no other process has built it meanwhile
                    await self._run(context, image, ledger.log_of(image))
                    ledger.made(image, dict(ids).get(context.base or ""))
                    self._count(built=1)
            await self._shrink(ledger, image)
        ledger.made(image, dict(ids).get(context.base or ""))
        return image

    async def _run(self, context: Context, image: str, path: Path) -> None:
        build = context.build
        log.info("building the image of %s; its log: %s", build.folder, path)
        with tempfile.SpooledTemporaryFile(SPOOL) as archive, path.open("wb") as written:
            written.write(f"{image} from {build.folder}\n".encode())
            try:
                await in_thread(write_context, context, archive)
                await self._send(build, image, archive, written)
            except (OSError, SandboxError) as error:
                limit = f"it took longer than its {build.timeout:g} s"
                reason = limit if isinstance(error, TimeoutError) else str(error)
                written.write(f"\n{reason}\n".encode())
                written.flush()
                raise ImageFailed(_build_error(build, reason, path), path) from error

    async def _send(self, build: Build, image: str, archive: IO[bytes], written: IO[bytes]) -> None:
        def note(line: Line) -> None:
            with contextlib.suppress(ValueError):  # it is closed: the build was cancelled
                output = _COLOURS.sub("", str(line.get("stream", "")))
                written.write(output.encode("utf-8", "replace"))
                written.flush()

        for attempt in range(BUILD_ATTEMPTS):
            archive.seek(0)
            try:
                return await long_call(
                    self._engine,
                    "build",
                    fileobj=archive,
                    custom_context=True,
                    dockerfile=build.dockerfile,
                    tag=image,
                    buildargs=dict(build.args),
                    target=build.target,
                    rm=True,
                    forcerm=True,
                    use_config_proxy=True,
                    timeout=build.timeout,
                    on_line=note,
                )
            except Refused as error:
                if attempt == BUILD_ATTEMPTS - 1 or not is_cache_race(str(error)):
                    raise
        return None

    @contextlib.asynccontextmanager
    async def _slot(self, name: str) -> AsyncIterator[None]:
        """Wait for a slot; meanwhile count the image as busy."""
        async with self._slots:
            began = time.monotonic()
            self._stats = replace(self._stats, busy=(*self._stats.busy, name))
            try:
                yield
            finally:
                busy = list(self._stats.busy)
                busy.remove(name)
                spent = self._stats.seconds + time.monotonic() - began
                self._stats = replace(self._stats, busy=tuple(busy), seconds=spent)

    def _count(self, *, built: int = 0, pulled: int = 0) -> None:
        now = self._stats
        self._stats = replace(now, built=now.built + built, pulled=now.pulled + pulled)

    async def _shrink(self, ledger: Ledger, keep: str) -> None:
        for name in await ledger.shrink(self._engine, self._disk, keep):
            for source, request in list(self._requests.items()):
                done = request.work.done() and not request.work.cancelled()
                if done and request.work.exception() is None and request.work.result() == name:
                    del self._requests[source]

    async def _id(self, image: str) -> str | None:
        """Return an image's id; None if it is not there."""
        try:
            return str((await self._engine.call("inspect_image", image))["Id"])
        except EngineRefused as error:
            if error.status == NOT_THERE:
                return None
            raise ImageFailed(f"{image!r} is not the name of an image: {error}") from error


def _may_retry(request: _Request) -> bool:
    """Return whether the work has failed long enough ago to be tried again."""
    if not request.work.done():
        return False
    if request.work.cancelled():
        return True
    if not isinstance(request.work.exception(), ImageFailed):
        return request.work.exception() is not None
    return request.failed_at > 0 and time.monotonic() - request.failed_at > RETRY_AFTER


def _build_error(build: Build, reason: str, path: Path) -> str:
    lines = path.read_text("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
    hint = ""
    if "BuildKit" in reason or "unknown flag: mount" in reason or "<<" in reason:
        hint = (
            "\nImages are built by the engine's classic builder, which has none of BuildKit's own."
        )
    text = "\n".join(f"  {line}" for line in lines)
    return (
        f"the image of {build.folder} cannot be built: {reason}{hint}\n{text}\n"
        f"The whole log: {path}"
    )
