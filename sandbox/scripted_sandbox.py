"""A sandbox with scripted answers, for testing environments without any engine."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import shlex
import tempfile
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

from vf.runtime.errors import SandboxError
from vf.sandbox.call import as_bytes, check_path
from vf.sandbox.contract import LEFT_OUT, Address, ExecResult, Output
from vf.sandbox.folder import Unpack, pack
from vf.sandbox.tunnel import check_address

FIRST_PORT = 40_000  # ports that `forward` makes up come after it

# A whole result, the stdout of a program that ended well, or an error to raise.
Answer: TypeAlias = ExecResult | str | Exception
# Answers in their order, or by what they answer (for a list of words: as ``shlex.join`` writes
# it), or a function of that.
Script: TypeAlias = Iterable[Answer] | Mapping[str, Answer] | Callable[[str], Answer]


@dataclass(frozen=True, slots=True)
class SandboxCall:
    """A call of a scripted sandbox.

    Attributes:
        method: ``exec``, ``start``, ``python``, ``bash``, ``read_file``, ``write_file``,
            ``upload``, ``download``, ``snapshot`` or ``forward``.
        text: The command (a list of words as ``shlex.join`` writes it), the code, the path, the
            folder or the address.
        options: The other arguments by name, including defaults.
    """

    method: str
    text: str
    options: dict[str, Any] = field(default_factory=dict)


class ScriptedSandbox:
    """Answers from a script; files live in memory. Nothing runs.

    Example::

        sandbox = vf.ScriptedSandbox(python={"1 + 1": "2\\n"}, files={"notes.txt": "hello"})
        assert (await sandbox.python("1 + 1")).stdout == "2\\n"
        assert await sandbox.read_file("notes.txt") == b"hello"

    Args:
        exec: Answers to ``exec``. Each script is a list of answers in their order, a mapping from
            the command or code to an answer, or a function of it; an answer is an
            :class:`~vf.sandbox.contract.ExecResult`, text (the stdout of a program that ended
            well), or an exception to raise: with a ``SandboxError`` the sandbox is lost from then
            on.
        start: Answers to ``start``: the program's output and result.
        python: Answers to ``python``.
        bash: Answers to ``bash``.
        files: The files that are there at first, by path.
        workdir: The directory that relative paths start from.
        lost_after: The number of calls answered before the sandbox is lost; by default, all.

    Attributes:
        calls: Every call so far, in order, those that raised included.
        files: The content of every file, by absolute path.
        closed: Whether it was closed.

    Raises:
        LookupError: If the script has no answer (from the methods).
    """

    def __init__(
        self,
        *,
        exec: Script = (),
        start: Script = (),
        python: Script = (),
        bash: Script = (),
        files: Mapping[str, str | bytes] | None = None,
        workdir: str = "/workspace",
        lost_after: int | None = None,
    ) -> None:
        scripts = {"exec": exec, "start": start, "python": python, "bash": bash}
        self._scripts = {
            name: script if callable(script) or isinstance(script, Mapping) else iter(list(script))
            for name, script in scripts.items()
        }
        self._workdir = workdir
        self._lost_after = lost_after
        self._lost: str | None = None
        self.calls: list[SandboxCall] = []
        self.files = {self._path(path): as_bytes(text) for path, text in (files or {}).items()}
        self.closed = False

    @property
    def alive(self) -> bool:
        """Whether it can be used."""
        return self._lost is None and not self.closed

    def lose(self, reason: str = "its script says so") -> None:
        """Lose the sandbox: from now on every call raises SandboxError."""
        self._lost = reason

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
        """Answer from the script; ``on_output`` is called with all of it at once."""
        options = {"input": input, "cwd": cwd, "env": env, "timeout": timeout, "user": user}
        result = self._answer("exec", _line(cmd), **options, max_output=max_output)
        if on_output is not None:
            for piece in _output(result):
                on_output(piece)
        return result

    async def start(
        self,
        cmd: list[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> ScriptedProcess:
        """Answer from the script: the program has written everything, and ended."""
        return ScriptedProcess(self._answer("start", _line(cmd), cwd=cwd, env=env, user=user))

    async def python(self, code: str, *, timeout: float = 30.0) -> ExecResult:
        """Answer from the script."""
        return self._answer("python", code, timeout=timeout)

    async def bash(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """Answer from the script."""
        return self._answer("bash", command, timeout=timeout)

    async def read_file(self, path: str, *, max_bytes: int = 50 * 2**20) -> bytes:
        """Return a file's content; see :meth:`Sandbox.read_file`."""
        self._record(SandboxCall("read_file", path, {"max_bytes": max_bytes}))
        check_path(path)
        absolute = self._path(path)
        if self._is_directory(absolute):
            raise _error(errno.EISDIR, path)
        if absolute not in self.files:
            raise _error(errno.ENOENT, path)
        content = self.files[absolute]
        if len(content) > max_bytes:
            raise ValueError(
                f"{path}: it has {len(content)} bytes, more than max_bytes = {max_bytes}"
            )
        return content

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Write a file; see :meth:`Sandbox.write_file`."""
        self._record(SandboxCall("write_file", path, {"content": content}))
        check_path(path)
        absolute = self._path(path)
        if self._is_directory(absolute):
            raise _error(errno.EISDIR, path)
        parent = posixpath.dirname(absolute)
        while parent != "/":
            if parent in self.files:
                raise _error(errno.ENOTDIR, path)
            parent = posixpath.dirname(parent)
        self.files[absolute] = as_bytes(content)

    async def upload(
        self,
        folder: str | os.PathLike[str],
        to: str = ".",
        *,
        leave_out: Collection[str] = LEFT_OUT,
        max_bytes: int = 64 * 2**20,
    ) -> None:
        """Copy a folder's files; see :meth:`Sandbox.upload`. Links become what they lead to."""
        options = {"to": to, "leave_out": leave_out, "max_bytes": max_bytes}
        self._record(SandboxCall("upload", os.fspath(folder), options))
        data = await asyncio.to_thread(pack, folder, leave_out, max_bytes)
        self.files |= {
            self._path(posixpath.join(to, name)): content
            for name, content in (await asyncio.to_thread(_unpacked, data)).items()
        }

    async def download(
        self,
        path: str,
        to: str | os.PathLike[str],
        *,
        leave_out: Collection[str] = (),
        max_bytes: int = 64 * 2**20,
    ) -> None:
        """Write a folder's files to this machine; see :meth:`Sandbox.download`."""
        options = {"to": os.fspath(to), "leave_out": leave_out, "max_bytes": max_bytes}
        self._record(SandboxCall("download", path, options))
        folder = self._path(path)
        if folder in self.files:
            raise _error(errno.ENOTDIR, path)
        if not self._is_directory(folder):
            raise _error(errno.ENOENT, path)
        root = folder.rstrip("/") + "/"
        contents = {
            name.removeprefix(root): content
            for name, content in self.files.items()
            if name.startswith(root)
        }
        for name in list(contents):
            if not set(leave_out).isdisjoint(name.split("/")):
                del contents[name]
        if sum(map(len, contents.values())) > max_bytes:
            raise ValueError(f"{path}: it has more than max_bytes = {max_bytes} bytes")
        await asyncio.to_thread(_write_files, contents, Path(to))

    async def snapshot(self) -> str:
        """Return an invented name."""
        self._record(SandboxCall("snapshot", ""))
        return f"snapshot-{sum(call.method == 'snapshot' for call in self.calls)}"

    async def forward(self, address: Address, *, port: int = 0) -> int:
        """Return the port, or an invented one for 0. No program runs that could connect."""
        self._record(SandboxCall("forward", str(address), {"port": port}))
        if not 0 <= port < 2**16:
            raise ValueError(f"port must be in 0..65535, got {port!r}")
        check_address(address)
        return port or FIRST_PORT + sum(call.method == "forward" for call in self.calls)

    async def close(self) -> None:
        """Close it: from now on every call raises SandboxError."""
        self.closed = True

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""
        await self.close()

    def _record(self, call: SandboxCall) -> None:
        if self.closed:
            raise SandboxError("the scripted sandbox is closed")
        self.calls.append(call)
        if self._lost_after is not None and len(self.calls) > self._lost_after:
            self._lost = self._lost or f"it answers {self._lost_after} calls"
        if self._lost is not None:
            raise SandboxError(f"the scripted sandbox is lost: {self._lost}")
        if not call.options.get("timeout", 1) > 0:
            raise ValueError(f"timeout must be positive, got {call.options['timeout']!r}")

    def _answer(self, method: str, text: str, **options: Any) -> ExecResult:
        self._record(SandboxCall(method, text, options))
        script = self._scripts[method]
        answer: Answer | None
        if isinstance(script, Mapping):
            answer = script.get(text)
        else:
            answer = script(text) if callable(script) else next(script, None)
        if isinstance(answer, SandboxError):
            self.lose(str(answer))
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return ExecResult(0, answer)
        if answer is None:
            number = len([call for call in self.calls if call.method == method])
            raise LookupError(
                f"the scripted sandbox has no answer to call {number} of {method}: {text!r}; give "
                f"one in ScriptedSandbox({method}=...)"
            )
        return answer

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join("/", self._workdir, path))

    def _is_directory(self, path: str) -> bool:
        root = path.rstrip("/") + "/"
        ours = (self._path("").rstrip("/") + "/").startswith(root)
        return ours or any(name.startswith(root) for name in self.files)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class ScriptedProcess:
    """A program in the background that has written its scripted output.

    Attributes:
        written: The bytes sent to its standard input.
        killed: Whether it was killed.
    """

    def __init__(self, result: ExecResult) -> None:
        self._result, self._pieces = result, _output(result)
        self.written = b""
        self.killed = False

    async def __aiter__(self) -> AsyncGenerator[Output]:
        """Yield its output."""
        while self._pieces:
            yield self._pieces.pop(0)

    async def write(self, data: bytes) -> None:
        """Take bytes."""
        self.written += data

    async def end_input(self) -> None:
        """Take no more."""

    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        """Return the result, with the unread output."""
        left = {piece.stream: piece.data.decode() for piece in self._pieces}
        stdout, stderr = left.get("stdout", ""), left.get("stderr", "")
        return replace(self._result, stdout=stdout, stderr=stderr)

    async def kill(self) -> None:
        """End it."""
        self.killed = True


def _line(cmd: list[str] | str) -> str:
    return cmd if isinstance(cmd, str) else shlex.join(cmd)


def _output(result: ExecResult) -> list[Output]:
    pieces = [Output("stdout", result.stdout.encode()), Output("stderr", result.stderr.encode())]
    return [piece for piece in pieces if piece.data]


def _write_files(files: Mapping[str, bytes], to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_bytes(content)


def _unpacked(data: bytes) -> dict[str, bytes]:
    """Return the files of a folder's records, by relative path."""
    with tempfile.TemporaryDirectory(prefix="vf-scripted-") as root:
        folder = Unpack(root, foreign=True)
        folder.feed(data)
        folder.finish()
        folder.close()
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in Path(root).rglob("*")
            if path.is_file()
        }
