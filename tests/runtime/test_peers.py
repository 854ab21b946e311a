"""Two processes call each other: results, errors, cancellation, and every way to lose the other."""

from __future__ import annotations

import asyncio
import os
import random
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
from vf.runtime.errors import SandboxError, ScoringTimeout, WorkerLost
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

    async def main() -> None:
        async with pair({"add": add}, {"twice": twice}) as ends[:]:
            results = await asyncio.gather(*(ends[0].call("twice", i) for i in range(200)))
        assert results == [2 * i for i in range(200)]

    asyncio.run(main())


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


def test_a_failure_of_what_was_told_is_logged_there(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with pair({}, {"fail": failing(ValueError("what?"))}) as (end, _):
            end.tell("fail")
            await until(lambda: "what?" in caplog.text)

    asyncio.run(main())


def test_a_cancelled_call_has_ended_there_when_it_ends_here() -> None:
    async def main() -> None:
        async with program() as (peer, _):
            calls = [asyncio.create_task(peer.call("hold", name, 0.1)) for name in "ab"]
            while await peer.call("holding") != ["a", "b"]:
                pass
            calls[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await calls[0]
            assert await peer.call("holding") == ["b"]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await peer.call("hold", "c", 0.1)
            assert await peer.call("holding") == ["b"]

    asyncio.run(main())


def test_a_call_that_is_cancelled_before_it_begins_there_ends() -> None:
    async def main() -> None:
        async with pair({}, {"wait": wait}) as (end, _):
            call = asyncio.create_task(end.call("wait"))
            await asyncio.sleep(0)  # it has been sent
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled()

    asyncio.run(main())


def test_a_second_cancellation_arrives_there_too() -> None:
    """As it would in a coroutine of this process, which is in the middle of cleaning up."""

    async def main() -> None:
        async with program() as (peer, _):
            call = asyncio.create_task(peer.call("hold", "a", 1000.0))
            while not await peer.call("holding"):
                pass
            call.cancel()
            await peer.call("echo", 0)
            assert not call.done()
            call.cancel()
            await asyncio.wait([call])
            assert await peer.call("holding") == []

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_is_cancelled_at_any_moment_is_not_left_under_way(seed: int) -> None:
    draw, under_way = random.Random(seed), set[int]()

    async def work(number: int, seconds: float) -> int:
        under_way.add(number)
        try:
            await asyncio.sleep(seconds)
            if number % 5 == 0:
                raise ScoringTimeout("too slow")
            return number
        finally:
            try:
                await asyncio.sleep(seconds)
            finally:
                under_way.remove(number)

    async def call(peer: Peer, number: int) -> None:
        try:
            async with asyncio.timeout(draw.choice([None, 0.0, 0.001, 0.004])):
                assert await peer.call("work", number, 0.004 * draw.random()) == number
        except ScoringTimeout:
            assert number % 5 == 0
        except TimeoutError:
            pass
        assert number not in under_way

    async def main() -> None:
        async with pair({"work": work}, {"work": work}) as ends, asyncio.TaskGroup() as group:
            for number in range(200):
                task = group.create_task(call(draw.choice(ends), number))
                if draw.random() < 0.2:
                    asyncio.get_running_loop().call_later(0.004 * draw.random(), task.cancel)
                if draw.random() < 0.5:
                    await asyncio.sleep(0)

    asyncio.run(main())
    assert not under_way


def test_the_end_of_the_other_process_ends_calls_under_way_and_later_ones() -> None:
    async def main() -> None:
        async with program() as (peer, process):
            call = asyncio.create_task(peer.call("hold", "a", 0.0))
            while not await peer.call("holding"):
                pass
            process.kill()
            for lost in (call, peer.call("echo", 0)):
                with pytest.raises(WorkerLost, match="connection to the program was lost"):
                    await lost
            peer.tell("echo", 0)
            assert peer.lost == "the connection to the program was lost"

    asyncio.run(main())


def test_the_end_of_a_connection_cancels_calls_and_waits_for_them() -> None:
    async def main() -> None:
        async with program() as (peer, process):
            call = asyncio.create_task(peer.call("hold", "a", 0.2))
            while not await peer.call("holding"):
                pass
            await peer.close()
            with pytest.raises(WorkerLost, match="connection to the program was closed"):
                await call
        assert process.returncode == 0  # its exit code if it has cleaned up

    asyncio.run(main())


def test_closing_does_not_interrupt_a_call_that_cleans_up_already() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaning")
            await asyncio.sleep(0.05)
            seen.append("clean")

    async def main() -> None:
        async with pair({}, {"work": work}) as (end, other):
            call = asyncio.create_task(end.call("work"))
            await until(lambda: "begun" in seen)
            call.cancel()
            await until(lambda: "cleaning" in seen)
            await asyncio.gather(other.close(), other.close())
            await asyncio.wait([call])

    asyncio.run(main())
    assert seen == ["begun", "cleaning", "clean"]


def test_a_function_may_close_its_own_connection() -> None:
    ends: list[Peer] = []

    async def close() -> None:
        await ends[1].close()

    async def main() -> None:
        async with pair({}, {"close": close}) as ends[:]:
            with pytest.raises(WorkerLost):
                await ends[0].call("close")

    asyncio.run(main())


def test_an_end_that_gives_no_sign_of_life_is_lost() -> None:
    silence = 0.6

    async def main() -> None:
        async with program(silence) as (peer, process):
            await peer.call("block", silence / 2)
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(WorkerLost, match=r"the program gave no sign of life for 0\.6 s"):
                await peer.call("echo", 0)
            process.kill()

    asyncio.run(main())


def test_when_both_ends_stood_still_neither_is_lost() -> None:
    """As after a machine was suspended, which their clocks may show."""
    silence = 0.4

    async def main() -> None:
        async with program(silence) as (peer, process):
            process.send_signal(signal.SIGSTOP)
            time.sleep(2 * silence)  # noqa: ASYNC251 - this end is to stand still, too
            process.send_signal(signal.SIGCONT)
            for _ in range(3):
                assert await peer.call("echo", 0) == 0

    asyncio.run(main())


def test_calls_wait_to_be_sent_until_those_before_have_been_read() -> None:
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

    async def main() -> None:
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

    asyncio.run(main())
    assert max(buffered) < 2 * size
