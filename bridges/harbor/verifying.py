"""Verification: the container is restored, the tests run, and their results are read.

Nothing that the agent left may speak for it. Whatever it started has ended by now. The image's
programs, libraries and interpreters are put back as they were, and what would be run or loaded
without being asked for is removed (see :mod:`~vf.bridges.harbor.protected`). The tests and
``/logs/verifier`` are made then, by user 0, after whatever lay there was removed.
"""

from __future__ import annotations

import secrets
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf.bridges.harbor import container
from vf.bridges.harbor.container import Spoilt, as_root, said, spoiling
from vf.bridges.harbor.model import VERIFIER, Part
from vf.bridges.harbor.protected import SYSTEM, Guarded, Protected
from vf.bridges.harbor.verdict import Verdict, read_pytest, read_rewards
from vf.sandbox.audit import Auditable, Change
from vf.sandbox.contract import ExecResult, Sandbox

MOST_REWARD = 2**20  # bytes of a reward file
MOST_OUTPUT = 2**20  # bytes of what tests print
MOST_PUT_BACK = 2**30  # bytes of an image's files
_NAMED = 50  # paths that a trace names
_MOST_DOUBTFUL = 5000  # paths that are looked into
_PRELOAD = "/etc/ld.so.preload"


@dataclass(slots=True)
class Known:
    """What is known of an image.

    Attributes:
        guarded: Which of its paths the tests rely on, once that was looked up.
    """

    guarded: Guarded | None = None


Fresh = Callable[[], AbstractAsyncContextManager[Sandbox]]


async def put_right(sandbox: Sandbox, fresh: Fresh, known: Known) -> dict[str, Any]:
    """Undo what was done to files that the tests rely on, and return what that was.

    Args:
        sandbox: The container, in which nothing runs any more.
        fresh: Opens another like it, unused.
        known: Remembers what the image holds, between calls for the same image.

    Raises:
        Spoilt: It cannot be undone.
        SandboxError: A container is lost.
    """
    if not isinstance(sandbox, Auditable):
        return {"compared": False}
    mark = f".vf-compared-{secrets.token_hex(8)}"
    with spoiling("the container cannot be compared with its image"):
        if await _denied(sandbox, f"/{mark}"):
            await sandbox.write_file(f"/var/tmp/{mark}", "")
        changes = await sandbox.changes()
    if not any(change.path.endswith(mark) for change in changes):
        return {"compared": False}  # not every runtime lets its engine see what is written
    async with AsyncExitStack() as stack:
        clean: Sandbox | None = None
        if known.guarded is None:
            clean = await stack.enter_async_context(fresh())
            known.guarded = await guarded(clean)
        folders, changes = await _folders(sandbox, known.guarded, changes, mark)
        marks = [change.path for change in changes if change.path.endswith(f"/{mark}")]
        found = known.guarded.find([each for each in changes if each.path not in marks], folders)
        if found.of_image:
            if clean is None:
                clean = await stack.enter_async_context(fresh())
            await _put_back(sandbox, clean, found)
        elif _PRELOAD in found.added:
            await _silence(sandbox)
    for some in _in_pieces([*found.added, *marks]):
        await as_root(sandbox, f"rm -rf -- {' '.join(map(shlex.quote, some))}")
    return {
        name: list(paths[:_NAMED]) + [f"and {len(paths) - _NAMED} more"] * (len(paths) > _NAMED)
        for name, paths in {"put_back": found.of_image, "removed": found.added}.items()
        if paths
    }


async def _folders(
    sandbox: Sandbox, image: Guarded, changes: list[Change], mark: str
) -> tuple[set[str], list[Change]]:
    """Return which doubtful paths are folders still, and the changes with the marks that tell.

    A file is written into each, and looked for among the changes by its name: if a link takes the
    folder's place, it is elsewhere. No program of the container's has a part in that.
    """
    doubtful = image.doubtful(changes)
    if not doubtful:
        return set(), changes
    if len(doubtful) > _MOST_DOUBTFUL:
        raise Spoilt(f"{len(doubtful)} of the image's own files were changed")
    assert isinstance(sandbox, Auditable)
    with spoiling("the container cannot be compared with its image"):
        # What the container's user may not write to, it has not changed either.
        denied = {path for path in doubtful if await _denied(sandbox, f"{path}/{mark}")}
        changes = await sandbox.changes()
    there = {change.path for change in changes}
    return denied | {path for path in doubtful if f"{path}/{mark}" in there}, changes


async def _denied(sandbox: Sandbox, path: str) -> bool:
    """Write an empty file where there is a folder; return whether the user may not."""
    try:
        await sandbox.write_file(path, "")
    except PermissionError:
        return True
    except (NotADirectoryError, FileExistsError, FileNotFoundError):
        pass
    return False


async def guarded(clean: Sandbox) -> Guarded:
    """Look up which programs, libraries and modules an image has.

    Raises:
        Spoilt: Its shell cannot list them.
    """
    path = await clean.exec(["/bin/sh", "-c", 'printf %s "$PATH"'], cwd="/")
    folders = [each for each in path.stdout.split(":") if each.startswith("/")]
    bins = " ".join(map(shlex.quote, dict.fromkeys([*folders, *SYSTEM])))
    line = (
        f"for d in {bins}; do ls -1A $d/ 2>/dev/null; done; echo /; "
        "find / -xdev -name '*.so*' 2>/dev/null | sed 's|.*/||'; echo /; "
        "for d in /usr/lib/python3* /usr/local/lib/python3* /opt/*/lib/python3*; do "
        "ls -1A $d/ $d/site-packages/ $d/dist-packages/ 2>/dev/null; done; echo /"
    )
    listed = await clean.exec(
        ["/bin/sh", "-c", line], user=container.ROOT, cwd="/", max_output=2**24, timeout=120.0
    )
    programs, libraries, modules, *_ = [*listed.stdout.split("\n/\n"), "", "", ""]
    if not listed.ok or listed.truncated:
        raise Spoilt(f"the image's own programs cannot be listed: {said(listed)}")
    return Guarded(
        folders,
        programs.split("\n"),
        libraries.split("\n"),
        (name.partition(".")[0] for name in modules.split("\n")),
    )


async def _put_back(sandbox: Sandbox, clean: Sandbox, found: Protected) -> None:
    """Put the image's files back.

    They are written by the supervisor. Only when the shell, its loader and its libraries are the
    image's again is any program of the container's started.
    """
    with tempfile.TemporaryDirectory(prefix="vf-harbor-") as folder:
        await _fetch(clean, found.changed, Path(folder), whole=False)
        await _fetch(clean, found.deleted, Path(folder), whole=True)
        if _PRELOAD in (*found.added, *found.of_image):
            await _silence(sandbox)
        with spoiling("the image's files cannot be put back"):
            try:
                await sandbox.upload(folder, "/", leave_out=(), max_bytes=MOST_PUT_BACK)
            except ValueError as error:
                raise Spoilt(f"the image's files cannot be put back: {error}") from error


async def _silence(sandbox: Sandbox) -> None:
    """Have the loader load nothing of the agent's into the programs that are run next."""
    with spoiling("the image's files cannot be put back"):
        await sandbox.write_file(_PRELOAD, "")


async def _fetch(clean: Sandbox, paths: Sequence[str], folder: Path, *, whole: bool) -> None:
    """Copy files out of an unused container; folders only where that is allowed.

    Links that lead elsewhere are copied as what they lead to: no absolute one can be told apart
    from one that leads out of what is copied.
    """
    aside = f"/vf-originals-{secrets.token_hex(8)}"
    folders = f'cp -PR "$f" "{aside}$f"' if whole else "exit 3"
    for some in _in_pieces(paths):
        done = await clean.exec(
            [
                "/bin/sh",
                "-c",
                'for f in "$@"; do [ -e "$f" ] || [ -L "$f" ] || continue; '
                f'mkdir -p "{aside}${{f%/*}}" || exit 1; '
                f'if [ -d "$f" ] && [ ! -L "$f" ]; then echo "$f"; {folders} || exit 1; else '
                f'case "$(readlink "$f")" in /*|*..*) cp -L "$f" "{aside}$f" || exit 1;; '
                f'*) cp -PR "$f" "{aside}$f" || exit 1;; esac; fi; done; chmod -R a+rX {aside}',
                "sh",
                *some,
            ],
            user=container.ROOT,
            cwd="/",
            timeout=container.LIMIT,
        )
        if done.returncode == 3:
            raise Spoilt(f"something else replaces the folder {done.stdout.strip()}")
        if not done.ok:
            raise Spoilt(f"the image's files cannot be put back: {said(done)}")
    if paths:
        try:
            await clean.download(aside, folder, max_bytes=MOST_PUT_BACK)
        except FileNotFoundError:
            return  # there are none such in the image
        except ValueError as error:
            raise Spoilt(f"too much of the image was changed to put it back: {error}") from error


def _in_pieces(paths: Sequence[str], size: int = 200) -> list[Sequence[str]]:
    return [paths[first : first + size] for first in range(0, len(paths), size)]


async def run_tests(
    sandbox: Sandbox, part: Part, env: Mapping[str, str], *, key: str, end: bool
) -> tuple[Verdict, ExecResult | None]:
    """Put the tests in, run them, and read what they say.

    Args:
        sandbox: Where: put right, or the tests' own.
        part: What they belong to.
        env: Their variables.
        key: Which of several keys is the reward.
        end: Whether to end what they have started before their verdict is read.

    Raises:
        Spoilt: The container does not let them run.
        SandboxError: It is lost.
    """
    await as_root(sandbox, f"rm -rf {VERIFIER} && mkdir -p {VERIFIER}")
    if part.verifier.user not in (None, "root", container.ROOT):
        await as_root(sandbox, f"chmod 777 {VERIFIER}")
    await container.copy_in(sandbox, part.tests)
    result = await sandbox.exec(
        container.command(part.tests),
        env=env,
        user=part.verifier.user or container.ROOT,
        timeout=part.verifier.seconds or 600.0,
        max_output=MOST_OUTPUT,
    )
    if result.ended or result.timed_out:
        return Verdict(problem=f"the tests did not end: {said(result)}"), result
    if part.verdict == "pytest":
        return read_pytest(result.stdout), result
    if end:
        await container.end_programs(sandbox)
    text = await container.fetch(sandbox, f"{VERIFIER}/reward.txt", MOST_REWARD)
    table = await container.fetch(sandbox, f"{VERIFIER}/reward.json", MOST_REWARD)
    return read_rewards(text, table, key), result
