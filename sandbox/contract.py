"""The contract of a sandbox, the same for every backend."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, Self, TypeAlias

from vf.runtime.errors import ToolError

# In the form of the ``socket`` module: (host, port) for TCP, or the path of a Unix socket.
Address: TypeAlias = tuple[str, int] | str

LEFT_OUT = (".git", ".venv", "__pycache__")  # not copied by `upload`


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a command, or a piece of code.

    A program that does not exist, fails, is killed or runs out of time or memory is a result like
    any other, and so is one that takes its whole sandbox down. So are arguments that no program can
    have: words, variables or a directory that are too long, hold a NUL character or are no Unicode
    text, and a name that no variable can have. A model may have written them.

    Attributes:
        returncode: The exit code; 128 + n if signal n ended it, 127 if there is no such program,
            126 if it cannot be run.
        stdout: Its output, at most ``max_output`` bytes: the head and the tail, with a line between
            them that says how much is missing. Invalid UTF-8 is replaced.
        stderr: Its output on stderr, likewise.
        truncated: Whether any output is missing.
        timed_out: Whether it was killed for taking longer than ``timeout``.
        oom_killed: Whether it was killed for using more memory than the sandbox has.
        ended: Whether the sandbox itself has ended because of what ran in it. Its files and state
            are gone, nothing runs in it any more, and stderr says why.
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
    """A piece of a running program's output.

    Attributes:
        stream: The stream that it was written to.
        data: The bytes, at least one.
    """

    stream: Literal["stdout", "stderr"]
    data: bytes


class Process(Protocol):
    """A program that runs in the background of a sandbox; from :meth:`Sandbox.start`.

    It ends, with everything that it started, when it is killed or the sandbox is closed.
    """

    def __aiter__(self) -> AsyncIterator[Output]:
        """Yield its output while it runs; only once, to one reader.

        Unread output is kept up to a limit, such as 256 KiB; then the program waits, as with a full
        pipe. If the sandbox ends because of what ran in it, the output ends.

        Raises:
            SandboxError: If the sandbox is lost.
        """
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes to its standard input, and wait until its pipe has taken them.

        Raises:
            BrokenPipeError: If it does not read any more, or has ended.
            SandboxError: If the sandbox is lost.
        """
        ...

    async def end_input(self) -> None:
        """Close its standard input."""
        ...

    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        """Wait until it has ended.

        The result has the unread output, head and tail of each stream as from ``exec``. While this
        waits, the program never waits for a reader, unless there is one.

        Raises:
            TimeoutError: If it still runs after ``timeout`` seconds; it is not killed.
            SandboxError: If the sandbox is lost.
        """
        ...

    async def kill(self) -> None:
        """End it with everything that it started. Safe to call twice."""
        ...


class Sandbox(Protocol):
    """A place where untrusted code runs.

    Damage that code does to its sandbox is that code's result, never an infrastructure failure;
    otherwise a model could avoid being scored. A sandbox that ends after code has run in it was
    ended by that code, unless its backend knows of an external cause: the engine or the host
    failed, or a user removed it. From then on ``exec``, ``python`` and ``bash`` return a result
    with ``ended`` set, as does a process's ``wait``; ``read_file`` and ``download`` raise
    FileNotFoundError; ``write_file``, ``upload``, ``start``, ``snapshot`` and ``forward`` raise
    OSError.

    SandboxError is for everything else: an external cause, a sandbox in which no code has run yet,
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
            cmd: The program and its arguments, or a line for the shell.
            input: Its standard input; empty by default.
            cwd: The directory that it runs in.
            env: Variables on top of the sandbox's own.
            timeout: Seconds; then it is killed with everything that it started.
            user: The user that it runs as; by default the sandbox's unprivileged user.
            max_output: Bytes kept of stdout, and of stderr.
            on_output: A function that gets each piece of output while the program runs. Its
                exception ends the program, and is raised.

        Raises:
            SandboxError: If the sandbox is lost.
            ValueError: If ``timeout`` or ``max_output`` is out of range, or there is no such user.
                For a limit that is out of range it is a ToolError as well: a tool may have it from
                the model, which then sees the error.
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
            OSError: If the sandbox has ended.
            SandboxError: If the sandbox is lost.
            ValueError: If there is no such user.
        """
        ...

    async def python(self, code: str, *, timeout: float = 30.0) -> ExecResult:
        """Run code in an interpreter that keeps its state between calls.

        The value of a last expression is echoed. On timeout the code is interrupted, its state
        kept; if it does not stop, the interpreter is killed and restarted, and stderr says that
        the state was lost. An exception is a result with a traceback in stderr and returncode 1.

        Raises:
            SandboxError: If the sandbox is lost.
        """
        ...

    async def bash(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """Run a command in a shell that keeps its directory, variables and functions between calls.

        On timeout everything that the command started is killed, with the shell if need be; stderr
        then says that its state was lost.

        Raises:
            SandboxError: If the sandbox is lost.
        """
        ...

    async def read_file(self, path: str, *, max_bytes: int = 50 * 2**20) -> bytes:
        """Return a regular file's content.

        Raises:
            FileNotFoundError: If there is none, or no file can have this name.
            IsADirectoryError: If it is a directory.
            PermissionError: If the sandbox's user may not read it.
            ValueError: If it is not a regular file, or larger than ``max_bytes``.
            SandboxError: If the sandbox is lost.
        """
        ...

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Write a file as the sandbox's user, with its parents; an old one is replaced.

        Text is written as UTF-8; a lone surrogate, which UTF-8 does not have, becomes "?".

        Raises:
            IsADirectoryError: If it is a directory.
            PermissionError: If the sandbox's user may not write there.
            OSError: If it does not fit, or no file can have this name, for instance.
            SandboxError: If the sandbox is lost.
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
        """Copy a folder of this machine into the sandbox, as the sandbox's user.

        Files keep their modes, symbolic links stay links. Existing files with other names stay.

        Args:
            folder: The folder whose content is copied.
            to: The directory that gets it; made if need be.
            leave_out: Names of files and folders that are not copied, at any depth.
            max_bytes: The limit on the total size of the files; each name counts 512 bytes more.

        Raises:
            NotADirectoryError: If ``folder`` is not a directory.
            ValueError: If it has more than ``max_bytes``, holds something that is neither a file, a
                folder nor a symbolic link, or a link that leads out of it.
            OSError: If it does not fit, for instance.
            SandboxError: If the sandbox is lost.
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
        """Copy a folder of the sandbox to this machine.

        Only files, folders and symbolic links that stay within it are made here; everything else in
        it, and every link that could lead out, is left out. Nothing is written outside ``to``, no
        existing link is followed, and nothing at all is written unless all of it has come. Files
        keep their modes, but only their owner may write to them.

        Args:
            path: The folder inside.
            to: The folder that gets its content; made if need be.
            leave_out: Names of files and folders that are not copied, at any depth.
            max_bytes: The limit on the total size of the files; each name counts 512 bytes more.

        Raises:
            NotADirectoryError: If ``path`` is not a directory.
            FileNotFoundError: If it does not exist.
            PermissionError: If the sandbox's user may not read it, or something in it.
            FileExistsError: If a file is where a folder should be, or the other way round; some of
                the other OSErrors, too.
            ValueError: If it has more than ``max_bytes``, or more than 100 nested folders.
            SandboxError: If the sandbox is lost, or this machine fails to write it.
        """
        ...

    async def snapshot(self) -> str:
        """Save the state of its files, and return the name of an image that starts from it.

        Processes are not part of it, nor are ``/tmp`` and other temporary file systems. If code has
        left a state from which no sandbox starts, opening it gives a sandbox that has ended.

        Raises:
            NotImplementedError: If this kind of sandbox cannot, or its root is not writable.
            OSError: If the sandbox has ended.
            SandboxError: If the sandbox is lost.
        """
        ...

    async def forward(self, address: Address, *, port: int = 0) -> int:
        """Let programs inside reach one address of this machine.

        From now on, until the sandbox is closed, every connection to ``127.0.0.1`` and a port
        inside is forwarded to the address. That needs no network, and opens nothing else: no
        program inside can choose another address. If the address refuses, or goes away, the
        connection inside is reset. A sandbox has at most 256 connections at once, and 100 new ones
        a second after a burst of 256; further ones wait until they are accepted.

        Args:
            address: The target of connections: ``("127.0.0.1", 8000)``, or the path of a Unix
                socket.
            port: The port to listen on inside; 0 takes a free one.

        Returns:
            The port on ``127.0.0.1`` inside.

        Raises:
            ValueError: If it is not an address, or not a port.
            OSError: If something inside uses the port already.
            SandboxError: If the sandbox is lost.
        """
        ...

    async def close(self) -> None:
        """End it with everything in it. Safe to call twice."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


# A pool's `acquire`, for instance, or a sandbox's own class: entering the context gives a fresh
# sandbox, leaving it destroys the sandbox.
OpenSandbox: TypeAlias = Callable[[], AbstractAsyncContextManager[Sandbox]]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a sandbox.

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
        ValueError: If one is not positive, or the files do not fit into the memory.
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
    """A limit is out of range; in a tool, the model sees the error: the number may be its own."""


def positive(name: str, value: float) -> float:
    """Return a number of seconds.

    Raises:
        OutOfRange: If it is not positive and finite.
    """
    if isinstance(value, bool | str) or not 0 < value < float("inf"):
        raise OutOfRange(f"{name} must be positive and finite, got {value!r}")
    return value
