"""A session: the client of one supervisor, over one connection of any kind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from vf.runtime.errors import SandboxError
from vf.sandbox.boot import boot, source_of
from vf.sandbox.call import (
    GRACE,
    Call,
    OutputStream,
    as_bytes,
    check_output,
    check_path,
    command,
    ends,
    failure,
    refused,
    result,
    send,
)
from vf.sandbox.contract import Address, ExecResult, Output, positive
from vf.sandbox.frames import Decoder, Frame, FrameError, encode
from vf.sandbox.process import SessionProcess
from vf.sandbox.tunnel import Tunnel, Writer

VERSION = 1
FILE_SECONDS = 120.0  # that a supervisor takes for a file or a folder at most
KILL_SECONDS = 8.0  # likewise, to kill a program in the background


class Session:
    """Runs programs and handles files through a supervisor: the contract's methods and some more.

    Calls may run at the same time; those of ``python``, and those of ``bash``, run one after the
    other. A cancelled call is stopped inside, with everything that it started. When the connection
    ends, the supervisor breaks the protocol or does not answer in time, the session is lost: every
    call in progress, and every later one, raises SandboxError with the cause.

    It sends the supervisor heartbeats, without which the supervisor ends: a copy of the connection,
    in a process that this one forked, keeps nothing alive.

    Attributes:
        cut: Whether it is lost because the connection ended.
        info: The supervisor's description of itself.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: Writer,
        *,
        name: str = "sandbox",
        grace: float = GRACE,
        silence: float = 600.0,
        cause: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Make the client; call :meth:`begin` next.

        Args:
            reader: The reader of the supervisor's stdout.
            writer: The supervisor's stdin.
            name: The sandbox's name in error messages.
            grace: Seconds that the supervisor has on top of a call's timeout to answer.
            silence: Seconds without a heartbeat after which the supervisor ends. A client whose
                event loop is blocked for longer loses its sandbox.
            cause: A function that returns why the connection ended.
        """
        self._reader, self._writer = reader, writer
        self._name, self._grace, self._cause = name, grace, cause
        self._silence = silence
        self._calls: dict[int, Call] = {}
        self._count = 0
        self._tunnel = Tunnel(writer)
        self._processes: dict[int, SessionProcess] = {}
        self._started = 0
        self._lost: str | None = None
        self.cut = False
        self._tasks: list[asyncio.Task[None]] = []
        self._turns = {"python": asyncio.Lock(), "bash": asyncio.Lock()}
        self.info: dict[str, Any] = {}

    @property
    def lost(self) -> str | None:
        """Why the session can no longer be used; None while it can."""
        return self._lost

    async def begin(self, *, timeout: float = 30.0, first: bytes | None = None) -> None:
        """Send the supervisor its code and wait until it serves.

        Args:
            timeout: Seconds that it has for that.
            first: The bytes that it needs instead of its code.

        Raises:
            SandboxError: If it does not, within ``timeout`` seconds.
        """
        self._writer.write(boot() if first is None else first)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._listen())]
        source = source_of("inside/interpreter.py").encode()
        silence = self._silence
        answer = self._ask("hello", source, wait=timeout, version=VERSION, silence=silence)
        self.info = (await answer)[0]
        self._tasks.append(loop.create_task(self._beat()))

    async def close(self) -> None:
        """Stop using the connection, which its owner closes. Safe to call twice."""
        self.lose("it was closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def lose(self, reason: str) -> None:
        """Let every call in progress, and every later one, raise SandboxError with this reason."""
        if self._lost is None:
            self._lost = reason
        self._tunnel.close()
        for process in self._processes.values():
            process.fail(SandboxError(f"{self._name}: {self._lost}"))
        for call in self._calls.values():
            if not call.future.done():
                call.future.set_exception(SandboxError(f"{self._name}: {self._lost}"))
                call.future.exception()  # its caller may be busy sending
                call.room.set()

    async def ping(self, *, timeout: float = 5.0) -> None:
        """Wait until the supervisor answers.

        Raises:
            SandboxError: If it does not, within ``timeout`` seconds.
        """
        await self._ask("ping", wait=timeout)

    async def warm(self) -> None:
        """Start the persistent Python and shell, so that the first call need not wait."""
        await self._ask("warm", wait=self._grace, what=["the interpreter", "the shell"])

    async def end_programs(self) -> None:
        """Kill every program with everything that it started, the persistent ones too.

        Raises:
            SandboxError: If the sandbox is lost.
        """
        await self._ask("end programs", wait=self._grace)

    async def stats(self) -> dict[str, Any]:
        """Return ``oom_kills``, ``calls`` that run, the supervisor's ``cpu`` (s) and ``memory``.

        And ``deleted``, the bytes of deleted files that are open; None where these are too many.
        """
        return (await self._ask("stats", wait=self._grace))[0]

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
        """Run a program to completion; see the contract."""
        check_output(max_output)
        wait = positive("timeout", timeout) + self._grace
        data = None if input is None else as_bytes(input)
        header = {**command(cmd, cwd, env, user), "timeout": timeout, "max_output": max_output}
        if on_output is None:
            return result(await self._ask("exec", data, wait=wait, **header))
        stream = OutputStream(on_output, max_output)
        answer = self._ask("exec", data, wait=wait, stream=stream, **header)
        return result(stream.finish(await answer))

    async def start(
        self,
        cmd: list[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> SessionProcess:
        """Start a program in the background; see the contract."""
        header = command(cmd, cwd, env, user)
        number = self._started = self._started + 1

        def send(*parts: bytes, **header: Any) -> None:
            if self._lost is None:
                self._writer.write(encode({"op": "process", "id": number, **header}, *parts))

        async def kill() -> None:
            await self._ask("kill", wait=KILL_SECONDS + self._grace, process=number)

        # Its first output may come together with the answer to `start`.
        process = self._processes[number] = SessionProcess(send, kill)
        try:
            process.take(*await self._ask("start", wait=self._grace, process=number, **header))
        except BaseException:
            del self._processes[number]
            send(kill=True)
            raise
        return process

    async def python(self, code: str, *, timeout: float = 30.0) -> ExecResult:
        """Run code in the persistent interpreter; see the contract."""
        return await self._persistent("python", code, timeout)

    async def bash(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """Run a command in the persistent shell; see the contract."""
        return await self._persistent("bash", command, timeout)

    async def read_file(self, path: str, *, max_bytes: int = 50 * 2**20) -> bytes:
        """Return a regular file's content; see the contract."""
        return await self._fetch("read", path, max_bytes)

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Write a file; see the contract."""
        await self._store("write", path, as_bytes(content))

    async def pack(self, path: str, *, leave_out: Collection[str], max_bytes: int) -> bytes:
        """Return the records of a folder's content, for :class:`~vf.sandbox.folder.Unpack`.

        Raises:
            OSError: If it is not a folder, or cannot be read.
            ValueError: If it has more than ``max_bytes``, or is too deep.
            SandboxError: If the session is lost.
        """
        return await self._fetch("pack", path, max_bytes, leave_out=list(leave_out))

    async def unpack(self, path: str, data: bytes) -> None:
        """Unpack the records of a :class:`~vf.sandbox.folder.Pack` into a folder.

        Raises:
            OSError: If it cannot be written.
            SandboxError: If the session is lost.
        """
        await self._store("unpack", path, data)

    async def forward(self, address: Address, *, port: int = 0) -> int:
        """Forward connections inside to an address; see the contract."""
        if type(port) is not int or not 0 <= port < 2**16:
            raise ValueError(f"port must be in 0..65535, got {port!r}")
        route = self._tunnel.add(address)
        answer = (await self._ask("forward", wait=self._grace, route=route, port=port))[0]
        return int(answer["port"])

    async def _fetch(self, op: str, path: str, max_bytes: int, **header: Any) -> bytes:
        check_path(path)
        if max_bytes < 0:
            raise ValueError(f"max_bytes must not be negative, got {max_bytes}")
        wait = FILE_SECONDS + self._grace
        answer = await self._ask(op, wait=wait, path=path, max_bytes=max_bytes, **header)
        return answer[1][0]

    async def _store(self, op: str, path: str, data: bytes) -> None:
        check_path(path)
        await self._ask(op, data, wait=FILE_SECONDS + self._grace, path=path, size=len(data))

    async def _persistent(self, op: str, code: str, timeout: float) -> ExecResult:
        wait = positive("timeout", timeout) + self._grace
        data = code.encode("utf-8", "surrogatepass")
        async with self._turns[op]:
            return result(await self._ask(op, data, wait=wait, timeout=timeout))

    async def _ask(
        self,
        op: str,
        data: bytes | None = None,
        *,
        wait: float,
        stream: OutputStream | None = None,
        **header: Any,
    ) -> Frame:
        """Send a request, and its data in pieces; return the answer."""
        if self._lost is not None:
            raise SandboxError(f"{self._name}: {self._lost}")
        self._count += 1
        number = self._count
        call = self._calls[number] = Call(op)
        call.left, call.stream = header.get("max_bytes", 0), stream
        if stream is not None:
            header["stream"] = True
        path = header.get("path", "")
        work = asyncio.ensure_future(self._exchange(number, call, header, data))
        try:
            if not await ends(work, wait):
                raise TimeoutError
            answer, parts = work.result()
        except TimeoutError:
            self.lose(f"its supervisor did not answer {op!r} within {wait:g} s")
            raise SandboxError(f"{self._name}: {self._lost}") from None
        except FrameError as exc:
            return refused(exc)  # nothing was sent
        except ConnectionError as exc:
            self.cut = True
            self.lose(f"{op!r} could not be sent: {exc}")
            raise SandboxError(f"{self._name}: {self._lost}") from exc
        except asyncio.CancelledError:
            self._abandon(number)
            raise
        finally:
            work.cancel()
            self._calls.pop(number, None)
        if "error" in answer:
            raise failure(answer, path, self._name)
        return answer, [b"".join(call.pieces)] if op in ("read", "pack") else parts

    async def _exchange(
        self, number: int, call: Call, header: dict[str, Any], data: bytes | None
    ) -> Frame:
        await send(self._writer, number, call, header, data)
        return await call.future

    def _abandon(self, number: int) -> None:
        """Let the supervisor stop a call whose caller is gone."""
        if self._lost is None:
            self._writer.write(encode({"op": "cancel", "id": number}))

    async def _listen(self) -> None:
        """Hand every frame to the call that waits for it, until there are no more."""
        decoder = Decoder()
        try:
            while data := await self._reader.read(2**20):
                for header, parts in decoder.feed(data):
                    self._take(header, parts)
            reason = "its supervisor ended"
        except OSError as exc:
            reason = f"the connection to its supervisor broke: {exc!r}"
        except (FrameError, KeyError, IndexError, TypeError, ValueError) as exc:
            self.lose(f"its supervisor broke the protocol: {exc}")
            return
        self.cut = self._lost is None
        if self._lost is None and self._cause is not None:
            try:
                reason = f"{reason}: {await asyncio.wait_for(self._cause(), 10.0)}"
            except Exception as exc:
                reason = f"{reason} (for an unknown reason: {exc!r})"
        self.lose(reason)

    async def _beat(self) -> None:
        """Send the supervisor heartbeats."""
        while self._lost is None:
            await asyncio.sleep(self._silence / 10)
            self._writer.write(encode({"op": "alive", "id": 0}))
            if self._processes:  # waiting for one has no deadline of its own
                with contextlib.suppress(SandboxError):
                    await self.ping(timeout=self._grace)

    def _take(self, header: dict[str, Any], parts: list[bytes]) -> None:
        if "bye" in header:
            self.lose(f"its supervisor ended: {header['bye']}")
            return
        if "tunnel" in header:
            self._tunnel.take(header, parts)
            return
        if "process" in header:
            if (process := self._processes.get(header["process"])) is not None:
                process.take(header, parts)
            if "gone" in header:
                self._processes.pop(header["process"], None)
            return
        call = self._calls.get(header["id"])
        if header.get("error") == "lost":
            self.lose(str(header["message"]))
        if call is None:
            return  # its caller is gone
        if "ack" in header:
            call.taken += int(header["ack"])
            call.room.set()
        elif "out" in header:
            self._pass_on(header, parts[0], call)
        elif "data" in header:
            call.pieces.append(parts[0])
            call.left -= len(parts[0])
            if call.left < 0:
                raise FrameError("more data came than was asked for")
        elif not call.future.done():
            call.future.set_result((header, parts))
            call.room.set()

    def _pass_on(self, header: dict[str, Any], data: bytes, call: Call) -> None:
        """Pass output to the caller's function. Its exception ends the program."""
        if call.stream is None or call.future.done():
            return
        try:
            call.stream.take(header["out"], data)
            if count := call.stream.to_acknowledge():
                self._writer.write(encode({"op": "took", "id": header["id"], "count": count}))
        except FrameError:
            raise
        except Exception as error:
            call.future.set_exception(error)
            self._abandon(header["id"])
