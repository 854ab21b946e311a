"""Files that a program left, read without trusting it: bounded, and never through a link."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from vf.runtime.errors import ConfigError
from vf.traces.messages import writable

MOST_FILES = 50
MOST_BYTES = 100_000  # of one file
MOST_LISTED = 100_000  # files and folders that are looked at


def check(patterns: Sequence[str], where: str) -> None:
    """Check that patterns stay in the working directory.

    Raises:
        ConfigError: If a pattern leads out of the folder.
    """
    for pattern in patterns:
        path = PurePosixPath(pattern)
        if path.is_absolute() or ".." in path.parts or not pattern.strip():
            raise ConfigError(
                f"{where}: {pattern!r} does not lie in the program's working directory; write a "
                "relative pattern, such as 'report.md' or 'out/**/*.json'"
            )


def chosen(paths: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the first paths that one of the patterns matches, sorted.

    ``*`` and ``?`` stay within a name, ``**/`` stands for any folders.
    """
    expressions = [re.compile(_expression(pattern)) for pattern in patterns]
    matches = [
        path for path in paths if any(expression.fullmatch(path) for expression in expressions)
    ]
    return sorted(matches)[:MOST_FILES]


def _expression(pattern: str) -> str:
    parts = re.split(r"(\*\*/|\*|\?)", pattern.removeprefix("./"))
    stands_for = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return "".join(stands_for.get(part, re.escape(part)) for part in parts)


def listed(folder: Path) -> Iterator[str]:
    """Yield the paths of the regular files below a folder. Blocks."""
    seen = 0
    for directory, folders, files in os.walk(folder):  # which follows no links
        for name in files:
            yield Path(directory, name).relative_to(folder).as_posix()
        seen += len(folders) + len(files)
        if seen > MOST_LISTED:
            return


def read(folder: Path, path: str) -> bytes | None:
    """Return the beginning of a regular file, one byte more than is kept; else None. Blocks."""
    try:
        # A pipe or a device blocks nobody, and a link leads nowhere.
        number = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return None
        return file.read(MOST_BYTES + 1)


def as_text(data: bytes) -> str:
    """Return a file's content as it is recorded; what is not UTF-8 is replaced."""
    text = writable(data[:MOST_BYTES].decode("utf-8", "replace"))
    return text + "\n[cut here]" if len(data) > MOST_BYTES else text
