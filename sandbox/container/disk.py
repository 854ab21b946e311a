"""The limit of a writable root's size: an engine quota, otherwise polling.

An engine has quotas where its disk has them: with Docker's overlay2 that is XFS with ``pquota``.
Elsewhere the sizes of the roots are polled, and a sandbox whose root is too large has ended through
what ran in it. What a fast writer writes between two polls is bounded by the disk alone, and a
single file by RLIMIT_FSIZE. The engine does not count files that are deleted while they are open;
the supervisor does. Hostile code can hide them from it, too (in a socket's queue, or in a process
that cannot be inspected): only a quota bounds these.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine, EngineRefused
from vf.sandbox.container.hardening import DEFAULT_IMAGE
from vf.sandbox.container.reaper import PREFIX, this_process
from vf.sandbox.container.remains import named

log = logging.getLogger("vf.sandbox")

LABEL = f"{PREFIX}disk"  # on the containers that are polled
INTERVAL = 0.5  # seconds between two polls
MAX_FAILURES = 3  # polls in a row without a size, which an engine may briefly be unable to compute
MAX_SHARE = 0.2  # of the time is spent polling: an engine counts every file
# What an engine makes on the host's disk for each container, outside of its root.
ENGINE_FILES = ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
ANSWER_SECONDS = 10.0  # for a supervisor to count deleted files
PROBE_SIZE = "16g"  # of a root, to try quotas with: no image exceeds it

_quotas: weakref.WeakKeyDictionary[Engine, bool] = weakref.WeakKeyDictionary()


def has_quotas(engine: Engine) -> bool:
    """Return whether an engine can limit the size of a root; tried once per engine. Blocks.

    Raises:
        SandboxError: If the engine does not respond.
    """
    if engine not in _quotas:
        options = {"StorageOpt": {"size": PROBE_SIZE}}
        try:
            with named(engine) as name:
                engine.call_now(
                    "create_container",
                    DEFAULT_IMAGE,
                    "true",
                    name=name,
                    host_config=options,
                    labels=this_process().labels(0.0),  # in case no process is left to remove it
                )
            _quotas[engine] = True
        except EngineRefused as error:
            log.debug("the engine bounds no root: %s", error)
            _quotas[engine] = False
    return _quotas[engine]


class _Watched(NamedTuple):
    """A container that is polled; see :meth:`DiskWatch.add`."""

    max_bytes: int
    stats: Callable[[], Awaitable[dict[str, Any]]]
    end: Callable[[int | None], None]


class DiskWatch:
    """Polls the roots of one engine's containers, in one event loop, while there are any."""

    _all: dict[tuple[Engine, asyncio.AbstractEventLoop], DiskWatch] = {}

    def __init__(self, engine: Engine) -> None:
        """Start without containers; use :meth:`of`."""
        self._engine = engine
        self._watched: dict[str, _Watched] = {}
        self._failures: Counter[str] = Counter()  # polls in a row without a size, by container
        self._engine_files: dict[str, int] = {}  # bytes of the files that the engine made
        self._deleted: dict[str, int | None] = {}  # bytes of deleted files that are open
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, engine: Engine) -> DiskWatch:
        """Return the instance for an engine in this loop."""
        return cls._all.setdefault((engine, asyncio.get_running_loop()), cls(engine))

    def add(
        self,
        name: str,
        max_bytes: int,
        stats: Callable[[], Awaitable[dict[str, Any]]],
        end: Callable[[int | None], None],
    ) -> None:
        """Poll a container from now on.

        Args:
            name: The container's name.
            max_bytes: Limit of its root's size.
            stats: Requests its supervisor's counts; see :meth:`~vf.sandbox.session.Session.stats`.
            end: Called once: with a size above the limit, or with None after ``MAX_FAILURES`` polls
                in a row without a size, since what cannot be measured is not bounded.
        """
        self._watched[name] = _Watched(max_bytes, stats, end)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll())

    def drop(self, name: str) -> None:
        """Stop polling a container. Safe to call twice."""
        self._watched.pop(name, None)
        self._failures.pop(name, None)
        self._engine_files.pop(name, None)
        self._deleted.pop(name, None)
        if not self._watched:
            self._all.pop((self._engine, asyncio.get_running_loop()), None)
            if self._task is not None:
                self._task.cancel()

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        pause = INTERVAL
        while True:
            await asyncio.sleep(pause)
            began = loop.time()
            # The engine may be busy, or gone: then the calls of the containers' users fail.
            with contextlib.suppress(SandboxError):
                await self._measure_engine_files()
                await asyncio.gather(*map(self._count_deleted, [*self._watched]))
                for name, size in (await self._sizes()).items():
                    deleted = self._deleted.get(name, 0)
                    if size >= 0 and deleted is not None:
                        self._judge(name, size + self._engine_files.get(name, 0) + deleted)
                    else:
                        self._judge(name, -1)
            pause = max(INTERVAL, (loop.time() - began) / MAX_SHARE)

    def _judge(self, name: str, size: int) -> None:
        """End a container whose root is too large, or has had no size for a while."""
        watched = self._watched.get(name)
        self._failures[name] = self._failures[name] + 1 if size < 0 else 0
        unmeasurable = self._failures[name] >= MAX_FAILURES
        if watched is not None and (size > watched.max_bytes or unmeasurable):
            self.drop(name)
            watched.end(None if unmeasurable else size)

    async def _measure_engine_files(self) -> None:
        """Measure the files that the engine made for one container, another one each time.

        None can be larger than a root may be (``RLIMIT_FSIZE``), so one per poll is soon enough.
        """
        unmeasured = (name for name in self._watched if name not in self._engine_files)
        name = next(unmeasured, None) or next(iter(self._engine_files), None)  # else the oldest
        if name is None:
            return
        stats = [await self._engine.stat(name, path) for path in ENGINE_FILES]
        self._engine_files.pop(name, None)
        if name in self._watched:
            self._engine_files[name] = sum(stat["size"] for stat in stats if stat is not None)

    async def _count_deleted(self, name: str) -> None:
        """Ask a supervisor; without an answer, the last count stays."""
        watched = self._watched.get(name)
        with contextlib.suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await watched.stats() if watched else {}
            if name in self._watched:
                self._deleted[name] = answer["deleted"]

    async def _sizes(self) -> dict[str, int]:
        labels = [LABEL, f"{PREFIX}run={this_process().run}"]
        listed = await self._engine.call("containers", size=True, filters={"label": labels})
        # One that an engine lost halfway, when it was killed, has no name any more.
        named_items = [item for item in listed if item.get("Names")]
        return {item["Names"][0].lstrip("/"): int(item.get("SizeRw") or 0) for item in named_items}
