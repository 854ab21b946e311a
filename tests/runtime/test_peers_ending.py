"""How calls and connections between two processes end: cancelled, closed, killed or silent."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest

from tests.runtime.peer_ends import pair, program
from tests.waiting import Clock, until
from vf.runtime import peers
from vf.runtime.errors import ScoringTimeout, WorkerLost
from vf.runtime.peers import Peer


async def wait() -> None:
    await asyncio.Event().wait()


async def test_a_cancelled_call_has_ended_there_when_it_ends_here() -> None:
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


async def test_a_call_that_is_cancelled_before_it_begins_there_ends() -> None:
    async with pair({}, {"wait": wait}) as (end, _):
        call = asyncio.create_task(end.call("wait"))
        await asyncio.sleep(0)  # it has been sent
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()


async def test_a_second_cancellation_does_not_interrupt_the_cleaning_up_there() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaning")
            for _ in range(20):
                await asyncio.sleep(0)
            seen.append("clean")

    async with pair({}, {"work": work}) as (end, _):
        call = asyncio.create_task(end.call("work"))
        await until(lambda: "begun" in seen)
        for _ in range(3):
            call.cancel()
            await until(lambda: "cleaning" in seen)
        await asyncio.wait([call])
        assert call.cancelled()
        assert seen == ["begun", "cleaning", "clean"]


async def test_a_cancelled_call_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "CANCEL_SECONDS", 0.1)

    async with program() as (peer, process):
        call = asyncio.create_task(peer.call("hold", "a", 0.0))
        while not await peer.call("holding"):
            pass
        process.send_signal(signal.SIGSTOP)
        call.cancel()
        await asyncio.wait([call], timeout=60.0)
        assert call.cancelled()
        process.send_signal(signal.SIGCONT)
        assert await peer.call("echo", 0) == 0  # what comes late does no harm


@pytest.mark.parametrize("seed", range(3))
async def test_a_call_that_is_cancelled_at_any_moment_is_not_left_under_way(seed: int) -> None:
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

    async with pair({"work": work}, {"work": work}) as ends, asyncio.TaskGroup() as group:
        for number in range(200):
            task = group.create_task(call(draw.choice(ends), number))
            if draw.random() < 0.2:
                asyncio.get_running_loop().call_later(0.004 * draw.random(), task.cancel)
            if draw.random() < 0.5:
                await asyncio.sleep(0)
    assert not under_way


async def test_the_end_of_the_other_process_ends_calls_under_way_and_later_ones() -> None:
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


async def test_the_end_of_a_connection_cancels_calls_and_waits_for_them() -> None:
    async with program() as (peer, process):
        call = asyncio.create_task(peer.call("hold", "a", 0.2))
        while not await peer.call("holding"):
            pass
        await peer.close()
        with pytest.raises(WorkerLost, match="connection to the program was closed"):
            await call
    assert process.returncode == 0  # its exit code if it has cleaned up


async def test_closing_does_not_interrupt_a_call_that_cleans_up_already() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaning")
            for _ in range(20):
                await asyncio.sleep(0)
            seen.append("clean")

    async with pair({}, {"work": work}) as (end, other):
        call = asyncio.create_task(end.call("work"))
        await until(lambda: "begun" in seen)
        call.cancel()
        await until(lambda: "cleaning" in seen)
        await asyncio.gather(other.close(), other.close())
        await asyncio.wait([call])
    assert seen == ["begun", "cleaning", "clean"]


async def test_a_function_may_close_its_own_connection() -> None:
    ends: list[Peer] = []

    async def close() -> None:
        await ends[1].close()

    async with pair({}, {"close": close}) as ends[:]:
        with pytest.raises(WorkerLost):
            await ends[0].call("close")


async def test_an_end_that_gives_no_sign_of_life_is_lost(clock: Clock) -> None:
    beat = peers.SILENCE_SECONDS / 12

    async with program() as (peer, process):
        process.send_signal(signal.SIGSTOP)
        for _ in range(6):
            await clock.skip(beat)
        process.send_signal(signal.SIGCONT)
        assert await peer.call("echo", 0) == 0
        process.send_signal(signal.SIGSTOP)
        call = asyncio.create_task(peer.call("echo", 0))
        while peer.lost is None:
            await clock.skip(beat)
        with pytest.raises(WorkerLost, match="the program gave no sign of life for 60 s"):
            await call
        process.kill()


async def test_when_both_ends_were_suspended_neither_is_lost(clock: Clock) -> None:
    """As after a machine was suspended, which their clocks may show."""

    async def echo(value: int) -> int:
        return value

    async with pair({"echo": echo}, {"echo": echo}) as ends:
        for number in range(3):
            await clock.skip(10 * peers.SILENCE_SECONDS)
            for end in ends:
                assert await end.call("echo", number) == number
