"""Untrusted patches: read, checked and cut to what a repair may change.

A model's patch comes out of a container in which it could do anything, ``git`` included. It is
data: split into files, of which only those are kept that lie in the repository and steer neither
the tests nor the program that runs them.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

# Files that configure a test runner, or Python itself, and are not part of a repair. Patterns of a
# path, or of a name at any depth.
STEERING = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
    *("setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py", "*.pth"),
    *(".coveragerc", ".gitattributes", ".gitmodules"),
    *("*.pyc", "*.pyo"),  # compiled tests, which are loaded instead of those of the same content
)
# Folders in which Python finds a test runner's plugins.
_DISTRIBUTIONS = ("*.dist-info", "*.egg-info", "*.egg")
# Modules that a test runner imports: a new one of that name in the repository would come first.
_RUNNERS = (
    *("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli", "py"),
    *(
        "attr",
        "attrs",
        "xdist",
        "execnet",
        "colorama",
        "pygments",
        "django",
        "nose",
        "more_itertools",
    ),
    *("pathlib2", "atomicwrites", "wcwidth", "six", "importlib_metadata", "typing_extensions"),
)
_SHADOWS = frozenset({*sys.stdlib_module_names, *_RUNNERS})
_IMPORT_ROOTS = ("", "src", "lib")
_LARGEST_PATH = 4096
_HEAD = re.compile(rb'diff --git (?:"a/(?P<q>.*)" "b/.*"|a/(?P<a>.*) b/(?P<b>.*))')
_FILE = re.compile(rb"(?:---|\+\+\+) (?P<path>.*?)(?:\t.*)?")


@dataclass(frozen=True, slots=True)
class FilePatch:
    """A patch's change of one file.

    Attributes:
        path: The file, relative to the repository.
        data: The part of the patch.
        new: Whether it makes the file.
        fault: Why it cannot be applied here; empty if it can.
    """

    path: str
    data: bytes
    new: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """The kept part of a patch.

    Attributes:
        data: The patch.
        files: Files that it changes.
        dropped: Files whose changes were left out, each with the reason.
    """

    data: bytes
    files: tuple[str, ...]
    dropped: tuple[tuple[str, str], ...]


def split(patch: bytes) -> Iterator[FilePatch]:
    """Yield the parts of a patch in the format of ``git diff``; what precedes them is left out."""
    part: list[bytes] = []
    for line in [*re.split(rb"(?<=\n)", patch), b"diff --git "]:
        # Inside of a file's part every line begins with another character.
        if line.startswith(b"diff --git ") and part:
            yield _file(part)
            part = []
        if part or line.startswith(b"diff --git "):
            part.append(line)


def keep(patch: bytes, *, tests: Collection[str], allowed: Collection[str] = ()) -> Kept:
    """Return the part of a model's patch that may be applied before its tests are run.

    Args:
        patch: The patch.
        tests: Files of the tests, which are not the model's to change.
        allowed: Files that it may change though they steer tests: those of the known repair.
    """
    data, files, dropped = [], [], []
    for part in split(patch):
        reason = part.fault or _reason(part, tests, allowed)
        if reason:
            dropped.append((part.path, reason))
        else:
            data.append(part.data)
            files.append(part.path)
    return Kept(b"".join(data), tuple(files), tuple(dropped))


def touched(patch: bytes | str) -> list[str]:
    """Return the files that a patch changes, makes or removes."""
    data = patch.encode() if isinstance(patch, str) else patch
    return [part.path for part in split(data)]


def _reason(part: FilePatch, tests: Collection[str], allowed: Collection[str]) -> str:
    if any(part.path == test or test.startswith(f"{part.path}/") for test in tests):
        return "a file of the tests"
    if part.path in allowed:
        return ""
    *folders, name = PurePosixPath(part.path).parts
    if _like(name, (*STEERING, *_DISTRIBUTIONS)) or any(
        _like(folder, _DISTRIBUTIONS) for folder in folders
    ):
        return "steers the tests"
    if part.new and _shadows(part.path, allowed):
        return "takes the name of a module that runs the tests"
    return ""


def _like(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name.lower(), pattern) for pattern in patterns)


def _shadows(path: str, allowed: Collection[str]) -> bool:
    for root in _IMPORT_ROOTS:
        below = path.removeprefix(f"{root}/") if root else path
        first = below.partition("/")[0]
        if root and below == path:
            continue
        if first.partition(".")[0] in _SHADOWS and (first != below or first.endswith(_CODE)):
            return not any(
                other.startswith(path[: len(path) - len(below)] + first) for other in allowed
            )
    return False


_CODE = (".py", ".pyc", ".so", ".pyd", ".pyi")


def _file(lines: Sequence[bytes]) -> FilePatch:
    data = b"".join(lines)
    if not data.endswith(b"\n"):
        data += b"\n"
    heads = []
    for line in lines[1:]:
        if line.startswith((b"@@", b"GIT binary patch", b"Binary files")):
            break
        heads.append(line.rstrip(b"\r\n"))
    paths, fault = _paths(lines[0].rstrip(b"\r\n"), heads)
    path = sorted(paths)[0] if paths else ""
    fault = fault or _fault(path, heads)
    if len(paths) > 1:
        fault = "names two files"
    return FilePatch(
        path=path,
        data=data,
        new=any(head.startswith(b"new file mode") for head in heads),
        fault=fault,
    )


def _paths(head: bytes, heads: Sequence[bytes]) -> tuple[set[str], str]:
    """Return every file that the head of a part names, and the problem with them, if any."""
    paths: set[bytes] = set()
    match = _HEAD.fullmatch(head)
    if match is None:
        return set(), "no file"
    if match["q"] is not None:
        return {match["q"].decode("utf-8", "replace")}, "a name with quotes"
    if match["a"] == match["b"]:
        paths.add(match["a"])
    else:
        return {match["b"].decode("utf-8", "replace")}, "renames"
    for line in heads:
        named = _FILE.fullmatch(line)
        if named is None or named["path"] == b"/dev/null":
            continue
        if not named["path"].startswith((b"a/", b"b/")):
            return {named["path"].decode("utf-8", "replace")}, "a name with quotes"
        paths.add(named["path"][2:])
    try:
        return {path.decode("utf-8") for path in paths}, ""
    except UnicodeDecodeError:
        return {path.decode("utf-8", "replace") for path in paths}, "a name that is not UTF-8"


def _fault(path: str, heads: Sequence[bytes]) -> str:
    parts = PurePosixPath(path).parts
    if not parts or len(path) > _LARGEST_PATH or "\0" in path:
        return "no file"
    if path.startswith("/") or any(part in ("..", ".") for part in path.split("/")):
        return "leads out of the repository"
    if any(part.lower() == ".git" for part in parts):
        return "part of git's own folder"
    for head in heads:
        if head.startswith((b"rename ", b"copy ", b"similarity ", b"dissimilarity ")):
            return "renames"
        if head.startswith((b"new file mode", b"new mode", b"index ")) and head.endswith(
            (b" 120000", b" 160000")
        ):
            return "a link"
    return ""
