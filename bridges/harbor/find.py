"""Finding the task folders below a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from vf.bridges.harbor import task_folder, terminal_bench
from vf.bridges.harbor.model import TaskFolder
from vf.runtime.errors import ConfigError

READERS: dict[str, Callable[[Path, str], TaskFolder]] = {
    task_folder.TOML: task_folder.read_task,
    terminal_bench.YAML: terminal_bench.read_task,
}
# What a task has beside its READERS' file; by any of the first, or two of the others, a folder
# without that file is a task that lacks it.
_MARKERS = {"instruction.md", "run-tests.sh"}
_PARTS = {"environment", "tests", "solution", "steps", "Dockerfile", "docker-compose.yaml"}
_MAX_PROBLEMS = 10  # that one message lists
_WHOLE = 2**20  # bytes of a file up to which all of it is part of a digest


def read_tasks(
    folder: Path, only: Sequence[str] = (), skip: Sequence[str] = ()
) -> list[TaskFolder]:
    """Read all tasks of a folder, which may be one task itself; sorted by id.

    Args:
        folder: Folder to search; links are followed, names that begin with a dot are skipped.
        only: Patterns of ids (``*`` and ``?``); by default all.
        skip: Patterns of ids to skip without reading them.

    Raises:
        ConfigError: If there is no such folder or no task in it, a pattern matches none, or a task
            cannot be used, is missing or duplicated; all of those are listed.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")
    candidates = sorted(
        (
            path.relative_to(folder).as_posix() if path != folder else folder.resolve().name,
            path,
            problem,
        )
        for path, problem in find(folder)
    )
    if all(path == folder and problem for _, path, problem in candidates):
        raise ConfigError(
            f"{folder} contains no task: no {' and no '.join(READERS)} anywhere in it"
        )
    for pattern in (*only, *skip):
        if not any(fnmatchcase(id, pattern) for id, _, _ in candidates):
            raise ConfigError(f"{folder}: the pattern {pattern!r} matches none of its tasks")
    tasks, problems = [], []
    ids_by_path: dict[str, str] = {}
    for id, path, problem in candidates:
        if any(fnmatchcase(id, pattern) for pattern in skip):
            continue
        if only and not any(fnmatchcase(id, pattern) for pattern in only):
            continue
        first_id = ids_by_path.setdefault(os.path.realpath(path), id)
        if problem is None and first_id != id:
            problem = f"is the same folder as the task {first_id}"
        if problem is not None:
            problems.append(f"{path} {problem}; repair or remove it, or name it in skip")
            continue
        try:
            name = next(name for name in READERS if (path / name).is_file())
            tasks.append(READERS[name](path, id))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        more = len(problems) - _MAX_PROBLEMS
        listed = problems[:_MAX_PROBLEMS] + ([f"and {more} more tasks"] if more > 0 else [])
        raise ConfigError("\n".join(listed))
    if not tasks:
        raise ConfigError(f"{folder}: the patterns leave no task")
    return tasks


def find(folder: Path, above: tuple[str, ...] = ()) -> Iterator[tuple[Path, str | None]]:
    """Yield the folders that are tasks, and what should be one, with what is wrong.

    A task holds no other.

    Args:
        folder: Folder to search.
        above: Resolved paths of the folders that contain it.
    """
    try:
        with os.scandir(folder) as entries:
            listed = sorted(
                (entry for entry in entries if not entry.name.startswith(".")),
                key=lambda entry: entry.name,
            )
    except OSError as error:
        yield folder, f"cannot be read ({error.strerror})"
        return
    if any(entry.name in READERS and (folder / entry.name).is_file() for entry in listed):
        yield folder, None
        return
    above = (*above, os.path.realpath(folder))
    below: list[tuple[Path, str | None]] = []
    for entry in listed:
        path = folder / entry.name
        if entry.is_symlink() and not path.exists():
            below.append((path, f"is a link to {os.readlink(path)}, which is not there"))
        elif entry.is_dir() and os.path.realpath(path) in above:
            below.append((path, "is a link to a folder that it is in"))
        elif entry.is_dir():
            below += find(path, above)
    names = {entry.name for entry in listed}
    if any(problem is None for _, problem in below):
        yield from below
    elif names & _MARKERS or len(names & _PARTS) > 1 or READERS.keys() & set(map(str.lower, names)):
        yield folder, f"has no {' and no '.join(READERS)}"
    elif not listed:
        yield folder, "is empty"
    else:
        yield from below


def digest(folder: Path) -> str:
    """Return a digest of all files of a task; of large ones, of their sizes and ends."""
    hasher = hashlib.blake2b(digest_size=16)
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(parent, name)
            hasher.update(f"{path.relative_to(folder)}\0".encode())
            if path.is_symlink():
                hasher.update(os.readlink(path).encode())
                continue
            size = path.stat().st_size
            with path.open("rb") as file:
                hasher.update(f"{size}\0".encode() + file.read(_WHOLE))
                if size > _WHOLE:
                    file.seek(-_WHOLE // 2, os.SEEK_END)
                    hasher.update(file.read())
    return hasher.hexdigest()
