"""Files that a policy changed in a container and that could affect its tests.

Between the agent and the tests, the container is compared with its image. Put back is what the
tests rely on without knowing it: the image's own programs, loaders, libraries and interpreters,
where they were changed or deleted. Removed is what was added to be run or loaded in their place or
along with them. All else is the task's business, and stays.

Only paths are known of what was changed. A folder counts as changed when something in it was; so a
changed path with nothing changed below it is a file, a folder that was merely touched, or something
that took a folder's place, such as a link to another one. Whether it is a folder has to be found
out (:meth:`Guarded.doubtful`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from vf.sandbox.audit import Change

SYSTEM = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
LIBRARIES = ("lib", "lib32", "lib64", "libx32", "libexec")
# Of /etc, what decides on which code programs load.
ETC = re.compile(
    r"/etc/(ld\.so\..*|ld-musl-.*|nsswitch\.conf|environment|profile|profile\.d/.*|bash\.bashrc"
    r"|bashrc|zsh/.*|python3.*/.*|inputrc)"
)
# Files that shells, interpreters and test runners read by themselves when they start.
HOOKS = re.compile(
    r".*/(sitecustomize|usercustomize)(\.py|\.pyc|\.so|\.[^/]*\.so|/.*)"
    r"|.*/(site|dist)-packages/[^/]*\.(pth|egg-link)"
    r"|/(root|home/[^/]*)/\.(bashrc|bash_profile|bash_login|profile|zshrc|zshenv|zprofile|pythonrc.*)"
    r"|/(conftest\.py|pytest\.ini|\.pytest\.ini|pyproject\.toml|tox\.ini|setup\.cfg|__init__\.py)"
)
# Folders in which such files are looked for; where one was added and is empty, it may be a link.
PLACES = re.compile(
    r"/etc/profile\.d|.*/(site|dist)-packages|.*/lib(64)?/python[\d.]*"
    r"|/(root|home/[^/]*)/\.local(/lib)?|.*/(glibc-hwcaps|tls)"
)
HOMES = re.compile(r"/root|/home|/home/[^/]*|/etc|/etc/profile\.d")
_STDLIB = re.compile(r".*/lib(64)?/python\d[\d.]*/(?!(site|dist)-packages(/|$)).+")
_SITE = re.compile(r".*/(site|dist)-packages/([^/.]+)(\.[^/]*)?(/.*)?")
_HARDWARE = re.compile(r".*/(glibc-hwcaps|tls|haswell|x86_64)/.*")


@dataclass(frozen=True, slots=True)
class Protected:
    """What was done to files that the tests rely on.

    Attributes:
        changed: Of the image.
        deleted: Likewise.
        added: What speaks without being asked.
    """

    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def of_image(self) -> tuple[str, ...]:
        """What has to be put back."""
        return tuple(sorted((*self.changed, *self.deleted)))

    def __bool__(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self.changed or self.deleted or self.added)


class Guarded:
    """Which paths of an image the tests rely on.

    Args:
        path: The directories of the image's ``PATH``.
        programs: The names of all programs in them.
        libraries: The names of all shared libraries of the image.
        modules: The names of all modules in its interpreters' directories.
    """

    def __init__(
        self,
        path: Sequence[str] = (),
        programs: Iterable[str] = (),
        libraries: Iterable[str] = (),
        modules: Iterable[str] = (),
    ) -> None:
        self._programs, self._libraries = frozenset(programs), frozenset(libraries)
        self._modules = frozenset(modules)
        self._bins = tuple(dict.fromkeys([*path, *SYSTEM]))
        above = {str(PurePosixPath(folder).parent).rstrip("/") for folder in self._bins}
        self._libs = tuple(f"{place}/{name}" for place in sorted(above) for name in LIBRARIES)
        self._whole = (*self._bins, *self._libs, *(f"{place}/pyvenv.cfg" for place in above))
        self._above = {
            str(parent) for each in self._whole for parent in PurePosixPath(each).parents
        }

    def doubtful(self, changes: Collection[Change]) -> list[str]:
        """Return the changed paths that may not be the folders that they were."""
        full = _with_something_below(changes)
        return [
            change.path
            for change in changes
            if change.kind == "changed" and change.path not in full and self._guards(change.path)
        ]

    def find(self, changes: Collection[Change], folders: Collection[str] = ()) -> Protected:
        """Return which changes have to be undone.

        Args:
            changes: All of them.
            folders: Those of :meth:`doubtful` that are folders.
        """
        full = _with_something_below(changes)
        found: dict[str, list[str]] = {"changed": [], "deleted": [], "added": []}
        for change in changes:
            path, there = change.path, change.path in full or change.path in folders
            match change.kind:
                case "added":
                    undo = self._speaks(path, empty=path not in full)
                case "changed":
                    undo = not there and self._guards(path)
                case "deleted":
                    undo = self._guards(path)
            if undo:
                found[change.kind].append(path)
        return Protected(*(tuple(sorted(found[kind])) for kind in ("changed", "deleted", "added")))

    def _guards(self, path: str) -> bool:
        """Return whether the tests rely on what the image has there."""
        if _below(path, self._whole) or path in self._above or HOMES.fullmatch(path):
            return True
        return bool(ETC.fullmatch(path) or HOOKS.fullmatch(path) or PLACES.fullmatch(path))

    def _speaks(self, path: str, *, empty: bool) -> bool:
        """Return whether something that was added is run or loaded without being asked for."""
        name = path.rpartition("/")[2]
        if ETC.fullmatch(path) or HOOKS.fullmatch(path):
            return True
        if empty and (path in self._whole or PLACES.fullmatch(path)):
            return True
        if _below(path, self._bins) and name in self._programs:
            return True
        if site := _SITE.fullmatch(path):
            return site[2] in self._modules
        if not _below(path, self._libs):
            return False
        shadows = ".so" in name and (name in self._libraries or bool(_HARDWARE.fullmatch(path)))
        return shadows or bool(_STDLIB.fullmatch(path))


def _with_something_below(changes: Iterable[Change]) -> set[str]:
    return {str(parent) for change in changes for parent in PurePosixPath(change.path).parents}


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
