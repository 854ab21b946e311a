"""The images of an engine that this user's runs have built or pulled, and when each was last used.

An engine does not know when an image was last used, nor who made it. So each has a file here, whose
time is that of the last use, and whose lock is held while the image is made: processes that need
the same image wait for each other. Only images with a file are ever removed.
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

LOCK_PAUSE = 0.1  # seconds between two attempts to get a lock that another process holds
LOGS_KEPT = 30 * 24 * 3600.0  # seconds
_RECORD, _LOG = ".json", ".log"


class Ledger:
    """The files of one engine's images.

    Args:
        folder: The folder of the files; made if need be.
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
        """Return the path of the log of an image's build."""
        return self._file(image).with_suffix(_LOG)

    def made(self, image: str, base: str | None) -> None:
        """Record that an image was made just now.

        Args:
            image: The image's name.
            base: The id of the image that it starts from, whose bytes do not count.
        """
        self._make_folder()
        self._file(image).write_text(json.dumps({"base": base}), "utf-8")

    def used(self, image: str) -> None:
        """Record that an image is used now, if it was made here."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._file(image))

    async def shrink(self, engine: Engine, max_bytes: float, keep: str) -> list[str]:
        """Remove images until the others have at most ``max_bytes``; return those removed.

        The least recently used go first. One that a container uses stays.

        Args:
            engine: The engine that has the images.
            max_bytes: The limit on their size, on top of the images that they start from.
            keep: The name of an image that is never removed.

        Raises:
            SandboxError: If the engine does not respond.
        """
        listed: list[dict[str, Any]] = await engine.call("images", all=True)
        sizes = {item["Id"]: int(item["Size"]) for item in listed}
        ids = {tag: item["Id"] for item in listed for tag in item.get("RepoTags") or ()}
        records = []
        for file in self._folder.glob(f"*{_RECORD}"):
            image, used, base = unquote(file.stem), file.stat().st_mtime, _base(file)
            if base is not None and image in ids:
                records.append((used, image, sizes[ids[image]] - sizes.get(base, 0)))
        total = sum(size for _, _, size in records)
        removed = []
        for _, image, size in sorted(records):
            if total <= max_bytes:
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
    """Return the id of a record's base image, "" without one; None if the image was not made."""
    try:
        return json.loads(file.read_text("utf-8"))["base"] or ""
    except (OSError, ValueError, KeyError):
        return None


async def ledger_of(engine: Engine, folder: Path) -> Ledger:
    """Return the ledger of an engine's images.

    Raises:
        SandboxError: If the engine does not respond.
    """
    name = (await engine.features()).id or engine.client.base_url
    return Ledger(folder / hashlib.sha256(name.encode()).hexdigest()[:12])
