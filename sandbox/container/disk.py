"""How much a writable root may grow: the engine bounds it where it can, else we look at it.

An engine can where its disk has quotas: with Docker's overlay2 that is XFS with ``pquota``.
Elsewhere it is asked, again and again, how large the roots are, and a sandbox whose root is too
large has ended through what ran in it. What a fast writer writes between two looks is bounded by
the disk alone, and a single file by RLIMIT_FSIZE. The engine does not see files that are deleted
while they are open: those the supervisor counts. Code that means to can hide them from it, too
(in a socket's queue, or in a process that nobody may look at): only a quota bounds these.
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
from vf.sandbox.container.profile import DEFAULT_IMAGE
from vf.sandbox.container.reaper import PREFIX, this_process
from vf.sandbox.container.remains import named

log = logging.getLogger("vf.sandbox")

LABEL = f"{PREFIX}disk"  # on the containers that are looked at
EVERY = 0.5  # seconds between two looks
LOOKS = 3  # without a size, which an engine may be unable to tell for a moment
SHARE = 0.2  # of the time is spent looking, at most: an engine counts every file
# What an engine makes on the host's disk for each container, outside of its root.
MADE = ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
ANSWER_SECONDS = 10.0  # for a supervisor to count
TRIED = "16g"  # a size to try quotas with, which no image exceeds

_quotas: weakref.WeakKeyDictionary[Engine, bool] = weakref.WeakKeyDictionary()


def has_quotas(engine: Engine) -> bool:
    """Return whether an engine bounds the size of a root; it is tried once. Blocks.

    Raises:
        SandboxError: The engine did not answer.
    """
    if engine not in _quotas:
        options = {"StorageOpt": {"size": TRIED}}
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
    """A container; see :meth:`DiskWatch.add`."""

    most: int
    stats: Callable[[], Awaitable[dict[str, Any]]]
    end: Callable[[int | None], None]


class DiskWatch:
    """Looks at the roots of one engine's containers, in one event loop, while there are any."""

    _all: dict[tuple[Engine, asyncio.AbstractEventLoop], DiskWatch] = {}

    def __init__(self, engine: Engine) -> None:
        """Look at none yet; use :meth:`of`."""
        self._engine = engine
        self._found: dict[str, _Watched] = {}
        self._unknown: Counter[str] = Counter()  # looks in a row without a size, by container
        self._made: dict[str, int] = {}  # bytes of the files that the engine made
        self._deleted: dict[str, int | None] = {}  # bytes of deleted files that are open
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, engine: Engine) -> DiskWatch:
        """Return the one for an engine in this loop."""
        return cls._all.setdefault((engine, asyncio.get_running_loop()), cls(engine))

    def add(
        self,
        name: str,
        most: int,
        stats: Callable[[], Awaitable[dict[str, Any]]],
        end: Callable[[int | None], None],
    ) -> None:
        """Look at a container.

        Args:
            name: The container's.
            most: Bytes that its root may have.
            stats: Asks its supervisor; see :meth:`~vf.sandbox.session.Session.stats`.
            end: Called once with the size when it has more, or with None when the engine cannot
                tell it, again and again: what cannot be measured is not bounded.
        """
        self._found[name] = _Watched(most, stats, end)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look())

    def drop(self, name: str) -> None:
        """Look at a container no more. Safe to call twice."""
        self._found.pop(name, None)
        self._unknown.pop(name, None)
        self._made.pop(name, None)
        self._deleted.pop(name, None)
        if not self._found:
            self._all.pop((self._engine, asyncio.get_running_loop()), None)
            if self._task is not None:
                self._task.cancel()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        pause = EVERY
        while True:
            await asyncio.sleep(pause)
            began = loop.time()
            # The engine may be busy, or gone: then those who use the containers learn of it.
            with contextlib.suppress(SandboxError):
                await self._look_at_made()
                await asyncio.gather(*map(self._count_deleted, [*self._found]))
                for name, size in (await self._sizes()).items():
                    deleted = self._deleted.get(name, 0)
                    if size >= 0 and deleted is not None:
                        self._judge(name, size + self._made.get(name, 0) + deleted)
                    else:
                        self._judge(name, -1)
            pause = max(EVERY, (loop.time() - began) / SHARE)

    def _judge(self, name: str, size: int) -> None:
        """End a container whose root is too large, or has had no size for a while."""
        watched = self._found.get(name)
        self._unknown[name] = self._unknown[name] + 1 if size < 0 else 0
        too_often = self._unknown[name] >= LOOKS
        if watched is not None and (size > watched.most or too_often):
            self.drop(name)
            watched.end(None if too_often else size)

    async def _look_at_made(self) -> None:
        """Ask for the sizes of what the engine made, of one container by turns.

        No such file can be larger than a root may be (``RLIMIT_FSIZE``), so that is soon enough.
        """
        new = (each for each in self._found if each not in self._made)
        name = next(new, None) or next(iter(self._made), None)  # else that of the longest ago
        if name is None:
            return
        found = [await self._engine.stat(name, path) for path in MADE]
        self._made.pop(name, None)
        if name in self._found:
            self._made[name] = sum(each["size"] for each in found if each is not None)

    async def _count_deleted(self, name: str) -> None:
        """Ask a supervisor; where it does not answer, the last count stays."""
        watched = self._found.get(name)
        with contextlib.suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await watched.stats() if watched else {}
            if name in self._found:
                self._deleted[name] = answer["deleted"]

    async def _sizes(self) -> dict[str, int]:
        labels = [LABEL, f"{PREFIX}run={this_process().run}"]
        listed = await self._engine.call("containers", size=True, filters={"label": labels})
        # One that an engine lost halfway, when it was killed, has no name any more.
        found = [item for item in listed if item.get("Names")]
        return {item["Names"][0].lstrip("/"): int(item.get("SizeRw") or 0) for item in found}
