"""Operations on a task's container from outside: by its supervisor, or as its user 0.

Whatever a policy does to its container, and to the programs in it, may make these fail. That is
:class:`Unverifiable`: it earns nothing, and is not an infrastructure failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import time
from collections.abc import Iterator

from vf.bridges.harbor.config import Healthcheck
from vf.bridges.harbor.model import AGENT_LOGS, ARTIFACTS, SOLUTION, TESTS, VERIFIER, Script
from vf.sandbox.audit import Auditable
from vf.sandbox.contract import ExecResult, Sandbox

ROOT = "0"
# Not /usr/local, which comes first elsewhere, and where an rm of the agent's may lie.
OWN_PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
TIMEOUT = 60.0  # seconds for anything here
MAX_TESTS_BYTES = 2**30  # bytes of a task's tests or solution
_TRIES = 5
_MAX_OUTPUT = 500  # characters


class Unverifiable(Exception):
    """The container cannot be verified, because of what was done in it; the message says how."""


@contextlib.contextmanager
def as_unverifiable(what: str, *others: type[Exception]) -> Iterator[None]:
    """Treat an OSError, and errors of other kinds, as caused by the container's programs.

    Raises:
        Unverifiable: If there was such an error.
    """
    kinds: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except kinds as error:
        raise Unverifiable(f"{what}: {error}") from error


def failure_of(result: ExecResult) -> str:
    """Return how a command failed, in one line."""
    if result.ended:
        return "the container has ended through what ran in it"
    if result.timed_out:
        return f"it took longer than {result.duration:.0f} s"
    output = " ".join((result.stderr or result.stdout).split())[-_MAX_OUTPUT:]
    return f"exit code {result.returncode}" + (f", after: {output}" if output else "")


async def make_folders(sandbox: Sandbox) -> None:
    """Make the folders that tasks count on, which anybody may write to."""
    folders = f"{AGENT_LOGS} {ARTIFACTS} {VERIFIER}"
    # Podman's root folder lets nobody write, and user 0 has no capability to do it nonetheless.
    writable = "[ -w / ] || chmod u+w /"
    await as_root(sandbox, f"{writable}; mkdir -p {folders} && chmod 777 {folders}")


async def as_root(sandbox: Sandbox, line: str, input: bytes | None = None) -> None:
    """Run a line of shell as user 0, with programs of the image's own and no others.

    Args:
        sandbox: The container.
        line: Command line for the shell.
        input: Standard input of the command; None leaves it empty.

    Raises:
        Unverifiable: If the command fails.
    """
    result = await sandbox.exec(
        ["/bin/sh", "-c", line], input=input, user=ROOT, cwd="/", env=OWN_PATH, timeout=TIMEOUT
    )
    if not result.ok:
        raise Unverifiable(f"{line.split()[0]} failed in the container: {failure_of(result)}")


async def end_programs(sandbox: Sandbox) -> None:
    """End everything that runs in the container.

    Raises:
        Unverifiable: If programs do not end.
        SandboxError: If the container is lost.
    """
    if isinstance(sandbox, Auditable):
        with as_unverifiable("what runs in the container cannot be ended"):
            await sandbox.end_programs()
        return
    for user in (None, ROOT):
        for _ in range(_TRIES):  # what is killed may kill the killer first
            result = await sandbox.exec(
                ["/bin/sh", "-c", "kill -9 -1; exit 0"], user=user, cwd="/", timeout=TIMEOUT
            )
            if result.ok or result.returncode == 137:
                break
        else:
            raise Unverifiable(f"what the agent has started cannot be ended: {failure_of(result)}")


async def empty_folder(sandbox: Sandbox, folder: str) -> None:
    """Remove what is in a folder, if there is one.

    Raises:
        Unverifiable: If the folder cannot be emptied.
    """
    quoted = shlex.quote(folder)
    await as_root(sandbox, f"rm -rf -- {quoted}/* {quoted}/.[!.]* {quoted}/..?*")


async def copy_in(sandbox: Sandbox, script: Script) -> None:
    """Copy a script and the files beside it into a folder that did not exist before, as user 0.

    Raises:
        Unverifiable: If the files cannot be written.
        ValueError: If a source is too large, or a link in it leads out of it.
    """
    if not script.sources:
        return
    staged = f"/tmp/{secrets.token_hex(8)}"
    with as_unverifiable(f"{script.folder} cannot be written"):
        for source in script.sources:
            if source.is_dir():
                await sandbox.upload(source, staged, leave_out=(), max_bytes=MAX_TESTS_BYTES)
            else:
                await sandbox.write_file(f"{staged}/{source.name}", source.read_bytes())
    folder = script.folder
    await as_root(
        sandbox,
        f"rm -rf {folder} && mkdir -p {folder} && cp -R {staged}/. {folder}/ && chmod 755 {folder}",
    )
    await sandbox.exec(["/bin/rm", "-rf", staged], cwd="/", timeout=TIMEOUT)


def command(script: Script) -> list[str]:
    """Return how a script is run, with both of its outputs in one.

    As the kernel does, by its first line; so it need not be executable, as in many a checkout.
    """
    first_line = ""
    for source in script.sources:
        path = source / script.name if source.is_dir() else source
        if path.name == script.name and path.is_file():
            with path.open("rb") as file:
                first_line = file.readline(1000).decode("utf-8", "replace").strip()
    interpreter = first_line[2:].split(None, 1) if first_line.startswith("#!") else ["/bin/sh"]
    if not script.sources:  # the image's own, whose first line is not known here
        return ["/bin/sh", "-c", 'chmod +x "$1"; exec "$1" 2>&1', "sh", script.path]
    return ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *interpreter, script.path]


async def clear(sandbox: Sandbox) -> None:
    """Remove what verified the last step, so that the next one's agent does not see it."""
    await as_root(sandbox, f"rm -rf {TESTS} {SOLUTION} {VERIFIER}")
    await make_folders(sandbox)


async def fetch(sandbox: Sandbox, path: str, max_bytes: int) -> bytes | None:
    """Return a file's content; None if there is none.

    Raises:
        Unverifiable: If the file cannot be read, or is larger than ``max_bytes``.
    """
    try:
        return await sandbox.read_file(path, max_bytes=max_bytes)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Unverifiable(f"{path} cannot be read: {error}") from error


async def wait_until_healthy(sandbox: Sandbox, check: Healthcheck) -> str:
    """Repeat a health check until it succeeds; return how it failed otherwise."""
    grace_end = time.monotonic() + check.start_period_sec
    failures = 0
    while True:
        starting = time.monotonic() < grace_end
        result = await sandbox.exec(check.command, timeout=check.timeout_sec)
        if result.ok:
            return ""
        failures += not starting
        if failures >= check.retries or result.ended:
            return f"its health check failed: {failure_of(result)}"
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)
