"""The context of a build: the files of a folder, and the images that its Dockerfile names."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from vf.runtime.errors import ConfigError
from vf.sandbox.spec import Build

RECIPE = "1"  # counts up when the same files would give another image
PIECE = 2**20  # bytes

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})")
_FROM_FLAG = re.compile(r"\s--from=(\S+)")


@dataclass(frozen=True, slots=True)
class Context:
    """The context of a build.

    Attributes:
        build: The build.
        digest: The digest of everything but the images that it starts from: the same content has
            the same digest, in any folder and written at any time.
        images: The images that the Dockerfile names, as far as known before the build.
        base: The one of them that the result starts from.
    """

    build: Build
    digest: str
    images: tuple[str, ...]
    base: str | None


def read_context(build: Build) -> Context:
    """Read a folder. Blocks for as long as reading all of its files takes.

    Raises:
        ConfigError: If there is no such folder, Dockerfile or stage; names the field.
        OSError: If a file cannot be read.
    """
    text = _dockerfile(build)
    stages = _Stages(text, dict(build.args))
    if build.target is not None and not stages.has(build.target):
        raise ConfigError(
            f"sandbox_spec.build.target = {build.target!r}: {_path(build)} has no such stage"
            + (f", only {', '.join(stages.names)}" if stages.names else "")
        )
    return Context(build, _digest(build), tuple(stages.images), stages.base(build.target))


def check_build(build: Build) -> None:
    """Check that a build's files exist.

    Raises:
        ConfigError: If there is no such folder or Dockerfile; names the field.
    """
    _dockerfile(build)


def write_context(context: Context, file: IO[bytes]) -> None:
    """Write a folder's files as the archive that an engine builds from.

    Raises:
        OSError: If a file cannot be read, or the files are no longer those of the context.
    """
    with tarfile.open(fileobj=file, mode="w") as archive:
        digest = _digest(context.build, archive)
    if digest != context.digest:
        raise OSError(f"the files in {context.build.folder} changed while they were read")


def _digest(build: Build, archive: tarfile.TarFile | None = None) -> str:
    """Return the digest of the build's files and settings, and add the files to an archive."""
    whole = hashlib.sha256()
    for setting in (RECIPE, build.dockerfile, build.args, build.target):
        whole.update(f"{setting!r}\n".encode())
    for name in _names(build):
        path = build.folder / name
        status = path.lstat()
        info = tarfile.TarInfo(name)
        info.mode = stat.S_IMODE(status.st_mode)
        info.mtime = int(status.st_mtime)
        if stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        elif stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
        elif not stat.S_ISREG(status.st_mode):
            continue  # a socket, say: no image can hold it
        entry = (name, info.type, info.mode, info.linkname)
        whole.update(f"{entry!r}\n".encode("utf-8", "surrogateescape"))
        if not info.isreg():
            if archive is not None:
                archive.addfile(info)
            continue
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
            if archive is not None:
                info.size = file.tell()
                file.seek(0)
                archive.addfile(info, file)
    return whole.hexdigest()


def _names(build: Build) -> list[str]:
    """Return the paths of the context, without those that .dockerignore names."""
    from docker.utils import exclude_paths

    ignore = build.folder / ".dockerignore"
    lines = ignore.read_text("utf-8").splitlines() if ignore.is_file() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return sorted(exclude_paths(str(build.folder), patterns, dockerfile=build.dockerfile))


def _path(build: Build) -> Path:
    return build.folder / build.dockerfile


def _dockerfile(build: Build) -> str:
    if not build.folder.is_dir():
        raise ConfigError(f"sandbox_spec.build.folder: there is no folder {build.folder}")
    name = PurePosixPath(build.dockerfile)
    if name.is_absolute() or ".." in name.parts or not _path(build).is_file():
        raise ConfigError(
            f"sandbox_spec.build.dockerfile: there is no file {build.dockerfile!r} in "
            f"{build.folder}"
        )
    return _path(build).read_text("utf-8", "replace")


class _Stages:
    """The stages of a Dockerfile: their names, and the images that they take from."""

    def __init__(self, text: str, args: Mapping[str, str]) -> None:
        self.names: list[str] = []
        self.images: dict[str, None] = {}
        self._starts: list[str] = []  # each stage's image or earlier stage
        self._by_name: dict[str, int] = {}
        values: dict[str, str] = {}
        for instruction, rest in _instructions(text):
            if instruction == "ARG" and not self._starts:
                name, _, default = rest.partition("=")
                values[name] = args.get(name, _filled(default.strip("\"'"), values))
            elif instruction == "FROM":
                words = [word for word in rest.split() if not word.startswith("--")]
                if not words:
                    continue
                start = _filled(words[0], values)
                self._take(start)
                self._starts.append(start)
                if len(words) == 3 and words[1].upper() == "AS":
                    self.names.append(words[2])
                    self._by_name[words[2].lower()] = len(self._starts) - 1
            elif instruction == "COPY" and (flag := _FROM_FLAG.search(f" {rest}")):
                self._take(flag[1])

    def has(self, target: str) -> bool:
        """Return whether a target is one of the stages, by name or number."""
        return target.lower() in self._by_name or (
            target.isdigit() and int(target) < len(self._starts)
        )

    def base(self, target: str | None) -> str | None:
        """Return the image that a stage starts from in the end; None where that is unknown."""
        if not self._starts:
            return None
        number = len(self._starts) - 1
        if target is not None:
            number = self._by_name.get(target.lower(), -1)
            number = int(target) if number < 0 and target.isdigit() else number
        while (earlier := self._by_name.get(self._starts[number].lower())) is not None:
            if earlier >= number:
                break
            number = earlier
        start = self._starts[number]
        return start if start in self.images else None

    def _take(self, name: str) -> None:
        stage = name.lower() in self._by_name or name.isdigit()
        if name and not stage and name != "scratch" and "$" not in name:
            self.images[name] = None


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile, each as one line."""
    pending = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#") or (not stripped and pending):
            continue
        if stripped.endswith("\\"):
            pending += stripped[:-1] + " "
            continue
        instruction, _, rest = (pending + stripped).strip().partition(" ")
        pending = ""
        if instruction:
            yield instruction.upper(), rest.strip()


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Replace variables by their values; unknown ones stay."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if match[3] == "+":
            return match[4] if values.get(name) else ""
        if match[3] == "-":
            return values.get(name) or match[4]
        return values.get(name, match[0])

    return _VARIABLE.sub(value, text)
