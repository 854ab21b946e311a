"""Images that tasks bring: built from folders or pulled, once however many ask for them."""

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
        log: The file with all that the build has written; None where there was none.
    """

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # the engine writes what a step says on stderr in red


@dataclass(slots=True)
class _Wanted:
    """One image that was asked for."""

    work: asyncio.Task[str]
    asking: int = 0  # how many wait for it
    failed_at: float = 0.0


class Images:
    """Builds and pulls images on one engine.

    Whoever asks for an image that another one asked for waits for the same work, also across
    processes. What failed is remembered for five minutes. Work that is no longer waited for is
    cancelled.

    Args:
        engine: Where.
        at_once: How many are built or pulled at a time.
        pull: Whether an image of a registry that is not there is pulled, also one that a
            Dockerfile starts from: ``"missing"``, or ``"never"``.
        disk: Bytes that the images built or pulled here may have together, beside those that they
            start from. Past it those that were not used for longest are removed.
        folder: Where logs and records are kept; by default ``~/.cache/vf-rl/images``.
        repository: What images are called, before the colon; by default ``vf-build``.
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
        self._places = asyncio.Semaphore(at_once)
        self._wanted: dict[Build | str, _Wanted] = {}
        self._opened: asyncio.Task[Ledger] | None = None
        self._stats = ImageStats()

    def stats(self) -> ImageStats:
        """Return what has happened to the images that were asked for."""
        works = [each.work for each in self._wanted.copy().values()]
        done = [work for work in works if work.done()]
        failed = sum(work.cancelled() or work.exception() is not None for work in done)
        return replace(self._stats, requested=len(works), ready=len(done) - failed, failed=failed)

    async def image(self, wanted: Build | str) -> str:
        """Return the name of an image that is there, built or pulled if need be.

        Args:
            wanted: What it is built from, or its name.

        Raises:
            ConfigError: There is no such folder, Dockerfile or stage; names the field.
            ImageFailed: It cannot be built or pulled; names the log.
            SandboxError: The engine does not answer.
        """
        entry = self._wanted.get(wanted)
        if entry is None or _is_over(entry):
            work = asyncio.create_task(self._make(wanted))
            entry = self._wanted[wanted] = _Wanted(work)
        entry.asking += 1
        try:
            return await asyncio.shield(entry.work)
        except asyncio.CancelledError:
            if entry.work.cancelled():
                raise SandboxError("the engine's images were closed") from None
            if entry.asking == 1:
                self._wanted.pop(wanted, None)  # who asks now waits until this has ended
                entry.work.cancel()
                await asyncio.wait([entry.work])
            raise
        except Exception:
            entry.failed_at = entry.failed_at or time.monotonic()
            raise
        finally:
            entry.asking -= 1

    def forget(self, wanted: Build | str) -> None:
        """Look again, when it is next asked for, whether it is there."""
        entry = self._wanted.get(wanted)
        if entry is not None and entry.work.done():
            del self._wanted[wanted]

    async def close(self) -> None:
        """Cancel what is under way."""
        works = [each.work for each in self._wanted.values()]
        if self._opened is not None:
            works.append(self._opened)  # type: ignore[arg-type]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    async def _make(self, wanted: Build | str) -> str:
        if isinstance(wanted, str):
            return await self._pulled(wanted)
        return await self._built(wanted)

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
            async with self._place(name), ledger.making(name):
                if await self._id(name) is None:
                    await self._fetch(name)
                    ledger.made(name, None)
                    self._count(pulled=1)
            await self._shrink(ledger, name)
        ledger.used(name)
        return name

    async def _fetch(self, name: str) -> None:
        said: list[str] = []

        def note(line: Line) -> None:
            said[:] = [str(line.get("status") or line.get("error") or "")]

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
                f"{''.join(said)}"
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
            async with self._place(build.folder.name), ledger.making(image):
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
                archive.seek(0)
                await self._send(build, image, archive, written)
            except (OSError, SandboxError) as error:
                limit = f"it took longer than its {build.timeout:g} s"
                why = limit if isinstance(error, TimeoutError) else str(error)
                written.write(f"\n{why}\n".encode())
                written.flush()
                raise ImageFailed(_complaint(build, why, path), path) from error

    async def _send(self, build: Build, image: str, archive: IO[bytes], written: IO[bytes]) -> None:
        def note(line: Line) -> None:
            with contextlib.suppress(ValueError):  # it is closed: the build was cancelled
                said = _COLOURS.sub("", str(line.get("stream", "")))
                written.write(said.encode("utf-8", "replace"))
                written.flush()

        await long_call(
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

    @contextlib.asynccontextmanager
    async def _place(self, what: str) -> AsyncIterator[None]:
        """Wait for a place, and say meanwhile what is being done in it."""
        async with self._places:
            began = time.monotonic()
            self._stats = replace(self._stats, busy=(*self._stats.busy, what))
            try:
                yield
            finally:
                busy = list(self._stats.busy)
                busy.remove(what)
                spent = self._stats.seconds + time.monotonic() - began
                self._stats = replace(self._stats, busy=tuple(busy), seconds=spent)

    def _count(self, *, built: int = 0, pulled: int = 0) -> None:
        now = self._stats
        self._stats = replace(now, built=now.built + built, pulled=now.pulled + pulled)

    async def _shrink(self, ledger: Ledger, keep: str) -> None:
        for name in await ledger.shrink(self._engine, self._disk, keep):
            for wanted, entry in list(self._wanted.items()):
                done = entry.work.done() and not entry.work.cancelled()
                if done and entry.work.exception() is None and entry.work.result() == name:
                    del self._wanted[wanted]

    async def _id(self, image: str) -> str | None:
        """Return an image's id; None if it is not there."""
        try:
            return str((await self._engine.call("inspect_image", image))["Id"])
        except EngineRefused as error:
            if error.status == NOT_THERE:
                return None
            raise ImageFailed(f"{image!r} is not the name of an image: {error}") from error


def _is_over(entry: _Wanted) -> bool:
    """Whether the work has failed, long enough ago to be tried again."""
    if not entry.work.done():
        return False
    if entry.work.cancelled():
        return True
    if not isinstance(entry.work.exception(), ImageFailed):
        return entry.work.exception() is not None
    return entry.failed_at > 0 and time.monotonic() - entry.failed_at > RETRY_AFTER


def _complaint(build: Build, why: str, path: Path) -> str:
    lines = path.read_text("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
    hint = ""
    if "BuildKit" in why or "unknown flag: mount" in why or "<<" in why:
        hint = (
            "\nImages are built by the engine's classic builder, which has none of BuildKit's own."
        )
    text = "\n".join(f"  {line}" for line in lines)
    return (
        f"the image of {build.folder} cannot be built: {why}{hint}\n{text}\nThe whole log: {path}"
    )
