"""A session: the client of one supervisor, over one connection, whatever carries it."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vf.runtime.errors import SandboxError
from vf.sandbox.boot import boot, source_of
from vf.sandbox.contract import Address, ExecResult
from vf.sandbox.frames import Decoder, Frame, FrameError, encode
from vf.sandbox.tunnel import Tunnel, Writer

VERSION = 1
CHUNK = 256 * 1024
WINDOW = 4 * CHUNK
MAX_OUTPUT = 64 * 2**20
GRACE = 15.0  # seconds that a supervisor has on top of a call's own time
HELD_UP = 0.5  # seconds by which a timer is late where the event loop was held up


class Call:
    """One request that waits for its answer."""

    def __init__(self, op: str) -> None:
        """Wait for the answer to a request of this kind."""
        self.op = op
        self.left = 0  # bytes of data that may still come
        self.future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.pieces: list[bytes] = []
        self.sent = 0
        self.taken = 0
        self.room = asyncio.Event()


class Session:
    """Runs programs and handles files through a supervisor. The contract's methods, and a few more.

    Calls may run at the same time; those of ``python``, and those of ``bash``, run one after the
    other. A cancelled call is stopped inside, with everything that it started. When the connection
    ends, the supervisor breaks the protocol or does not answer in time, the session is lost: every
    call that waits, and every later one, raises SandboxError with the cause.

    It sends the supervisor a sign of life now and then, and the supervisor ends without one: a
    copy of the connection, in a process that this one forked, keeps nothing alive.

    Attributes:
        cut: Whether it is lost because the connection ended.
        info: What the supervisor said of itself.
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
        """Make the client; call :meth:`start` next.

        Args:
            reader: What the supervisor writes to its stdout.
            writer: The supervisor's stdin.
            name: What error messages call the sandbox.
            grace: Seconds that the supervisor has on top of a call's timeout to answer.
            silence: Seconds without a sign of life after which the supervisor ends. A client whose
                event loop is held up for longer loses its sandbox.
            cause: Asked, when the connection ends, why it did.
        """
        self._reader, self._writer = reader, writer
        self._name, self._grace, self._cause = name, grace, cause
        self._silence = silence
        self._calls: dict[int, Call] = {}
        self._count = 0
        self._tunnel = Tunnel(writer)
        self._lost: str | None = None
        self.cut = False
        self._tasks: list[asyncio.Task[None]] = []
        self._turns = {"python": asyncio.Lock(), "bash": asyncio.Lock()}
        self.info: dict[str, Any] = {}

    @property
    def lost(self) -> str | None:
        """Why the session can no longer be used; None while it can."""
        return self._lost

    async def start(self, *, timeout: float = 30.0) -> None:
        """Send the supervisor its code and wait until it serves.

        Raises:
            SandboxError: It does not, within ``timeout`` seconds.
        """
        self._writer.write(boot())
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._listen())]
        source = source_of("inside/interpreter.py").encode()
        hello = {"version": VERSION, "silence": self._silence}
        self.info = (await self._ask("hello", source, wait=timeout, **hello))[0]
        self._tasks.append(loop.create_task(self._beat()))

    async def close(self) -> None:
        """Stop using the connection, which its owner closes. Safe to call twice."""
        self._fail("it was closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ping(self, *, timeout: float = 5.0) -> None:
        """Wait until the supervisor answers.

        Raises:
            SandboxError: It does not, within ``timeout`` seconds.
        """
        await self._ask("ping", wait=timeout)

    async def warm(self) -> None:
        """Start the persistent Python and shell, so that the first call need not wait."""
        await self._ask("warm", wait=self._grace, what=["the interpreter", "the shell"])

    async def stats(self) -> dict[str, Any]:
        """Return ``oom_kills``, ``calls`` that run, the supervisor's ``cpu`` (s) and ``memory``."""
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
    ) -> ExecResult:
        """Run a program to its end; see the contract."""
        words = [cmd] if isinstance(cmd, str) else cmd
        if not words or not (isinstance(cmd, str) or cmd[0]):
            raise ValueError("cmd is empty")
        texts = [*words, *(env or {}).keys(), *(env or {}).values(), cwd or ""]
        for text in texts:
            _check_text(text)
        if any(not key or "=" in key for key in env or ()):
            raise ValueError(f"env has a name that no variable can have: {list(env or ())}")
        if not 0 < max_output <= MAX_OUTPUT:
            raise ValueError(f"max_output must be in 1..{MAX_OUTPUT}, got {max_output}")
        data = input.encode("utf-8", "surrogateescape") if isinstance(input, str) else input
        header = {
            "cmd": cmd,
            "cwd": cwd,
            "env": dict(env or {}),
            "timeout": _positive("timeout", timeout),
            "user": user,
            "max_output": max_output,
        }
        return result(await self._ask("exec", data, wait=timeout + self._grace, **header))

    async def python(self, code: str, *, timeout: float = 30.0) -> ExecResult:
        """Run code in the persistent interpreter; see the contract."""
        return await self._persistent("python", code, timeout)

    async def bash(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """Run a command in the persistent shell; see the contract."""
        return await self._persistent("bash", command, timeout)

    async def read_file(self, path: str, *, max_bytes: int = 50 * 2**20) -> bytes:
        """Return a regular file's content; see the contract."""
        _check_text(path)
        if max_bytes < 0:
            raise ValueError(f"max_bytes must not be negative, got {max_bytes}")
        wait = 120.0 + self._grace
        answer = await self._ask("read", wait=wait, path=path, max_bytes=max_bytes)
        return answer[1][0]

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Write a file; see the contract."""
        _check_text(path)
        data = content.encode() if isinstance(content, str) else content
        await self._ask("write", data, wait=120.0 + self._grace, path=path, size=len(data))

    async def forward(self, address: Address, *, port: int = 0) -> int:
        """Carry connections inside to an address; see the contract."""
        if type(port) is not int or not 0 <= port < 2**16:
            raise ValueError(f"port must be in 0..65535, got {port!r}")
        route = self._tunnel.add(address)
        answer = (await self._ask("forward", wait=self._grace, route=route, port=port))[0]
        return int(answer["port"])

    async def _persistent(self, op: str, code: str, timeout: float) -> ExecResult:
        data = code.encode("utf-8", "surrogatepass")
        _positive("timeout", timeout)
        async with self._turns[op]:
            return result(await self._ask(op, data, wait=timeout + self._grace, timeout=timeout))

    async def _ask(
        self, op: str, data: bytes | None = None, *, wait: float, **header: Any
    ) -> Frame:
        """Send a request, and its data in pieces; return the answer."""
        if self._lost is not None:
            raise SandboxError(f"{self._name}: {self._lost}")
        self._count += 1
        number = self._count
        call = self._calls[number] = Call(op)
        call.left = header.get("max_bytes", 0)
        path = header.get("path", "")
        work = asyncio.ensure_future(self._exchange(number, call, header, data))
        try:
            if not await _ends(work, wait):
                raise TimeoutError
            answer, parts = work.result()
        except TimeoutError:
            self._fail(f"its supervisor did not answer {op!r} within {wait:g} s")
            raise SandboxError(f"{self._name}: {self._lost}") from None
        except FrameError as exc:
            raise ValueError(f"{op} takes no such amount: {exc}") from exc  # nothing was sent
        except ConnectionError as exc:
            self.cut = True
            self._fail(f"{op!r} could not be sent: {exc}")
            raise SandboxError(f"{self._name}: {self._lost}") from exc
        except asyncio.CancelledError:
            self._abandon(number)
            raise
        finally:
            work.cancel()
            self._calls.pop(number, None)
        if "error" in answer:
            raise self._error(answer, path)
        return answer, [b"".join(call.pieces)] if op == "read" else parts

    async def _exchange(
        self, number: int, call: Call, header: dict[str, Any], data: bytes | None
    ) -> Frame:
        await self._send(number, call, header, data)
        return await call.future

    async def _send(
        self, number: int, call: Call, header: dict[str, Any], data: bytes | None
    ) -> None:
        head = {"op": call.op, "id": number, **header}
        if data is None or len(data) <= CHUNK or call.op in ("python", "bash", "hello"):
            parts = () if data is None else (data,)
            self._writer.write(encode({**head, "whole": True}, *parts))
            await self._writer.drain()
            return
        self._writer.write(encode({**head, "whole": False}, data[:CHUNK]))
        call.sent = CHUNK
        for start in range(CHUNK, len(data), CHUNK):
            while call.sent - call.taken >= WINDOW and not call.future.done():
                call.room.clear()
                await call.room.wait()
            if call.future.done():
                return  # it ended without reading the rest
            piece = data[start : start + CHUNK]
            end = start + CHUNK >= len(data)
            self._writer.write(encode({"op": "data", "id": number, "end": end}, piece))
            call.sent += len(piece)
            await self._writer.drain()

    def _abandon(self, number: int) -> None:
        """Have the supervisor stop a call whose caller is gone."""
        if self._lost is None:
            self._writer.write(encode({"op": "cancel", "id": number}))

    async def _listen(self) -> None:
        """Hand every frame to the call that waits for it, until there are no more."""
        decoder = Decoder()
        try:
            while data := await self._reader.read(2**20):
                for header, parts in decoder.feed(data):
                    self._take(header, parts)
            why = "its supervisor ended"
        except OSError as exc:
            why = f"the connection to its supervisor broke: {exc!r}"
        except (FrameError, KeyError, IndexError, TypeError, ValueError) as exc:
            self._fail(f"its supervisor broke the protocol: {exc}")
            return
        self.cut = self._lost is None
        if self._lost is None and self._cause is not None:
            try:
                why = f"{why}: {await asyncio.wait_for(self._cause(), 10.0)}"
            except Exception as exc:
                why = f"{why} (for an unknown reason: {exc!r})"
        self._fail(why)

    async def _beat(self) -> None:
        """Tell the supervisor, again and again, that somebody is there."""
        while self._lost is None:
            await asyncio.sleep(self._silence / 10)
            self._writer.write(encode({"op": "alive", "id": 0}))

    def _take(self, header: dict[str, Any], parts: list[bytes]) -> None:
        if "bye" in header:
            self._fail(f"its supervisor ended: {header['bye']}")
            return
        if "tunnel" in header:
            self._tunnel.take(header, parts)
            return
        call = self._calls.get(header["id"])
        if header.get("error") == "lost":
            self._fail(str(header["message"]))
        if call is None:
            return  # its caller is gone
        if "ack" in header:
            call.taken += int(header["ack"])
            call.room.set()
        elif "data" in header:
            call.pieces.append(parts[0])
            call.left -= len(parts[0])
            if call.left < 0:
                raise FrameError("more data came than was asked for")
        elif not call.future.done():
            call.future.set_result((header, parts))
            call.room.set()

    def _fail(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
        self._tunnel.close()
        for call in self._calls.values():
            if not call.future.done():
                call.future.set_exception(SandboxError(f"{self._name}: {self._lost}"))
                call.future.exception()  # its caller may be busy sending
                call.room.set()

    def _error(self, answer: dict[str, Any], path: str) -> Exception:
        if answer["error"] == "os":
            return OSError(answer["errno"], answer["message"], path or None)
        if answer["error"] == "value":
            return ValueError(f"{path}: {answer['message']}" if path else answer["message"])
        return SandboxError(f"{self._name}: {answer['message']}")


def result(answer: Frame) -> ExecResult:
    """Return the result that an answer holds."""
    header, parts = answer
    missing = header["missing"]
    stderr = _text(parts[2], parts[3], missing[1])
    if "note" in header:
        stderr += ("\n" if stderr and not stderr.endswith("\n") else "") + f"[{header['note']}]\n"
    return ExecResult(
        returncode=header["returncode"],
        stdout=_text(parts[0], parts[1], missing[0]),
        stderr=stderr,
        truncated=any(missing),
        timed_out=header.get("timed_out", False),
        oom_killed=header.get("oom_killed", False),
        duration=header.get("duration", 0.0),
    )


def _text(head: bytes, tail: bytes, missing: int) -> str:
    """Join the two ends; a character that the cut went through counts as missing."""
    if not missing:
        return (head + tail).decode("utf-8", "replace")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    before = decoder.decode(head)
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1
    missing += len(decoder.getstate()[0]) + start
    note = f"\n[... {missing} bytes are missing ...]\n"
    return before + note + tail[start:].decode("utf-8", "replace")


async def _ends(work: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for it; return whether it has ended in time.

    Where this process was held up itself, an answer may lie unread: then it gets another moment.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    await asyncio.wait([work], timeout=seconds)
    if not work.done() and loop.time() - until > HELD_UP:
        await asyncio.wait([work], timeout=min(seconds, GRACE))
    return work.done()


def _positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return value


def _check_text(text: str) -> None:
    if "\0" in text:
        raise ValueError(f"a NUL character cannot be part of it: {text[:80]!r}")
    text.encode("utf-8", "surrogateescape")
