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
from vf.bridges.harbor.container import as_unverifiable, empty_folder, failure_of
from vf.bridges.harbor.model import Part
from vf.runtime.errors import SandboxError
from vf.runtime.temporary import make_temporary_folder, remove_tree
from vf.runtime.workers import in_thread
from vf.sandbox.audit import Accompanied
from vf.sandbox.contract import Sandbox
from vf.sandbox.trees import within

MAX_BYTES = 256 * 2**20  # bytes of one artifact
MANIFEST = "manifest.json"


class Keeper:
    """Collects artifacts. Used as ``async with Keeper(...) as keeper``.

    Args:
        folder: Folder in which artifacts are kept, each episode's in a new one; None to delete them
            after use.
        task: Id of the task.
        step: Name of the step, if any.
        max_bytes: Maximum bytes of all artifacts together.
    """

    def __init__(self, folder: Path | None, task: str, step: str, max_bytes: int) -> None:
        self._folder, self._task, self._step = folder, task, step
        self._bytes_left = max_bytes
        self._stack = AsyncExitStack()
        self._target = Path()
        self._collected: list[tuple[Artifact, Path]] = []

    async def __aenter__(self) -> Self:
        """Make the folder."""
        if self._folder is None:
            self._target = await in_thread(make_temporary_folder, "artifacts")
            self._stack.callback(remove_tree, self._target)
        else:
            name = re.sub(r"[^\w.-]+", "-", self._task)
            self._target = self._folder / name / uuid.uuid4().hex[:12] / self._step
            self._target.mkdir(parents=True)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Remove the folder, if artifacts are not kept."""
        await self._stack.aclose()

    async def run_hooks(self, sandbox: Sandbox, part: Part) -> dict[str, Any]:
        """Run the hooks; return a record of those that failed.

        Raises:
            SandboxError: If the container is lost.
        """
        record: dict[str, Any] = {}
        for hook in part.collect:
            user = None if hook.user is None else str(hook.user)
            service = _service(sandbox, hook.service)
            result = await service.exec(hook.command, user=user, timeout=hook.timeout_sec)
            if not result.ok:
                record.setdefault("collect", []).append(
                    f"{hook.command[:200]}: {failure_of(result)}"
                )
        return record

    async def collect(self, sandbox: Sandbox, part: Part) -> dict[str, Any]:
        """Copy the artifacts out; return where they are, for the trace.

        A missing artifact is not an error: the tests decide what it means.

        Raises:
            SandboxError: If the container is lost.
        """
        record: dict[str, Any] = {}
        manifest = []
        for artifact in part.artifacts:
            path = self._target / artifact.kept_as
            problem = "another artifact is kept there"
            if not path.exists():
                service = _service(sandbox, artifact.service)
                problem = await _copy_out(service, artifact, path, min(MAX_BYTES, self._bytes_left))
            if not problem:
                self._bytes_left -= await in_thread(_size_of, path)
                self._collected.append((artifact, path))
            manifest.append({"source": artifact.source, "kept_as": str(artifact.kept_as)})
            manifest[-1] |= {"problem": problem} if problem else {}
        if self._folder is not None:
            if any(path.is_file() for path in self._target.rglob("*")):
                (self._target / MANIFEST).write_text(json.dumps(manifest, indent=2))
                record["artifacts"] = str(self._target)
            else:
                await in_thread(shutil.rmtree, self._target)
        return record

    async def copy_into(self, sandbox: Sandbox, folders: Collection[str] | None = None) -> None:
        """Copy what was collected to where it came from, in another container.

        A folder has nothing else in it then: of the image's own, only what the agent kept.

        Args:
            sandbox: Container to copy to.
            folders: Folders whose artifacts are copied; None for all.

        Raises:
            Unverifiable: If an artifact cannot be written, for lack of space for example.
            SandboxError: If the container is lost.
        """
        for artifact, path in self._collected:
            if folders is not None and not within(artifact.source, folders):
                continue
            with as_unverifiable(f"the artifact {artifact.source} cannot be handed on"):
                if path.is_dir():
                    await empty_folder(sandbox, artifact.source)
                    await sandbox.upload(path, artifact.source, leave_out=(), max_bytes=MAX_BYTES)
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
    """Copy an artifact out; return the problem, or an empty text."""
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
    return sum(file.lstat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def _write(path: Path, data: bytes) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
