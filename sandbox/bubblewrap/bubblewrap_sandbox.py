"""A sandbox of namespaces: bubblewrap makes them, and the supervisor is PID 1 in them.

Its stdin and stdout are pipes of this process. When this process closes them, or dies for any
reason, the kernel ends PID 1, and with it everything in the namespace.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Self

from vf.runtime.errors import SandboxError
from vf.sandbox.bubblewrap.filters import program_filter, supervisor_filter
from vf.sandbox.bubblewrap.system import (
    FILES,
    ID,
    USER,
    System,
    checked_system,
    hidden_files,
    namespaces,
    outer_uid,
)
from vf.sandbox.child import READ_AHEAD, START_TIMEOUT, end, kill
from vf.sandbox.contract import Limits
from vf.sandbox.session import Session
from vf.sandbox.session_sandbox import SessionSandbox, see_through
from vf.sandbox.spec import Pairs, pairs

WORKSPACE = "/workspace"
SHM = 16 * 2**20
# Of a process. Also limits the descriptors in transit in sockets: the kernel counts those per user
# that bubblewrap runs as, and a process whose limit the count has reached can pass none.
OPEN_FILES = 512
PENDING_SIGNALS = 1024
FEWEST_PIDS = 16
BACKSTOP = 4  # times the memory of all processes: the kernel's limit for one, should the watch fail
# For enter.py, in a user namespace that owns nothing of this machine's; it gives them up.
CAPABILITIES = ("--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP")
_numbers, _turns = itertools.count(1), itertools.count()


@dataclass(frozen=True, slots=True)
class NamespaceProfile:
    """The settings of a sandbox.

    Attributes:
        limits: Its limits.
        workdir: The working directory.
        env: Environment variables of everything that runs inside; a mapping is turned into sorted
            pairs.

    Raises:
        ValueError: If the limits do not fit together, or the working directory is not below ``/``.
    """

    limits: Limits = field(default_factory=Limits)
    workdir: str = WORKSPACE
    env: Pairs | Mapping[str, str] = ()

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        object.__setattr__(self, "env", pairs(self.env))
        limits = self.limits
        if not math.isfinite(limits.lifetime):
            raise ValueError("lifetime must be finite: a sandbox has to end by itself")
        if limits.pids < FEWEST_PIDS:
            raise ValueError(f"pids must be at least {FEWEST_PIDS}, got {limits.pids}")
        if not self.workdir.startswith("/") or os.path.normpath(self.workdir) == "/":
            raise ValueError(f"workdir must be an absolute path below /, got {self.workdir!r}")
        if (files := limits.workspace + limits.tmp + SHM) >= limits.memory:
            raise ValueError(
                f"workspace + tmp + {SHM} in /dev/shm = {files} bytes, all of which count as "
                f"memory, leave none of memory = {limits.memory}"
            )

    def plan(self) -> dict[str, object]:
        """Return the settings for enter.py."""

        def options(size: float, mode: str) -> str:
            return f"size={int(size)},nr_inodes={int(self.limits.files)},mode={mode}"

        folders = {
            self.workdir: options(self.limits.workspace, "0700"),
            "/tmp": options(self.limits.tmp, "1777"),
            "/dev/shm": options(SHM, "1777"),
        }
        return {
            "folders": folders,
            "cores": _next_cores(math.ceil(self.limits.cpus)),
            "filter": base64.b64encode(supervisor_filter()).decode(),
        }

    def flags(self) -> list[str]:
        """Return the flags of the supervisor."""
        limits = self.limits
        rlimits = {
            "CORE": 0,
            "DATA": BACKSTOP * int(limits.memory),
            "FSIZE": int(limits.workspace),
            "MEMLOCK": 2**16,
            "NOFILE": OPEN_FILES,
            "NPROC": int(limits.pids),
            "SIGPENDING": PENDING_SIGNALS,  # also counts for the user that bubblewrap runs as
        }
        flags = ["--user", f"{ID}:{ID}", "--workdir", self.workdir, "--home", self.workdir]
        flags += ["--lifetime", str(limits.lifetime), "--memory", str(int(limits.memory))]
        flags += ["--filter", base64.b64encode(program_filter()).decode()]
        for name, value in rlimits.items():
            flags += ["--rlimit", f"{name}={value}"]
        return flags

    def variables(self) -> dict[str, str]:
        """Return the variables of everything that runs inside."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "USER": USER,
            "LOGNAME": USER,
            **dict(self.env),
        }


def _next_cores(count: int) -> list[int]:
    """Return ``count`` of the cores that this process may use; sandboxes take turns."""
    cores = sorted(os.sched_getaffinity(0))
    first = next(_turns) * count
    return sorted({cores[(first + number) % len(cores)] for number in range(count)})


class BubblewrapSandbox(SessionSandbox):
    """Processes of this machine in namespaces of their own; made by :meth:`create`.

    They see the system's programs and libraries, read-only, and nothing else of this machine: no
    network, none of its files, processes, users or variables. Code runs without any right; it has
    the supervisor's uid, but cannot signal PID 1, nor read it.

    Attributes:
        name: Its name in error messages.
    """

    def __init__(self, name: str, session: Session, process: asyncio.subprocess.Process) -> None:
        super().__init__(name, session)
        self._process = process

    @property
    def pid(self) -> int:
        """The process id of bubblewrap on this machine."""
        return self._process.pid

    @classmethod
    async def create(cls, profile: NamespaceProfile | None = None, *, warm: bool = False) -> Self:
        """Start one. It is ended again if this is cancelled or fails.

        Args:
            profile: The sandbox's settings.
            warm: Start the lasting interpreter and shell now, so that the first call need not wait.

        Raises:
            ConfigError: If none can be made on this machine; says how to change that.
            SandboxError: If it did not start.
        """
        profile, system = profile or NamespaceProfile(), await checked_system()
        name = f"bubblewrap-{os.getpid()}-{next(_numbers)}"
        try:
            process = await _spawn(profile, system)
        except OSError as error:
            raise SandboxError(f"{name} did not start: {error}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        stderr: list[bytes] = []
        reading = asyncio.ensure_future(_read_stderr(process.stderr, stderr))

        async def cause() -> str:
            await reading
            return _describe(await process.wait(), stderr)

        session = Session(process.stdout, process.stdin, name=name, cause=cause)
        sandbox = cls(name, session, process)
        try:
            await session.begin(timeout=START_TIMEOUT)
            if warm:
                await session.warm()
        except BaseException:
            await see_through(sandbox.close())
            raise
        return sandbox

    async def _outside(self) -> str | None:
        """Return what ended it if that was a signal to bubblewrap, which nothing inside can send.

        Otherwise what ran inside ended PID 1: by its memory, its time or its signals.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                code = await self._process.wait()
                return f"signal {-code} ended bubblewrap" if code < 0 else None
        return None

    async def _close(self) -> None:
        """End it; kill it if this is cancelled, as when the event loop ends."""
        assert self._session is not None
        try:
            await self._session.close()
            await end(self._process)
        except asyncio.CancelledError:
            await kill(self._process)


async def _spawn(profile: NamespaceProfile, system: System) -> asyncio.subprocess.Process:
    package = resources.files("vf.sandbox")
    enter = (package / "bubblewrap/enter.py").read_text("utf-8")
    supervisor = (package / "supervisor.py").read_text("utf-8")
    arguments = [*namespaces(), *CAPABILITIES, *system.mounts]
    for name, value in profile.variables().items():
        arguments += ["--setenv", name, value]
    arguments += ["--proc", "/proc", *hidden_files(), "--dev", "/dev"]
    # Reading it gives zeros, too, but it cannot be mapped: mapped zeros are shared without a file.
    arguments += ["--dev-bind", "/dev/full", "/dev/zero"]
    arguments += ["--dir", "/tmp", "--dir", profile.workdir]
    inside = [system.python, "-I", "-S", "-c", enter, json.dumps(profile.plan()), supervisor]
    uid = outer_uid()
    with _files() as (files, descriptors):
        arguments += [*files, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
        return await asyncio.create_subprocess_exec(
            system.bwrap,
            *arguments,
            "--",
            *inside,
            *profile.flags(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=descriptors,
            cwd="/",
            env={},
            start_new_session=True,  # Ctrl-C is for this process, which then ends it
            limit=READ_AHEAD,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )


@contextlib.contextmanager
def _files() -> Iterator[tuple[list[str], list[int]]]:
    """Yield bubblewrap's arguments for the small files of /etc, and their descriptors."""
    arguments: list[str] = []
    descriptors: list[int] = []
    try:
        for path, text in FILES.items():
            file = os.memfd_create("etc")
            descriptors.append(file)
            os.write(file, text.encode())
            os.lseek(file, 0, os.SEEK_SET)
            arguments += ["--perms", "0444", "--ro-bind-data", str(file), path]
        yield arguments, descriptors
    finally:
        for file in descriptors:
            os.close(file)


async def _read_stderr(reader: asyncio.StreamReader, chunks: list[bytes]) -> None:
    """Keep the beginning of bubblewrap's and the supervisor's stderr."""
    while data := await reader.read(READ_AHEAD):
        if sum(map(len, chunks)) < 4000:
            chunks.append(data)


def _describe(code: int, chunks: list[bytes]) -> str:
    text = b"".join(chunks).decode("utf-8", "replace").strip()[-2000:]
    return f"exit code {code}: {text}" if text else f"exit code {code}"
