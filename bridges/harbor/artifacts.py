"""Artifacts of a task's container, which are kept and passed to tests in another container."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from vf.bridges.harbor.config import Artifact
from vf.bridges.harbor.container import emptied, said, spoiling
from vf.bridges.harbor.model import Part
from vf.runtime.errors import SandboxError
from vf.runtime.temporary import temporary_folder
from vf.runtime.workers import in_thread
from vf.sandbox.audit import Accompanied
from vf.sandbox.contract import Sandbox
from vf.sandbox.trees import within

MOST = 256 * 2**20  # bytes of one artifact
MANIFEST = "manifest.json"


class Keeper:
    """Collects artifacts. Used as ``async with Keeper(...) as keeper``.

    Args:
        folder: Where they stay, in a new folder; None to keep them no longer than needed.
        task: The task's id.
        step: The step's name, if any.
        max_bytes: Bytes of all of them together.
    """

    def __init__(self, folder: Path | None, task: str, step: str, max_bytes: int) -> None:
        self._folder, self._task, self._step = folder, task, step
        self._left = max_bytes
        self._stack = AsyncExitStack()
        self._place = Path()
        self._there: list[tuple[Artifact, Path]] = []

    async def __aenter__(self) -> Self:
        """Make the folder."""
        if self._folder is None:
            self._place = self._stack.enter_context(temporary_folder("artifacts"))
        else:
            name = re.sub(r"[^\w.-]+", "-", self._task)
            self._place = self._folder / name / uuid.uuid4().hex[:12] / self._step
            self._place.mkdir(parents=True)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Remove what is not to stay."""
        await self._stack.aclose()

    async def run_hooks(self, sandbox: Sandbox, part: Part) -> dict[str, Any]:
        """Run the hooks; return what is recorded of that.

        Raises:
            SandboxError: The container is lost.
        """
        record: dict[str, Any] = {}
        for hook in part.collect:
            user = None if hook.user is None else str(hook.user)
            there = _service(sandbox, hook.service)
            done = await there.exec(hook.command, user=user, timeout=hook.timeout_sec)
            if not done.ok:
                record.setdefault("collect", []).append(f"{hook.command[:200]}: {said(done)}")
        return record

    async def collect(self, sandbox: Sandbox, part: Part) -> dict[str, Any]:
        """Copy the artifacts out; return what is recorded of that.

        A missing artifact is not an error: the tests decide what it means.

        Raises:
            SandboxError: The container is lost.
        """
        record: dict[str, Any] = {}
        listed = []
        for artifact in part.artifacts:
            target = self._place / artifact.kept_as
            problem = "another artifact is kept there"
            if not target.exists():
                there = _service(sandbox, artifact.service)
                problem = await _copy_out(there, artifact, target, min(MOST, self._left))
            if not problem:
                self._left -= await in_thread(_size_of, target)
                self._there.append((artifact, target))
            listed.append({"source": artifact.source, "kept_as": str(artifact.kept_as)})
            listed[-1] |= {"problem": problem} if problem else {}
        if self._folder is not None:
            if any(path.is_file() for path in self._place.rglob("*")):
                (self._place / MANIFEST).write_text(json.dumps(listed, indent=2))
                record["artifacts"] = str(self._place)
            else:
                await in_thread(shutil.rmtree, self._place)
        return record

    async def hand_on(self, sandbox: Sandbox, folders: Collection[str] | None = None) -> None:
        """Copy what was collected to where it came from, in another container.

        A folder has nothing else in it then: of the image's own, only what the agent kept.

        Args:
            sandbox: The container.
            folders: Only what is below one of these is copied; None for everything.

        Raises:
            Spoilt: It does not fit, say.
            SandboxError: That container is lost.
        """
        for artifact, path in self._there:
            if folders is not None and not within(artifact.source, folders):
                continue
            with spoiling(f"the artifact {artifact.source} cannot be handed on"):
                if path.is_dir():
                    await emptied(sandbox, artifact.source)
                    await sandbox.upload(path, artifact.source, leave_out=(), max_bytes=MOST)
                else:
                    await sandbox.write_file(artifact.source, await in_thread(path.read_bytes))


def _service(sandbox: Sandbox, name: str | None) -> Sandbox:
    """Return the container of a service: the sandbox itself, or one beside it."""
    if name in (None, "main"):
        return sandbox
    beside = sandbox.beside if isinstance(sandbox, Accompanied) else {}
    if name not in beside:
        raise SandboxError(f"there is no container of the service {name!r} to look into")
    return beside[str(name)]


async def _copy_out(sandbox: Sandbox, artifact: Artifact, target: Path, max_bytes: int) -> str:
    """Copy one out; return why that is not possible, or nothing."""
    source = artifact.source
    try:
        try:
            await sandbox.download(source, target, leave_out=artifact.exclude, max_bytes=max_bytes)
        except NotADirectoryError:
            data = await sandbox.read_file(source, max_bytes=max_bytes)
            await in_thread(_write, target, data)
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _size_of(path: Path) -> int:
    """Return how many bytes a file has, or the files of a folder."""
    return sum(each.lstat().st_size for each in (path, *path.rglob("*")) if each.is_file())


def _write(path: Path, data: bytes) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
