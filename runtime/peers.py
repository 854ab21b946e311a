"""Two processes that call each other over one connection, on one machine or two.

What is sent is a frame: its kind, the call's number, and a pickle. Calls are answered in whatever
order they end, so each has a number. Both ends send a beat every few seconds, and any byte counts
as one: an end whose machine is gone, or whose event loop pauses, is noticed by its silence.
:mod:`vf.runtime.meeting` makes such connections.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import struct
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from vf.runtime import errors
from vf.runtime.errors import RemoteError, VfError, WorkerLost

Handler = Callable[..., Awaitable[Any]]

SILENCE_SECONDS = 60.0  # without a byte, after which the other end is lost
CANCEL_SECONDS = 70.0  # for a cancelled call to end: an environment may take 60 s to close
CLOSE_SECONDS = 5.0  # for what was written to be read, when a connection is closed
_BEATS = 12  # in the seconds of silence, at least
_BEAT_SECONDS = 5.0  # between two, at most
_HEADER = struct.Struct("!BQQ")  # kind, number of the call, bytes of the pickle
_BEAT, _CALL, _TELL, _CANCEL, _RESULT, _ERROR, _CANCELLED = range(7)

_log = logging.getLogger(__name__)


class Peer:
    """One end of a connection. It belongs to the event loop in which it was made.

    Arguments and results are pickled: both ends run the same program, and hold the two ends of a
    socket pair, or prove to each other that they know the connection's key before anything is
    unpickled. Both must run :meth:`serve`.

    Args:
        reader: From the other end.
        writer: To it.
        handlers: The functions that the other end may call, by name. Calls begin in the order in
            which they were made, and then run concurrently.
        name: The other end's name, for the errors.
        silence: Seconds without a sign of life, after which it is lost; ``math.inf`` for none. Both
            ends need the same.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handlers: Mapping[str, Handler],
        name: str = "the other process",
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self._reader, self._writer, self._handlers = reader, writer, handlers
        self._name, self._silence = name, silence
        self._pause = min(silence / _BEATS, _BEAT_SECONDS)
        self._most = silence / self._pause  # beats without a byte from the other end
        self._silent_beats = 0
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}  # made here
        self._work: dict[int, asyncio.Task[Any]] = {}  # calls made there, under way here
        self._notified: set[asyncio.Task[Any]] = set()
        self._lost: str | None = None

    @property
    def lost(self) -> str | None:
        """Why the connection ended; None while it lasts."""
        return self._lost

    @property
    def silent(self) -> bool:
        """Whether it ended because the other end gave no sign of life."""
        return self._lost is not None and self._silent_beats >= self._most

    @property
    def quiet(self) -> float:
        """For about how many seconds nothing has come from the other end."""
        return self._silent_beats * self._pause

    async def call(self, name: str, *args: Any) -> Any:
        """Call a function of the other end and return its result.

        A call that is cancelled here is cancelled there, and has ended there when this raises,
        unless the connection has ended or that takes longer than ``CANCEL_SECONDS``. While the
        connection is congested, a call waits before it is sent.

        Raises:
            WorkerLost: If the connection ended first.
            VfError: If the function raised this error, which keeps its type; its cause is a
                :class:`RemoteError` with the traceback.
            RemoteError: If it raised anything else.
            asyncio.CancelledError: If the call was cancelled.
        """
        transport = self._writer.transport
        _, most = transport.get_write_buffer_limits()
        with suppress(OSError):  # `_lost` says more
            while transport.get_write_buffer_size() > most:  # also once others have written
                await self._writer.drain()
        if self._lost is not None:
            raise WorkerLost(self._lost)
        number, packed = next(self._numbers), pickle.dumps((name, args))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        self._send(_CALL, number, packed)
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError:
            answer.add_done_callback(_seen)
            self._send(_CANCEL, number)
            await self._cancelled(answer)
            raise
        return answer.result()

    async def _cancelled(self, answer: asyncio.Future[Any]) -> None:
        """Wait for the end of a cancelled call.

        A further cancellation is not sent: there, it would interrupt the cleaning up.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + CANCEL_SECONDS
        while not answer.done() and loop.time() < end:
            with suppress(asyncio.CancelledError):
                await asyncio.wait([answer], timeout=end - loop.time())

    def tell(self, name: str, *args: Any) -> None:
        """Call a function of the other end without waiting for its result.

        What it raises is logged there. Once the connection has ended, this does nothing. It does
        not wait while the connection is congested either: do not tell more than is read.
        """
        self._send(_TELL, 0, pickle.dumps((name, args)))

    async def serve(self) -> None:
        """Answer the other end's calls until the connection ends; calls under way then end."""
        beat = asyncio.create_task(self._beat())
        try:
            with suppress(asyncio.IncompleteReadError, OSError):
                while self._lost is None:
                    kind, number, size = _HEADER.unpack(await self._read(_HEADER.size))
                    self._take(kind, number, await self._read(size))
                    # What was read ahead does not suspend: thousands of calls that come together
                    # would begin before anything else here has its turn.
                    await asyncio.sleep(0)
            self._lose(f"the connection to {self._name} was lost")
        finally:
            beat.cancel()
            await self.close()

    async def close(self) -> None:
        """End the connection. Safe to call twice.

        Calls under way at the other end are cancelled there; those under way here are cancelled,
        and have ended when this returns.
        """
        self._lose(f"the connection to {self._name} was closed")
        work = {*self._work.values(), *self._notified} - {asyncio.current_task()}
        for task in work:
            if not task.cancelling():  # else it is at cleaning up, which this would interrupt
                task.cancel()
        self._writer.close()
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), CLOSE_SECONDS)
        self._writer.transport.abort()
        if work:
            await asyncio.wait(work)

    def _lose(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(WorkerLost(self._lost))
        self._calls.clear()

    def _send(self, kind: int, number: int = 0, packed: bytes = b"") -> None:
        if self._lost is None:
            self._writer.writelines([_HEADER.pack(kind, number, len(packed)), packed])

    async def _read(self, size: int) -> bytearray:
        """Return so many bytes; also those of a large frame are signs of life as they come."""
        data = bytearray()
        while len(data) < size:
            piece = await self._reader.read(size - len(data))
            if not piece:
                raise asyncio.IncompleteReadError(bytes(data), size)
            self._silent_beats = 0
            data += piece
        return data

    async def _beat(self) -> None:
        # Beats are counted, not seconds: if it is this end that paused, the other's signs of life
        # wait here to be read.
        while self._silent_beats < self._most:
            self._send(_BEAT)
            await asyncio.sleep(self._pause)
            self._silent_beats += 1
        self._lose(f"{self._name} gave no sign of life for {self._silence:g} s")
        self._writer.transport.abort()

    def _take(self, kind: int, number: int, packed: bytearray) -> None:
        if self._lost is not None:
            return
        if kind == _CALL:
            work = self._work[number] = asyncio.create_task(self._run(packed))
            work.add_done_callback(partial(self._answer, number))
        elif kind == _TELL:
            work = asyncio.create_task(self._run(packed))
            self._notified.add(work)
            work.add_done_callback(self._note)
        elif kind == _CANCEL:
            if number in self._work:  # else it has been answered
                self._work[number].cancel()
        elif kind != _BEAT:
            answer = self._calls.pop(number)
            try:
                if kind == _RESULT:
                    answer.set_result(pickle.loads(packed))
                elif kind == _ERROR:
                    answer.set_exception(_unpack_error(packed))
                else:
                    answer.set_exception(RemoteError(f"the call was cancelled by {self._name}"))
            except Exception as error:  # whatever unpickling raises
                failure = RemoteError(f"an answer of {self._name} cannot be unpickled: {error!r}")
                answer.set_exception(failure)

    async def _run(self, packed: bytearray) -> Any:
        name, args = pickle.loads(packed)
        return await self._handlers[name](*args)

    def _answer(self, number: int, work: asyncio.Task[Any]) -> None:
        """Send what became of a call: also of one that was cancelled before it began."""
        del self._work[number]
        if work.cancelled():
            self._send(_CANCELLED, number)
            return
        error = work.exception()
        if error is None:
            try:
                self._send(_RESULT, number, pickle.dumps(work.result()))
                return
            except Exception as unsent:  # whatever pickling raises
                error = unsent
        self._send(_ERROR, number, _pack_error(error))

    def _note(self, work: asyncio.Task[Any]) -> None:
        self._notified.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            _log.error("a notice from %s failed", self._name, exc_info=error)


def _seen(answer: asyncio.Future[Any]) -> None:
    """Look at what became of a call, which asyncio would otherwise report as never looked at."""
    if not answer.cancelled():
        answer.exception()


def _pack_error(error: BaseException) -> bytes:
    """Return an error with its traceback, and the library's nearest class in case it won't load."""
    text = "".join(traceback.format_exception(error)).rstrip("\n")
    shown = "".join(traceback.format_exception_only(error)).rstrip("\n")
    itself, nearest = b"", ""
    if isinstance(error, VfError):
        shown = str(error)
        nearest = next(
            kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__
        )
        with suppress(Exception):  # whatever pickling raises
            itself = pickle.dumps(error)
    return pickle.dumps((itself, nearest, shown, text))


def _unpack_error(packed: bytearray) -> Exception:
    itself, nearest, shown, text = pickle.loads(packed)
    if not nearest:
        return RemoteError(shown, text)
    try:
        error = pickle.loads(itself)
    except Exception:  # whatever its class's constructor raises
        error = None
    if not isinstance(error, VfError):
        kind: type[VfError] = getattr(errors, nearest)
        error = kind(shown)
    error.__cause__ = RemoteError("raised in another process", text)
    return error
