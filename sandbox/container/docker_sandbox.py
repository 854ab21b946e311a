"""A sandbox that is one container with one held-open stream.

The container's own process is the supervisor: its stdin and stdout are the stream. So the container
cannot outlive its client: when the client closes the stream, or dies however it dies, the
supervisor reads the end of its stdin and exits, and the engine removes the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, BinaryIO, Self, TypeVar

from vf.runtime.errors import ConfigError, HostLost, SandboxError
from vf.sandbox.container.disk import LABEL as DISK_LABEL
from vf.sandbox.container.disk import DiskWatch
from vf.sandbox.container.docker_engine import (
    NOT_THERE,
    Engine,
    EngineProblem,
    EngineRefused,
    ImageMissing,
    ImageUnfit,
)
from vf.sandbox.container.ending import describe_end, ended_from_outside
from vf.sandbox.container.hardening import DEFAULT_IMAGE, KIT_PYTHON, Profile, container_settings
from vf.sandbox.container.kit import KitGone, kit_of
from vf.sandbox.container.reaper import this_process
from vf.sandbox.container.remains import forget, remember_container
from vf.sandbox.container.snapshot import (
    check_lists,
    check_snapshot,
    damaged,
    is_snapshot,
    take_snapshot,
)
from vf.sandbox.container.stream import Stream
from vf.sandbox.contract import Sandbox
from vf.sandbox.session import Session
from vf.sandbox.session_sandbox import Ended, SessionSandbox, see_through

log = logging.getLogger("vf.sandbox")

START_TIMEOUT = 60.0  # seconds until the supervisor must have answered
NO_PROGRAM = ("executable file not found", "no such file or directory")
# Removes the paths that it reads, by their bytes; of a mounted folder, what is in it.
REMOVE = """
import contextlib, os, stat, sys

def remove(path):
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return os.unlink(path)
    mounted = os.path.ismount(path)
    with contextlib.suppress(OSError):
        mounted or os.chmod(path, 0o700)
    for name in os.listdir(path):
        with contextlib.suppress(OSError):
            remove(path + b"/" + name)
    mounted or os.rmdir(path)

sys.setrecursionlimit(10**5)
for path in filter(None, sys.stdin.buffer.read().split(b"\\0")):
    try:
        parent = os.path.dirname(path)
        mode = stat.S_IMODE(os.lstat(parent).st_mode)
        if not (os.access(parent, os.W_OK | os.X_OK) or os.path.ismount(path)):
            os.chmod(parent, mode | 0o700)
        try:
            remove(path)
        finally:
            if stat.S_IMODE(os.lstat(parent).st_mode) != mode:
                os.chmod(parent, mode)
    except OSError:
        pass
"""
T = TypeVar("T")
_numbers = itertools.count(1)


class DockerSandbox(SessionSandbox):
    """A container of one's own; made by :meth:`create`.

    Attributes:
        name: The container's name.
        beside: The containers of side services, by their names.
    """

    def __init__(
        self, engine: Engine, profile: Profile, name: str, stream: Stream, session: Session
    ) -> None:
        super().__init__(name, session)
        self.beside: Mapping[str, Sandbox] = {}
        self._engine, self._profile = engine, profile
        self._stream = stream
        self._overflow = False  # whether its root has grown beyond its bound
        self._used = is_snapshot(profile.image)  # it may hold programs that code has left
        if profile.watched:
            max_bytes = int(profile.limits.disk)
            DiskWatch.of(engine).add(name, max_bytes, session.stats, self._report_overflow)

    @classmethod
    async def create(
        cls, engine: Engine, profile: Profile | None = None, *, warm: bool = False
    ) -> Self:
        """Start a container. It is removed again if this is cancelled or fails.

        Args:
            engine: The engine to run it.
            profile: The container's settings; by default the most restrictive ones. Another profile
                must first be prepared by :func:`~vf.sandbox.container.doctor.prepare`.
            warm: Start the lasting interpreter and shell now, so that the first call need not wait.

        Raises:
            ConfigError: If no container can be made: no such image or runtime, no Python in the
                image.
            SandboxError: If the engine did not respond, or the supervisor did not start.
            SnapshotDamaged: If the image is a snapshot from which no container starts.
            ValueError: If the profile has not been prepared.
        """
        profile = profile or Profile()
        if not profile.prepared:
            raise ValueError("let vf.sandbox.container.doctor.prepare prepare the profile first")
        check_snapshot(profile.image)
        try:
            return await cls._with_kit(engine, profile, warm)
        except (SandboxError, ImageUnfit) as error:
            if not is_snapshot(profile.image) or isinstance(error, HostLost):
                raise
            await cls._control(engine, profile, error)
        try:
            return await cls._with_kit(engine, profile, warm)
        except (SandboxError, ImageUnfit) as error:
            if isinstance(error, HostLost):
                raise
            raise damaged(profile.image, str(error)) from error

    @classmethod
    async def _control(cls, engine: Engine, profile: Profile, error: Exception) -> None:
        """Check that a container with the same settings starts from an undamaged image.

        Raises:
            Exception: If none does, so that ``error`` says nothing about the profile's image.
        """
        sound = replace(profile, image=DEFAULT_IMAGE, user="0:0", workdir="/")
        try:
            control = await cls._with_kit(engine, sound, False)
        except (SandboxError, ConfigError) as failure:
            raise error from failure
        await control.close()

    @classmethod
    async def _with_kit(cls, engine: Engine, profile: Profile, warm: bool) -> Self:
        try:
            return await cls._create(engine, profile, warm)
        except KitGone as error:  # engines prune volumes that no container uses at the time
            log.warning("%s; it is collected again", error)
            await asyncio.to_thread(kit_of, engine, again=True)
            return await cls._create(engine, profile, warm)

    @classmethod
    async def _create(cls, engine: Engine, profile: Profile, warm: bool) -> Self:
        name = f"vf-{this_process().run}-{next(_numbers)}"
        work = asyncio.ensure_future(cls._start(engine, profile, name, warm))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # The container can be removed only once the engine has responded.
            await see_through(_undo(work))
            raise

    @classmethod
    async def _start(cls, engine: Engine, profile: Profile, name: str, warm: bool) -> Self:
        labels = this_process().labels(profile.limits.lifetime)
        if profile.watched:
            labels[DISK_LABEL] = str(int(profile.limits.disk))
        settings = container_settings(profile, labels, await engine.features())
        if profile.joined is not None:
            profile.joined.apply(settings)
        remember_container(name, engine)
        engine.live.add(name)
        stream = session = None
        try:
            with _specific_errors(profile):
                await engine.call("create_container", name=name, **settings)
                if is_snapshot(profile.image):
                    await check_lists(engine, name)
                stream = opened = await engine.attach(name)
                await engine.call("start", name)
                session = Session(
                    stream.reader,
                    stream.writer,
                    name=name,
                    cause=lambda: describe_end(engine, name, opened.stderr),
                )
                await session.begin(timeout=START_TIMEOUT)
            if warm:
                await session.warm()
        except BaseException:
            if session:
                await session.close()
            if stream:
                stream.close()
            await _discard(engine, name)
            raise
        return cls(engine, profile, name, stream, session)

    @property
    def alive(self) -> bool:
        """Whether it can be used, as far as this process knows."""
        return super().alive and not self._engine.lost

    def give_up(self, reason: str) -> None:
        """Let every call fail, including those in progress: the engine is lost."""
        assert self._session is not None
        self._session.lose(reason)

    async def snapshot(self) -> str:
        """Save the state of its files as an image; see :meth:`Sandbox.snapshot`.

        Its processes are paused meanwhile. The image is removed when this process ends.
        """
        if not self._profile.writable:
            raise NotImplementedError(
                f"the root of {self.name} is not writable, so there is no state of it to keep"
            )
        await self._check()
        try:
            return await take_snapshot(self._engine, self.name, self._profile)
        except SandboxError:
            await self._check()
            raise

    async def _check(self) -> None:
        """Check that it can be used.

        Raises:
            OSError: If it has ended through what ran in it.
            SandboxError: If it is lost.
        """
        try:
            await self._ask(lambda session: session.ping())
        except Ended as end:
            raise OSError(errno.EIO, str(end)) from None

    def _report_overflow(self, size: int | None) -> None:
        """End it: its root has outgrown its limit, or its size cannot be determined (None)."""
        disk = int(self._profile.limits.disk)
        if size is None:
            self._end_with_reason(
                "its root cannot be measured: a path is longer than the engine can read, or "
                "too many files are open"
            )
        else:
            self._end_with_reason(f"its root has grown by {size} bytes, more than disk = {disk}")

    def _end_with_reason(self, reason: str) -> None:
        """End it because of what ran in it."""
        assert self._session is not None
        self._overflow = True
        self._session.lose(reason)
        self._end()

    async def read_tree(self, path: str, read: Callable[[Iterator[bytes]], T]) -> T:
        """Ask the engine; see :meth:`~vf.sandbox.audit.Auditable.read_tree`."""
        await self._check()
        whole = ("export", self.name) if path == "/" else ("get_archive", self.name, path)
        try:
            return await self._engine.stream(read, *whole)
        except HostLost:
            if not await self._engine.answers():
                raise
            self._end_with_reason("its files cannot be read in time")  # what ran in it made it so
            await self._check()
            raise
        except EngineRefused as error:
            await self._check()
            if error.status == NOT_THERE:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
            raise OSError(errno.EIO, str(error), path) from error

    async def write_tree(self, archive: BinaryIO) -> None:
        """Ask the engine; see :meth:`~vf.sandbox.audit.Auditable.write_tree`."""
        await self._check()
        try:
            await self._engine.call("put_archive", self.name, "/", archive)
        except EngineRefused as error:
            await self._check()
            raise OSError(errno.EIO, str(error)) from error

    async def remove(self, paths: Collection[str]) -> None:
        """Remove them with the kit's Python; see :meth:`~vf.sandbox.audit.Auditable.remove`."""
        await self._check()
        given = b"\0".join(map(os.fsencode, paths))
        for user in ("0", None):
            command = [*KIT_PYTHON, "-c", REMOVE]
            await self.exec(command, input=given, user=user, cwd="/", timeout=START_TIMEOUT)

    async def _outside(self) -> str | None:
        if self._overflow:
            return None
        assert self._session is not None
        try:
            return await ended_from_outside(self._engine, self.name, cut=self._session.cut)
        except HostLost:
            self._engine.suspect.set()
            raise

    async def _close(self) -> None:
        assert self._session is not None
        if self._profile.watched:
            DiskWatch.of(self._engine).drop(self.name)
        try:
            await self._session.close()
            self._stream.close()
            await self._engine.remove(self.name)
        except asyncio.CancelledError:  # as a loop that ends does, once, to everything in it
            self._stream.close()
            await self._engine.remove(self.name)
            forget(self.name)
            raise
        finally:
            self._engine.live.discard(self.name)
        forget(self.name)


@contextlib.contextmanager
def _specific_errors(profile: Profile) -> Iterator[None]:
    """Raise a specific error for what the user can fix."""
    try:
        yield
    except SandboxError as error:
        message = str(error)
        if "No such image" in message:
            raise ImageMissing(
                f"the image {profile.image!r} is not on this machine; `vf-rl sandbox build` builds "
                "the default one"
            ) from error
        if profile.entry is not None and any(words in message for words in NO_PROGRAM):
            raise KitGone(f"the volume {profile.entry.kit} has no kit: {message}") from error
        if any(words in message for words in NO_PROGRAM):
            raise ImageUnfit(f"the image {profile.image!r} has no python3: {message}") from error
        if "there is no user" in message or "there is no group" in message:
            raise ImageUnfit(
                f"the image {profile.image!r} does not know its user {profile.user!r}: {message}"
            ) from error
        if "nknown runtime" in message or "unknown or invalid runtime" in message:
            raise EngineProblem(
                f"the engine knows no runtime {profile.runtime!r}: {message}"
            ) from error
        raise


async def _undo(work: asyncio.Future[Any]) -> None:
    try:
        sandbox = await work
    except Exception:
        return  # it has cleaned up after itself
    await sandbox.close()


async def _discard(engine: Engine, name: str) -> None:
    try:
        await engine.remove(name)
    except SandboxError as error:
        log.warning("container %s could not be removed: %s", name, error)
    else:
        forget(name)
    finally:
        engine.live.discard(name)
