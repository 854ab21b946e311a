"""A sandbox of namespaces: the supervisor is PID 1 in them, and a fork of a zygote.

The zygote is this process's, in namespaces that bubblewrap made: see
:mod:`vf.sandbox.bubblewrap.zygote`. When this process closes the sandbox, or dies for any reason,
the kernel ends PID 1, and with it everything in the namespace.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from vf.runtime.errors import SandboxError
from vf.sandbox.bubblewrap.filters import program_filter, supervisor_filter
from vf.sandbox.bubblewrap.forks import Fork, fork
from vf.sandbox.bubblewrap.system import ID, USER, System, checked_system, hidden_files
from vf.sandbox.child import END_TIMEOUT, READ_AHEAD, START_TIMEOUT
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
# Folders that have something else in a sandbox, or nothing that a folder could be mounted on.
TAKEN = (
    "bin",
    "dev",
    "etc",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "proc",
    "sbin",
    "sys",
    "tmp",
    "usr",
)
BACKSTOP = 4  # times the memory of all processes: the kernel's limit for one, should the watch fail
TRIES = 3  # to start a sandbox whose zygote ends meanwhile
ZYGOTE_ENDS = 0.1  # seconds that bubblewrap takes to end after it
LONGEST_VARIABLE = 2**17 - 1  # bytes of NAME=VALUE: the kernel refuses a longer one
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
        ValueError: If the limits do not fit together, the working directory is not below ``/``, or
            in one of the system's folders, or a variable cannot be set.
    """

    limits: Limits = field(default_factory=Limits)
    workdir: str = WORKSPACE
    env: Pairs | Mapping[str, str] = ()

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        object.__setattr__(self, "env", pairs(self.env))
        _check_variables(dict(self.env))
        limits = self.limits
        if not math.isfinite(limits.lifetime):
            raise ValueError("lifetime must be finite: a sandbox has to end by itself")
        if limits.pids < FEWEST_PIDS:
            raise ValueError(f"pids must be at least {FEWEST_PIDS}, got {limits.pids}")
        if not self.workdir.startswith("/") or os.path.normpath(self.workdir) == "/":
            raise ValueError(f"workdir must be an absolute path below /, got {self.workdir!r}")
        first = os.path.normpath(self.workdir).lstrip("/").split("/")[0]
        if first in TAKEN:
            raise ValueError(
                f"workdir must not be in /{first}, which this machine's programs or the sandbox "
                f"need, got {self.workdir!r}; choose one like {WORKSPACE!r} or '/testbed'"
            )
        if (files := limits.workspace + limits.tmp + SHM) >= limits.memory:
            raise ValueError(
                f"workspace + tmp + {SHM} in /dev/shm = {files} bytes, all of which count as "
                f"memory, leave none of memory = {limits.memory}"
            )

    def request(self, uid: int) -> bytes:
        """Return what a supervisor needs from its zygote's user ``uid``: see zygote.py."""
        request = {"plan": self.plan(uid), "flags": self.flags(), "env": self.variables()}
        data = json.dumps(request).encode()
        return struct.pack(">I", len(data)) + data

    def plan(self, uid: int) -> dict[str, object]:
        """Return the settings for :func:`vf.sandbox.bubblewrap.enter.enter`."""

        def options(size: float, mode: str) -> str:
            return f"size={int(size)},nr_inodes={int(self.limits.files)},mode={mode}"

        folders = {
            self.workdir: options(self.limits.workspace, "0700"),
            "/tmp": options(self.limits.tmp, "1777"),
            "/dev/shm": options(SHM, "1777"),
        }
        return {
            "uid": uid,
            "user": ID,
            "hidden": hidden_files(),
            "folders": folders,
            "filter": base64.b64encode(supervisor_filter()).decode(),
        }

    def flags(self) -> dict[str, object]:
        """Return the flags of the supervisor, by their names."""
        limits = self.limits
        rlimits = {
            "CORE": 0,
            "DATA": BACKSTOP * int(limits.memory),
            "FSIZE": int(limits.workspace) + 1,  # a full folder says so before this
            "MEMLOCK": 2**16,
            "NOFILE": OPEN_FILES,
            "NPROC": int(limits.pids),
            "SIGPENDING": PENDING_SIGNALS,  # also counts for the user that bubblewrap runs as
        }
        return {
            "user": f"{ID}:{ID}",
            "workdir": self.workdir,
            "home": self.workdir,
            "lifetime": limits.lifetime,
            "memory": int(limits.memory),
            "cores": _next_cores(math.ceil(limits.cpus)),
            "filter": base64.b64encode(program_filter()).decode(),
            "rlimit": [f"{name}={value}" for name, value in rlimits.items()],
        }

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


def _check_variables(env: Mapping[str, str]) -> None:
    """Raise ValueError if the kernel or a shell could not take a variable."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(
                f"env: {name!r} cannot be set: no name, a = in it, or a NUL in it or its value"
            )
        if len(f"{name}={value}".encode("utf-8", "surrogateescape")) > LONGEST_VARIABLE:
            raise ValueError(f"env: {name} has more than {LONGEST_VARIABLE:,} bytes: use a file")


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

    def __init__(
        self, name: str, session: Session, fork: Fork, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(name, session)
        self._fork, self._writer = fork, writer

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
        left = TRIES
        while True:
            sandbox, process = await cls._connected(profile, system)
            assert sandbox._session is not None
            try:
                first = profile.request(process.uid)
                await sandbox._session.begin(timeout=START_TIMEOUT, first=first)
                if warm:
                    await sandbox._session.warm()
                return sandbox
            except BaseException as error:
                await see_through(sandbox.close())
                if not (isinstance(error, SandboxError) and process.ended):
                    raise
                code, text = await process.wait()
                if code is not None:
                    raise
                left -= 1
                if not (process.lost and left):
                    raise SandboxError(f"{sandbox.name} did not start: {text}") from error
            await asyncio.sleep(ZYGOTE_ENDS)

    @classmethod
    async def _connected(cls, profile: NamespaceProfile, system: System) -> tuple[Self, Fork]:
        """Return a sandbox that has not begun, and its first process."""
        name = f"bubblewrap-{os.getpid()}-{next(_numbers)}"
        try:
            process = await fork(system, profile.workdir)
            reader, writer = await _connect(process)
        except OSError as error:
            raise SandboxError(f"{name} did not start: {error}") from error

        async def cause() -> str:
            code, text = await process.wait()
            if code is None:
                return text
            return f"exit code {code}: {text}" if text else f"exit code {code}"

        session = Session(reader, writer, name=name, cause=cause)
        return cls(name, session, process, writer), process

    async def _outside(self) -> str | None:
        """Return what ended it if that was the zygote's end, which nothing inside can cause.

        Otherwise what ran inside ended PID 1: by its memory, its time or its signals.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                code, text = await self._fork.wait()
                return text if code is None else None
        return None

    async def _close(self) -> None:
        """Kill it, and wait until all of it is dead."""
        assert self._session is not None
        self._fork.kill()
        try:
            await self._session.close()
        finally:
            self._writer.transport.abort()
            try:
                async with asyncio.timeout(END_TIMEOUT):
                    await self._fork.wait()
            except TimeoutError:
                raise SandboxError(f"{self.name} could not be ended") from None


async def _connect(process: Fork) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(sock=process.connection, limit=READ_AHEAD)
    except BaseException:
        process.discard()
        raise
