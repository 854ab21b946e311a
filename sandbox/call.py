"""The state of one request of a session, and the parsing of its answer."""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from vf.runtime.errors import SandboxError
from vf.sandbox.contract import ExecResult, OutOfRange, Output
from vf.sandbox.ends import Ends
from vf.sandbox.frames import OUTPUT_WINDOW, Frame, FrameError, encode
from vf.sandbox.tunnel import Writer

CHUNK = 256 * 1024
LONGEST_PATH = 2**20  # bytes; no system accepts longer ones
NOT_RUN = 126  # a shell's exit code for a program that cannot be run
NOTE = re.compile(r"\n\[\.\.\. \d+ bytes are missing \.\.\.\]\n")  # in place of output
WINDOW = 4 * CHUNK
MAX_OUTPUT = 64 * 2**20
GRACE = 15.0  # seconds that a supervisor has on top of a call's timeout
HELD_UP = 0.5  # seconds by which a timer is late if the event loop was blocked
STREAMS: dict[int, Literal["stdout", "stderr"]] = {1: "stdout", 2: "stderr"}


class Call:
    """One request that waits for its answer."""

    def __init__(self, op: str) -> None:
        """Wait for the answer to a request of this kind."""
        self.op = op
        self.left = 0  # bytes of data that may still come
        self.future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.pieces: list[bytes] = []
        self.stream: OutputStream | None = None
        self.sent = 0
        self.taken = 0
        self.room = asyncio.Event()


class OutputStream:
    """A program's output while it runs: passed on as it comes, the head and the tail kept."""

    def __init__(self, pass_on: Callable[[Output], None], max_output: int) -> None:
        """Keep ``max_output`` bytes of each stream."""
        self._pass_on = pass_on
        self._unacked = 0
        self._ends = {stream: Ends(max_output) for stream in STREAMS}

    def take(self, stream: int, data: bytes) -> None:
        """Take a piece."""
        self._ends[stream].add(data)
        self._unacked += len(data)
        self._pass_on(output(stream, data))

    def to_acknowledge(self) -> int:
        """Return the number of bytes to acknowledge now; 0 for a few bytes only."""
        count = self._unacked if self._unacked >= OUTPUT_WINDOW // 2 else 0
        self._unacked -= count
        return count

    def finish(self, answer: Frame) -> Frame:
        """Take the output that came with the answer; return the answer with all that is kept."""
        header, parts = answer
        for stream, data in enumerate((parts[0] + parts[1], parts[2] + parts[3]), start=1):
            if data:
                self.take(stream, data)
        return with_output(header, *(ends.kept() for ends in self._ends.values()))


async def send(
    writer: Writer, number: int, call: Call, header: dict[str, Any], data: bytes | None
) -> None:
    """Send a request and its data; large data in pieces, no faster than the supervisor takes them.

    Raises:
        FrameError: If it is more than a frame can hold; nothing was sent.
    """
    head = {"op": call.op, "id": number, **header}
    if data is None or len(data) <= CHUNK or call.op in ("python", "bash", "hello"):
        parts = () if data is None else (data,)
        writer.write(encode({**head, "whole": True}, *parts))
        await writer.drain()
        return
    writer.write(encode({**head, "whole": False}, data[:CHUNK]))
    call.sent = CHUNK
    for start in range(CHUNK, len(data), CHUNK):
        while call.sent - call.taken >= WINDOW and not call.future.done():
            call.room.clear()
            await call.room.wait()
        if call.future.done():
            return  # it ended without reading the rest
        piece = data[start : start + CHUNK]
        last = start + CHUNK >= len(data)
        writer.write(encode({"op": "data", "id": number, "end": last}, piece))
        call.sent += len(piece)
        await writer.drain()


def with_output(header: dict[str, Any], *kept: tuple[bytes, bytes, int]) -> Frame:
    """Return an answer with this output: head, tail and missing bytes of each stream."""
    parts = [data for head, tail, _ in kept for data in (head, tail)]
    return {**header, "missing": [missing for _, _, missing in kept]}, parts


def output(stream: int, data: bytes) -> Output:
    """Return a piece of output.

    Raises:
        FrameError: If the stream is unknown, or the data empty.
    """
    if stream not in STREAMS or not data:
        raise FrameError(f"there is no output of {len(data)} bytes on {stream!r}")
    return Output(STREAMS[stream], data)


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
    """Join the two ends; a character that was cut counts as missing."""
    if not missing:
        return (head + tail).decode("utf-8", "replace")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    before = decoder.decode(head)
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1
    missing += len(decoder.getstate()[0]) + start
    note = f"\n[... {missing} bytes are missing ...]\n"  # as in NOTE
    return before + note + tail[start:].decode("utf-8", "replace")


def command(
    cmd: list[str] | str, cwd: str | None, env: Mapping[str, str] | None, user: str | None
) -> dict[str, Any]:
    """Return a command's part of a request.

    Nothing is refused here: arguments that no program can have, such as a NUL character, may come
    from a model, and are a result of the call that would run it.
    """
    return {"cmd": cmd, "cwd": cwd, "env": dict(env or {}), "user": user}


def refused(error: FrameError) -> Frame:
    """Return the answer to a command or code that is too large to be sent."""
    note = f"{os.strerror(errno.E2BIG)}: {error}"
    header = {"returncode": NOT_RUN, "note": note, "missing": [0, 0], "gone": True}
    return header, [b""] * 4


def as_bytes(text: str | bytes) -> bytes:
    """Return a text as UTF-8: escaped bytes as they were, any other lone surrogate as "?"."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def check_path(path: str) -> None:
    """Refuse a path that is impossible in any sandbox.

    Raises:
        FileNotFoundError: If it holds a NUL character, is no Unicode text, or is far too long.
    """
    try:
        possible = "\0" not in path and len(os.fsencode(path)) <= LONGEST_PATH
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise FileNotFoundError(errno.ENOENT, "no file can have this name", ascii(path[:80]))


def check_output(max_output: int) -> None:
    """Check the limit of output.

    Raises:
        OutOfRange: If it is not in 1 to 64 MiB.
    """
    if not 0 < max_output <= MAX_OUTPUT:
        raise OutOfRange(f"max_output must be in 1..{MAX_OUTPUT}, got {max_output}")


def failure(answer: dict[str, Any], path: str, sandbox: str) -> Exception:
    """Return the exception that an answer stands for."""
    if answer["error"] == "os":
        return OSError(answer["errno"], answer["message"], path or None)
    if answer["error"] == "value":
        return ValueError(f"{path}: {answer['message']}" if path else answer["message"])
    return SandboxError(f"{sandbox}: {answer['message']}")


async def ends(work: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for it; return whether it has ended in time.

    If this process was blocked itself, an answer may be unread: then it gets some more time.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    await asyncio.wait([work], timeout=seconds)
    if not work.done() and loop.time() - until > HELD_UP:
        await asyncio.wait([work], timeout=min(seconds, GRACE))
    return work.done()
