"""Two processes call each other: results, order, errors, and not more than is read."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from tests.runtime.peer_ends import pair, program
from tests.waiting import until
from vf.runtime.errors import RemoteError, SandboxError, ScoringTimeout, WorkerLost
from vf.runtime.peers import Handler, Peer


async def add(a: int, b: int) -> int:
    return a + b


async def test_both_ends_call_each_other_at_once() -> None:
    async def twice(value: int) -> Any:
        return await ends[1].call("add", value, value)

    ends: list[Peer] = []

    async with pair({"add": add}, {"twice": twice}) as ends[:]:
        results = await asyncio.gather(*(ends[0].call("twice", i) for i in range(200)))
    assert results == [2 * i for i in range(200)]


async def test_calls_begin_in_the_order_in_which_they_were_made() -> None:
    heard: list[int] = []

    async def hear(value: int) -> None:
        heard.append(value)

    async with pair({}, {"hear": hear}) as (end, _):
        for value in range(0, 100, 2):
            end.tell("hear", value)
            await end.call("hear", value + 1)
        end.tell("hear", 100)
        await until(lambda: 100 in heard)
    assert heard == list(range(101))


async def test_a_program_answers_and_does_not_pass_its_invitation_to_what_it_starts() -> None:
    async with program() as (peer, process):
        assert await peer.call("about") == (process.pid, False)
        large = os.urandom(20_000_000)
        assert await peer.call("echo", large) == large
    assert process.returncode == 0


class Odd(SandboxError):
    """An error that cannot be unpickled: its constructor wants more than its message."""

    def __init__(self, message: str, *, container: str) -> None:
        super().__init__(f"{message} in {container}")


def result_of(function: Handler, *args: Any) -> Any:
    """Call a function at the other end."""

    async def main() -> Any:
        async with pair({}, {"function": function}) as (end, _):
            return await end.call("function", *args)

    return asyncio.run(main())


def failing(error: BaseException) -> Handler:
    async def fail() -> None:
        raise error

    return fail


def test_errors_of_the_library_keep_their_type_and_show_where_they_were_raised() -> None:
    error = ScoringTimeout("too slow")
    error.add_note("see the log")
    with pytest.raises(ScoringTimeout) as caught:
        result_of(failing(error))
    assert (str(caught.value), caught.value.__notes__) == ("too slow", ["see the log"])
    assert "in fail" in str(caught.value.__cause__)


def test_an_error_that_cannot_be_sent_becomes_the_nearest_of_the_library() -> None:
    with pytest.raises(SandboxError, match=r"^broken in box 3$"):
        result_of(failing(Odd("broken", container="box 3")))


def test_other_errors_come_as_text_with_their_traceback() -> None:
    with pytest.raises(RemoteError, match=r"^threading.BrokenBarrierError: odd\n") as caught:
        result_of(failing(threading.BrokenBarrierError("odd")))
    assert "in fail" in caught.value.traceback


async def lock() -> Any:
    return threading.Lock()


async def cancel_itself() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("function", "message"),
    [(lock, "cannot pickle '_thread.lock'"), (cancel_itself, "was cancelled by the other end")],
)
def test_a_call_without_a_result_says_why(function: Handler, message: str) -> None:
    with pytest.raises(RemoteError, match=message):
        result_of(function)


def test_what_cannot_be_sent_is_refused_here() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        result_of(add, threading.Lock())


async def test_a_failure_in_a_callback_is_logged_there(caplog: pytest.LogCaptureFixture) -> None:
    async with pair({}, {"fail": failing(ValueError("what?"))}) as (end, _):
        end.tell("fail")
        await until(lambda: "what?" in caplog.text)


async def test_calls_wait_to_be_sent_until_those_before_have_been_read() -> None:
    size, count = 2**20, 30

    async def read_slowly(theirs: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        left = size * count
        while left > 0:
            left -= len(await theirs.read(2**16))
            buffered.append(writers[0].transport.get_write_buffer_size())
        all_read.set()

    buffered: list[int] = []
    writers: list[asyncio.StreamWriter] = []
    all_read = asyncio.Event()

    server = await asyncio.start_server(read_slowly, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writers.append(writer)
    peer = Peer(reader, writer, {})
    calls = [asyncio.create_task(peer.call("echo", bytes(size))) for _ in range(count)]
    await asyncio.wait_for(all_read.wait(), 60)
    await peer.close()
    for call in calls:
        with pytest.raises(WorkerLost):
            await call
    server.close()
    assert max(buffered) < 2 * size


async def test_calls_that_come_together_leave_others_their_turn() -> None:
    begun = 0

    async def begin() -> None:
        nonlocal begun
        begun += 1

    most = 0
    async with pair({}, {"begin": begin}) as (end, _):
        for _ in range(1000):
            end.tell("begin")
        while begun < 1000:
            before = begun
            await asyncio.sleep(0)
            most = max(most, begun - before)
    assert most <= 2
