"""Plain functions in threads: quick ones share a wake-up, and none holds up another."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from vf.runtime import workers
from vf.runtime.calling import call, instant
from vf.runtime.workers import _Batch, _Job, in_thread

SOON = 60.0  # seconds; far more than anything here takes


def made_quick(fn: Callable[..., Any], *args: Any) -> None:
    """Run a function until it is known to be quick; a busy machine may need more than once."""
    for _ in range(50):
        asyncio.run(in_thread(fn, *args))
        if fn in workers._quick:
            return
    raise AssertionError("it never was quick")


def gated() -> tuple[Callable[[int], int], threading.Event, threading.Event]:
    """Return a function that blocks while the gate is closed, and says that it has begun."""
    gate, begun = threading.Event(), threading.Event()
    gate.set()

    def pass_gate(value: int) -> int:
        begun.set()
        gate.wait(60)
        return value

    return pass_gate, gate, begun


def test_quick_functions_called_together_share_a_thread() -> None:
    def where(value: int) -> tuple[int, int]:
        return value, threading.get_ident()

    async def together() -> list[Any]:
        return await asyncio.gather(*(in_thread(where, value) for value in range(50)))

    made_quick(where, 0)
    fewest = 50
    for _ in range(10):  # a busy machine may scatter one
        answers = asyncio.run(together())
        assert [value for value, _ in answers] == list(range(50))
        assert threading.get_ident() not in {thread for _, thread in answers}
        fewest = min(fewest, len({thread for _, thread in answers}))
    assert fewest == 1


def test_an_unknown_function_has_a_thread_of_its_own() -> None:
    barrier = threading.Barrier(20)

    def meet() -> int:
        return barrier.wait(SOON)

    async def together() -> list[Any]:
        return await asyncio.gather(*(in_thread(meet) for _ in range(20)))

    assert sorted(asyncio.run(together())) == list(range(20))


def test_a_quick_function_that_blocks_holds_up_nobody() -> None:
    pass_gate, gate, _ = gated()

    def other(value: int) -> int:
        return value

    async def together() -> None:
        blocked = asyncio.create_task(in_thread(pass_gate, 7))
        async with asyncio.timeout(SOON):
            first = [asyncio.create_task(in_thread(other, value)) for value in range(30)]
            assert await asyncio.gather(*first) == list(range(30))
            # While it still blocks, later calls find the way free as well.
            assert await asyncio.gather(*(in_thread(other, i) for i in range(30))) == [*range(30)]
        assert not blocked.done()
        gate.set()
        async with asyncio.timeout(SOON):
            assert await blocked == 7

    made_quick(pass_gate, 0)
    made_quick(other, 0)
    gate.clear()
    try:
        asyncio.run(together())
    finally:
        gate.set()
    assert pass_gate not in workers._quick


def test_calls_of_one_batch_may_wait_for_each_other() -> None:
    barriers: list[threading.Barrier | None] = [None]

    def meet() -> None:
        if barriers[0] is not None:
            barriers[0].wait(SOON)

    async def together() -> None:
        async with asyncio.timeout(SOON):
            await asyncio.gather(*(in_thread(meet) for _ in range(8)))

    made_quick(meet)
    barriers[0] = threading.Barrier(8)
    asyncio.run(together())


def test_a_call_that_was_given_up_leaves_the_way_free() -> None:
    pass_gate, gate, begun = gated()

    async def give_up() -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await in_thread(pass_gate, 1)
        assert begun.is_set()
        gate.set()
        async with asyncio.timeout(SOON):
            return int(await in_thread(pass_gate, 2))

    made_quick(pass_gate, 0)
    gate.clear()
    begun.clear()
    assert asyncio.run(give_up()) == 2


def test_errors_and_contexts_go_to_their_own_callers() -> None:
    name = contextvars.ContextVar("name", default="nobody")

    def speak(value: int) -> str:
        if value % 2:
            raise ValueError(f"{value} for {name.get()}")
        return f"{value} for {name.get()}"

    async def one(value: int) -> str:
        name.set(f"caller {value}")
        return str(await in_thread(speak, value))

    async def together() -> list[str | BaseException]:
        return await asyncio.gather(*(one(value) for value in range(20)), return_exceptions=True)

    made_quick(speak, 0)
    for value, said in enumerate(asyncio.run(together())):
        assert isinstance(said, ValueError if value % 2 else str)
        assert str(said) == f"{value} for caller {value}"


def test_stop_iteration_reaches_a_quick_caller_as_an_error() -> None:
    stopping = False

    def stop() -> None:
        if stopping:
            raise StopIteration(3)

    made_quick(stop)
    stopping = True
    with pytest.raises(RuntimeError, match=r"raised StopIteration\(3\)"):
        asyncio.run(call(stop))


def test_loops_in_several_threads_do_not_meet() -> None:
    def double(value: int) -> int:
        return 2 * value

    async def many(offset: int) -> list[int]:
        return [await in_thread(double, offset + value) for value in range(200)]

    made_quick(double, 0)
    found: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda i=i: found.update({i: asyncio.run(many(i))}))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {i: [2 * (i + value) for value in range(200)] for i in range(4)}


def test_a_loop_that_closes_meanwhile_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    pass_gate, gate, begun = gated()

    async def leave() -> None:
        waiting = asyncio.create_task(in_thread(pass_gate, 1))
        await asyncio.to_thread(begun.wait, SOON)
        waiting.cancel()

    made_quick(pass_gate, 0)
    gate.clear()
    begun.clear()
    asyncio.run(leave())
    gate.set()
    assert asyncio.run(in_thread(pass_gate, 2)) == 2
    assert errors == []


def test_every_call_of_a_batch_runs_once_whoever_scatters_it() -> None:
    ran: list[int] = []

    def note(value: int) -> int:
        ran.append(value)
        return value

    async def race() -> list[Any]:
        loop = asyncio.get_running_loop()
        jobs = [_Job(loop, note, (value,), {}) for value in range(300)]
        batch = _Batch(loop, jobs)
        worker = threading.Thread(target=batch.run)
        worker.start()
        batch.scatter()
        async with asyncio.timeout(60):
            return await asyncio.gather(*(job.future for job in jobs))

    assert asyncio.run(race()) == list(range(300))
    assert sorted(ran) == list(range(300))


def test_what_is_marked_instant_runs_in_place() -> None:
    @instant
    def where() -> int:
        return threading.get_ident()

    assert asyncio.run(call(where)) == threading.get_ident()
