"""Two processes call each other: results, errors, cancellation, and every way to lose the other."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from vf.runtime.errors import SandboxError, ScoringTimeout, VfError, WorkerLost
from vf.runtime.meeting import connect, listen
from vf.runtime.peers import Handler, Peer, RemoteError

PROGRAM = [sys.executable, str(Path(__file__).with_name("peer_program.py"))]
START_SECONDS = 60.0


@asynccontextmanager
async def pair(
    here: Mapping[str, Handler], there: Mapping[str, Handler]
) -> AsyncIterator[tuple[Peer, Peer]]:
    """Yield two ends in this process, both served."""
    async with listen() as listener:
        invitation = listener.invite("the other end")
        os.environ.update(invitation.environ)
        accepted = asyncio.create_task(invitation.accepted(here, START_SECONDS))
        ends = await connect(there), await accepted
    serving = [asyncio.create_task(end.serve()) for end in ends]
    try:
        yield ends[1], ends[0]
    finally:
        for end in ends:
            await end.close()
        await asyncio.gather(*serving)


@asynccontextmanager
async def program(silence: float = 60.0) -> AsyncIterator[tuple[Peer, asyncio.subprocess.Process]]:
    """Yield the connection to ``peer_program.py`` and its process, which ends with the block."""
    async with listen() as listener:
        invitation = listener.invite("the program")
        environ = {**os.environ, **invitation.environ}
        process = await asyncio.create_subprocess_exec(*PROGRAM, str(silence), env=environ)
        try:
            peer = await invitation.accepted({}, START_SECONDS, silence)
            serving = asyncio.create_task(peer.serve())
            try:
                yield peer, process
            finally:
                await peer.close()
                await serving
            await asyncio.wait_for(process.wait(), START_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def add(a: int, b: int) -> int:
    return a + b


async def wait() -> None:
    await asyncio.Event().wait()


def test_both_ends_call_each_other_at_once() -> None:
    async def twice(value: int) -> Any:
        return await ends[1].call("add", value, value)

    ends: list[Peer] = []

    async def main() -> list[int]:
        async with pair({"add": add}, {"twice": twice}) as ends[:]:
            return await asyncio.gather(*(ends[0].call("twice", i) for i in range(200)))

    assert asyncio.run(main()) == [2 * i for i in range(200)]


def test_calls_begin_in_the_order_in_which_they_were_made() -> None:
    heard: list[int] = []

    async def hear(value: int) -> None:
        heard.append(value)

    async def main() -> None:
        async with pair({}, {"hear": hear}) as (end, _):
            for value in range(0, 100, 2):
                end.tell("hear", value)
                await end.call("hear", value + 1)
            end.tell("hear", 100)
            await until(lambda: 100 in heard)

    asyncio.run(main())
    assert heard == list(range(101))


def test_a_program_answers_and_does_not_pass_its_invitation_to_what_it_starts() -> None:
    async def main() -> None:
        async with program() as (peer, process):
            assert await peer.call("about") == (process.pid, False)
            large = os.urandom(20_000_000)
            assert await peer.call("echo", large) == large
        assert process.returncode == 0

    asyncio.run(main())


class Odd(SandboxError):
    """An error that cannot be unpickled: its constructor wants more than its message."""

    def __init__(self, message: str, *, container: str) -> None:
        super().__init__(f"{message} in {container}")


def raised_by(error: BaseException) -> Exception:
    """Return what a call raises whose function raises an error."""

    async def fail() -> None:
        raise error

    async def main() -> Exception:
        async with pair({}, {"fail": fail}) as (end, _):
            with pytest.raises(Exception) as caught:
                await end.call("fail")
        return caught.value

    return asyncio.run(main())


def test_errors_of_the_library_keep_their_type_and_show_where_they_were_raised() -> None:
    error = ScoringTimeout("too slow")
    error.add_note("see the log")
    caught = raised_by(error)
    assert (type(caught), str(caught)) == (ScoringTimeout, "too slow")
    assert caught.__notes__ == ["see the log"]
    assert "in fail" in str(caught.__cause__)


def test_an_error_that_cannot_be_sent_becomes_the_library_s_nearest() -> None:
    caught = raised_by(Odd("broken", container="box 3"))
    assert (type(caught), str(caught)) == (SandboxError, "broken in box 3")


@pytest.mark.parametrize("error", [ValueError("what?"), threading.BrokenBarrierError("odd")])
def test_other_errors_come_as_text_with_their_traceback(error: Exception) -> None:
    caught = raised_by(error)
    assert isinstance(caught, RemoteError)
    assert str(caught).startswith(f"{type(error).__name__}: {error}") or "BrokenBarrier" in str(
        caught
    )
    assert "in fail" in caught.traceback
