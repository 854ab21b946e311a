"""What a sandbox is to whoever uses one, whatever it runs on."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, Self, TypeAlias

from vf.runtime.errors import ToolError

# As the ``socket`` module has them: (host, port) for TCP, or the path of a Unix socket.
Address: TypeAlias = tuple[str, int] | str

LEFT_OUT = (".git", ".venv", "__pycache__")  # what `upload` does not take along


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command, or a piece of code, ended.

    A program that does not exist, fails, is killed or runs out of time or memory is a result like
    any other, and so is one that takes its whole sandbox down. So is what no program can be given:
    words, variables or a directory that are too long, hold a NUL character or are no Unicode text,
    and a name that no variable can have. A model may have written them.

    Attributes:
        returncode: The exit code; 128 + n where signal n ended it, 127 where there is no such
            program, 126 where it cannot be run.
        stdout: What it wrote, at most ``max_output`` bytes: the head and the tail, with a line
            between them that says how much is missing. What is not UTF-8 is replaced.
        stderr: Likewise.
        truncated: Whether any output is missing.
        timed_out: Whether it was killed for taking longer than ``timeout``.
        oom_killed: Whether it was killed for using more memory than the sandbox has.
        ended: Whether the sandbox itself has ended through what ran in it. Its files and state are
            gone, nothing runs in it any more, and stderr says why.
        duration: Wall time, seconds.
    """

    returncode: int
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    timed_out: bool = False
    oom_killed: bool = False
    ended: bool = False
    duration: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.returncode == 0 and not (self.timed_out or self.oom_killed or self.ended)


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a running program has written.

    Attributes:
        stream: Where.
        data: What: never empty.
    """

    stream: Literal["stdout", "stderr"]
    data: bytes


class Process(Protocol):
    """A program that runs in the background of a sandbox; from :meth:`Sandbox.start`.

    It ends, with everything that it started, when it is killed or the sandbox is closed.
    """

    def __aiter__(self) -> AsyncIterator[Output]:
        """Yield what it writes, while it runs; only once, by one reader.

        What is not read yet is kept up to a bound, 256 KiB, say; then the program waits, as with a
        full pipe. Where the sandbox ends through what ran in it, the output ends.

        Raises:
            SandboxError: The sandbox is lost.
        """
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes to its standard input, and wait until its pipe has taken them.

        Raises:
            BrokenPipeError: It does not read any more, or has ended.
            SandboxError: The sandbox is lost.
        """
        ...

    async def end_input(self) -> None:
        """Close its standard input."""
        ...

    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        """Wait until it has ended.

        The result has what nobody has read, head and tail of each stream as from ``exec``. A
        program never waits for a reader while this waits for the program, unless somebody reads.

        Raises:
            TimeoutError: It runs on after so many seconds; it is not killed.
            SandboxError: The sandbox is lost.
        """
        ...

    async def kill(self) -> None:
        """End it with everything that it started. Safe to call twice."""
        ...


class Sandbox(Protocol):
    """A place where untrusted code runs.

    What code does to its sandbox is that code's result, never an infrastructure failure; otherwise
    a model could avoid being scored. A sandbox that ends after code has run in it was ended by that
    code, unless its backend knows of a cause outside: the engine or the host failed, or somebody
    removed it. From then on ``exec``, ``python`` and ``bash`` return a result with ``ended`` set,
    as does a process's ``wait``; ``read_file`` and ``download`` raise FileNotFoundError;
    ``write_file``, ``upload``, ``start``, ``snapshot`` and ``forward`` raise OSError.

    SandboxError is for everything else: a cause outside, a sandbox in which no code has run yet,
    and one that was closed. Every method may raise it.

    Relative paths are relative to the sandbox's working directory.
    """

    async def exec(
        self,
        cmd: list[str] | str,
        *,
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        user: str | None = None,
        max_output: int = 100_000,
        on_output: Callable[[Output], None] | None = None,
    ) -> ExecResult:
        """Run a program to completion.

        Args:
            cmd: Program and arguments, or a line for the shell.
            input: Its standard input; empty by default.
            cwd: Where it runs.
            env: Variables on top of the sandbox's own.
            timeout: Seconds; then it is killed with everything that it started.
            user: Whom it runs as: by default the sandbox's unprivileged user.
            max_output: Bytes kept of stdout, and of stderr.
            on_output: Called with each piece of output while the program runs. What it raises ends
                the program, and is raised.

        Raises:
            SandboxError: The sandbox is lost.
            ValueError: ``timeout`` or ``max_output`` is out of range, or there is no such user.
                Of a limit that is out of range it is a ToolError as well: a tool may have it from
                the model, which is then told.
        """
        ...

    async def start(
        self,
        cmd: list[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Process:
        """Start a program in the background; the arguments are those of :meth:`exec`.

        What cannot be run is a result: its :meth:`Process.wait` returns 126 or 127.

        Raises:
            OSError: The sandbox has ended.
            SandboxError: The sandbox is lost.
            ValueError: There is no such user.
        """
        ...

    async def python(self, code: str, *, timeout: float = 30.0) -> ExecResult:
        """Run code in an interpreter that lives on between calls.

        The value of a last expression is echoed. On timeout the code is interrupted, its state
        kept; if it does not stop, the interpreter is killed and restarted, and stderr says that
        the state was lost. An exception is a result with a traceback in stderr and returncode 1.

        Raises:
            SandboxError: The sandbox is lost.
        """
        ...

    async def bash(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """Run a command in a shell that lives on between calls: directory, variables, functions.

        On timeout what the command started is killed, with the shell if need be; stderr then says
        that its state was lost.

        Raises:
            SandboxError: The sandbox is lost.
        """
        ...

    async def read_file(self, path: str, *, max_bytes: int = 50 * 2**20) -> bytes:
        """Return a regular file's content.

        Raises:
            FileNotFoundError: There is none, or no file can have this name.
            IsADirectoryError: It is a directory.
            PermissionError: The sandbox's user may not read it.
            ValueError: It is not a regular file, or larger than ``max_bytes``.
            SandboxError: The sandbox is lost.
        """
        ...

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Write a file as the sandbox's user, with its parents; an old one is replaced.

        Text is written as UTF-8; a lone surrogate, which UTF-8 does not have, becomes "?".

        Raises:
            IsADirectoryError: It is a directory.
            PermissionError: The sandbox's user may not write there.
            OSError: It does not fit, or no file can have this name, say.
            SandboxError: The sandbox is lost.
        """
        ...

    async def upload(
        self,
        folder: str | os.PathLike[str],
        to: str = ".",
        *,
        leave_out: Collection[str] = LEFT_OUT,
        max_bytes: int = 64 * 2**20,
    ) -> None:
        """Copy a folder of this machine's into the sandbox, as the sandbox's user.

        Files keep their modes, symbolic links stay links. What is there already and has another
        name stays.

        Args:
            folder: Whose content to copy.
            to: The directory that gets it; made if need be.
            leave_out: Names of files and folders that are not copied, at any depth.
            max_bytes: What all files together may have; each name counts 512 bytes more.

        Raises:
            NotADirectoryError: ``folder`` is not a directory.
            ValueError: It has more than ``max_bytes``, holds something that is neither a file, a
                folder nor a symbolic link, or a link that leads out of it.
            OSError: It does not fit, say.
            SandboxError: The sandbox is lost.
        """
        ...

    async def download(
        self,
        path: str,
        to: str | os.PathLike[str],
        *,
        leave_out: Collection[str] = (),
        max_bytes: int = 64 * 2**20,
    ) -> None:
        """Copy a folder of the sandbox's to this machine.

        Only files, folders and symbolic links that stay within it are made here; whatever else is
        in it, and every link that could lead out, is left out. Nothing is written outside ``to``,
        no link that is there already is followed, and nothing at all is written unless all of it
        has come. Files keep their modes, but nobody else may write to them.

        Args:
            path: The folder inside.
            to: The folder that gets its content; made if need be.
            leave_out: Names of files and folders that are not copied, at any depth.
            max_bytes: What all files together may have; each name counts 512 bytes more.

        Raises:
            NotADirectoryError: ``path`` is not a directory.
            FileNotFoundError: It does not exist.
            PermissionError: The sandbox's user may not read it, or something in it.
            FileExistsError: A file is where a folder should be, or the other way round; some of the
                other OSErrors, too.
            ValueError: It has more than ``max_bytes``, or more than 100 folders in each other.
            SandboxError: The sandbox is lost, or this machine fails to write it.
        """
        ...

    async def snapshot(self) -> str:
        """Keep the state of its files, and return the name of an image that starts from it.

        Processes are not part of it, nor are ``/tmp`` and other temporary file systems. Where code
        has left a state from which nothing starts, what is opened from it is a sandbox that has
        ended.

        Raises:
            NotImplementedError: This kind of sandbox cannot, or its root is not writable.
            OSError: The sandbox has ended.
            SandboxError: The sandbox is lost.
        """
        ...

    async def forward(self, address: Address, *, port: int = 0) -> int:
        """Let what runs inside reach one address of this machine's.

        From now on, until the sandbox is closed, every connection to ``127.0.0.1`` and a port
        inside is carried to the address and answered from there. That takes no network, and opens
        nothing else: nothing inside can choose another address. Where the address refuses, or goes
        away, the connection inside is reset. A sandbox has at most 256 connections at once, and
        100 new ones a second after a burst of 256; further ones wait until they are accepted.

        Args:
            address: Where connections lead: ``("127.0.0.1", 8000)``, or the path of a Unix socket.
            port: On which port to listen inside; 0 takes a free one.

        Returns:
            The port on ``127.0.0.1`` inside.

        Raises:
            ValueError: It is no address, or no port.
            OSError: Something inside has the port already.
            SandboxError: The sandbox is lost.
        """
        ...

    async def close(self) -> None:
        """End it with everything in it. Safe to call twice."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


# What a pool's `acquire` is, and also a sandbox's own class: entered for a fresh sandbox, left to
# destroy it.
OpenSandbox: TypeAlias = Callable[[], AbstractAsyncContextManager[Sandbox]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use.

    Attributes:
        memory: Bytes, swap included. Temporary files count.
        cpus: Cores; may be a fraction.
        pids: Processes and threads at once.
        workspace: Bytes in the working directory; must be less than ``memory``.
        tmp: Bytes in ``/tmp``; must be less than ``memory``.
        files: Files and directories in each of the two.
        lifetime: Seconds until it ends by itself.
        disk: Bytes by which a writable root may grow.

    Raises:
        ValueError: One is not positive, or the files do not fit into the memory.
    """

    memory: int = 512 * 2**20
    cpus: float = 1.0
    pids: int = 128
    workspace: int = 128 * 2**20
    tmp: int = 64 * 2**20
    files: int = 10_000
    lifetime: float = 3600.0
    disk: int = 2 * 2**30

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        for name in ("workspace", "tmp"):
            if getattr(self, name) >= self.memory:
                raise ValueError(
                    f"{name} = {getattr(self, name)} does not fit into memory = {self.memory}: "
                    "files there count as memory"
                )


class OutOfRange(ToolError, ValueError):
    """A limit that no sandbox can keep; in a tool, the model sees it: the number may be its own."""


def positive(name: str, value: float) -> float:
    """Return a number of seconds.

    Raises:
        OutOfRange: It is none.
    """
    if isinstance(value, bool | str) or not 0 < value < float("inf"):
        raise OutOfRange(f"{name} must be positive and finite, got {value!r}")
    return value
