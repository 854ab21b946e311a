"""Which images of an engine this user's runs have built or pulled, and when each was last used.

An engine does not know when an image was last used, nor who brought it. So each has a file here,
whose time is that of the last use, and whose lock is held while the image is made: processes that
want the same one wait for each other. Only images with a file are ever removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from vf.sandbox.container.docker_engine import Engine, EngineRefused

log = logging.getLogger("vf.sandbox")

LOCK_PAUSE = 0.1  # seconds between two looks at a lock that another process holds
LOGS_KEPT = 30 * 24 * 3600.0  # seconds
_RECORD, _LOG = ".json", ".log"


class Ledger:
    """The files of one engine's images.

    Args:
        folder: Where they are; made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.asynccontextmanager
    async def making(self, image: str) -> AsyncIterator[None]:
        """Hold the lock of an image."""
        self._make_folder()
        descriptor = os.open(self._file(image), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _locked(descriptor):  # noqa: ASYNC110 - no event tells of another process
                await asyncio.sleep(LOCK_PAUSE)
            yield
        finally:
            os.close(descriptor)

    def log_of(self, image: str) -> Path:
        """Return where the log of an image's build is."""
        return self._file(image).with_suffix(_LOG)

    def made(self, image: str, base: str | None) -> None:
        """Write down that an image was made just now.

        Args:
            image: Its name.
            base: The id of the image that it starts from, whose bytes are not its own.
        """
        self._make_folder()
        self._file(image).write_text(json.dumps({"base": base}), "utf-8")

    def used(self, image: str) -> None:
        """Write down that an image is used now; nothing, for one that was not made here."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._file(image))

    async def shrink(self, engine: Engine, most: float, keep: str) -> list[str]:
        """Remove images until the others have at most so many bytes; return those removed.

        The least recently used go first. One that a container uses stays.

        Args:
            engine: Where they are.
            most: Bytes, on top of the images that they start from.
            keep: The name of one that stays in any case.

        Raises:
            SandboxError: The engine does not answer.
        """
        listed: list[dict[str, Any]] = await engine.call("images", all=True)
        sizes = {item["Id"]: int(item["Size"]) for item in listed}
        ids = {tag: item["Id"] for item in listed for tag in item.get("RepoTags") or ()}
        there = []
        for file in self._folder.glob(f"*{_RECORD}"):
            image, used, base = unquote(file.stem), file.stat().st_mtime, _base(file)
            if base is not None and image in ids:
                there.append((used, image, sizes[ids[image]] - sizes.get(base, 0)))
        total = sum(size for _, _, size in there)
        removed = []
        for _, image, size in sorted(there):
            if total <= most:
                break
            if image != keep and await self._remove(engine, image):
                total -= size
                removed.append(image)
        self._drop_logs()
        return removed

    async def _remove(self, engine: Engine, image: str) -> bool:
        descriptor = os.open(self._file(image), os.O_RDWR | os.O_CLOEXEC)
        try:
            if not _locked(descriptor):
                return False  # it is being made again
            await engine.call("remove_image", image)
        except EngineRefused:
            return False  # a container uses it, or another process was first
        finally:
            os.close(descriptor)
        log.info("removed the image %s: it was the least recently used one", image)
        return True

    def _drop_logs(self) -> None:
        for file in self._folder.glob(f"*{_LOG}"):
            with contextlib.suppress(FileNotFoundError):
                if file.stat().st_mtime < time.time() - LOGS_KEPT:
                    file.unlink()

    def _make_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _file(self, image: str) -> Path:
        return self._folder / f"{quote(image, safe=':')}{_RECORD}"


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _base(file: Path) -> str | None:
    """Return the id of the image that one starts from, "" without one; None if it was not made."""
    try:
        return json.loads(file.read_text("utf-8"))["base"] or ""
    except (OSError, ValueError, KeyError):
        return None


async def ledger_of(engine: Engine, folder: Path) -> Ledger:
    """Return the ledger of an engine's images.

    Raises:
        SandboxError: The engine does not answer.
    """
    name = (await engine.features()).id or engine.client.base_url
    return Ledger(folder / hashlib.sha256(name.encode()).hexdigest()[:12])
