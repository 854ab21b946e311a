"""Programs in the background, and output while a program runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.sandbox.local_box import inside, mark, running
from tests.waiting import until
from vf.runtime.errors import SandboxError
from vf.sandbox.contract import Output, Process
from vf.sandbox.frames import OUTPUT_WINDOW, FrameError
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.process import SessionProcess
from vf.sandbox.session_sandbox import SandboxProcess

MARK = mark(30)
SLEEP = f"sleep\0{MARK}"


async def read(process: Process) -> dict[str, bytes]:
    found = {"stdout": b"", "stderr": b""}
    async for piece in process:
        found[piece.stream] += piece.data
    return found


def test_what_on_output_raises_ends_the_program_and_is_raised() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        def refuse(piece: Output) -> None:
            raise LookupError("enough")

        with pytest.raises(LookupError, match="enough"):
            await box.exec(f"yes & sleep {MARK}", on_output=refuse)
        await until(lambda: not running(SLEEP))
        assert (await box.exec("echo fine")).stdout == "fine\n"

    inside(body)


def test_a_timeout_ends_a_program_that_is_watched() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        seen: list[Output] = []
        result = await box.exec(f"echo a; sleep {MARK}", timeout=0.3, on_output=seen.append)
        assert result.timed_out
        assert result.stdout == "a\n"
        assert seen == [Output("stdout", b"a\n")]

    inside(body)


def test_much_input_is_taken_at_the_program_s_pace() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        process = await box.start("sleep 1000")
        writing = asyncio.create_task(process.write(b"x" * 2_000_000))
        with pytest.raises(TimeoutError):
            await process.wait(timeout=0.1)
        assert not writing.done()
        writing.cancel()
        await process.kill()
        with pytest.raises(asyncio.CancelledError):
            await writing

        process = await box.start("head -c 1000000 | wc -c; exec <&-; sleep 0.2")
        with pytest.raises(BrokenPipeError):
            await process.write(b"x" * 2_000_000)
        assert (await process.wait()).stdout == "1000000\n"

    inside(body)


def test_what_was_written_before_anybody_waited_is_kept() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        process = await box.start("echo early; kill -9 $$")
        assert isinstance(process, SandboxProcess)
        await until(lambda: process._process.ended)
        result = await process.wait()
        assert (result.stdout, result.returncode) == ("early\n", 137)
        assert await process.wait() == result

    inside(body)


def test_a_start_that_is_refused_leaves_no_call() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        with pytest.raises(ValueError, match="no-such-user"):
            await box.start("id", user="no-such-user")
        assert box._session is not None
        assert (await box._session.stats())["calls"] == 0

    inside(body)


def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        start = asyncio.create_task(box.start(f"sleep {MARK}"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await box.exec("true")
        await until(lambda: not running(SLEEP))

    inside(body)


def test_closing_the_sandbox_ends_it_and_is_reported() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        ended = await box.start("echo early")
        early = await ended.wait()
        process = await box.start(f"echo begun; sleep {MARK}")
        waiting = asyncio.create_task(process.wait())
        await until(lambda: running(SLEEP))
        await box.close()
        with pytest.raises(SandboxError, match="closed"):
            await waiting
        with pytest.raises(SandboxError, match="closed"):
            await read(process)
        with pytest.raises(SandboxError, match="closed"):
            await process.write(b"x")
        await process.kill()
        assert running(SLEEP) == []
        assert await ended.wait() == early
        with pytest.raises(SandboxError, match="closed"):
            await box.start("true")

    inside(body)


def test_what_ends_the_sandbox_ends_it_and_is_its_result() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        assert box._process is not None
        ended = await box.start("echo early")
        early = await ended.wait()
        process, other = await box.start(f"echo begun; sleep {MARK}"), await box.start("cat")
        reading = asyncio.create_task(read(other))
        await until(lambda: running(SLEEP))
        os.kill(box._process.pid, signal.SIGKILL)
        result = await process.wait()
        assert (result.ended, result.returncode, result.ok) == (True, 137, False)
        assert "ended through what ran in it" in result.stderr
        assert await reading == {"stdout": b"", "stderr": b""}
        with pytest.raises(BrokenPipeError, match="ended through what ran in it"):
            await other.write(b"x")
        await process.kill()
        assert await ended.wait() == early
        with pytest.raises(OSError, match="ended through what ran in it"):
            await box.start("true")
        with pytest.raises(FileNotFoundError, match="ended through what ran in it"):
            await box.download(".", "/nowhere")
        await until(lambda: not running(SLEEP))

    inside(body)


def test_a_supervisor_that_hangs_is_found_out_while_a_program_runs() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        assert box._process is not None
        assert box._session is not None
        box._session._grace, box._session._silence = 0.2, 1.0
        process = await box.start(f"sleep {MARK}")
        beat = asyncio.create_task(box._session._beat())
        os.kill(box._process.pid, signal.SIGSTOP)
        try:
            assert "did not answer 'ping'" in (await asyncio.wait_for(process.wait(), 60)).stderr
        finally:
            os.kill(box._process.pid, signal.SIGCONT)
            beat.cancel()

    inside(body)


def test_small_pieces_take_no_more_memory_than_large_ones_and_no_more_come_than_may() -> None:
    sent: list[int] = []

    async def body() -> None:
        async def kill() -> None:
            return

        process = SessionProcess(lambda **header: sent.append(header["took"]), kill)
        for _ in range(OUTPUT_WINDOW):
            process.take({"out": 1}, [b"x"])
        with pytest.raises(FrameError, match="more than was asked for"):
            process.take({"out": 1}, [b"x"])
        piece = await anext(aiter(process))
        assert len(piece.data) == OUTPUT_WINDOW + 1
        assert sent == [OUTPUT_WINDOW + 1]
        with pytest.raises(FrameError, match="no output"):
            process.take({"out": 3}, [b"x"])

    asyncio.run(body())


def test_output_that_comes_with_the_end_is_of_its_own_stream() -> None:
    async def body() -> list[Output]:
        async def kill() -> None:
            return

        process = SessionProcess(lambda **header: None, kill)
        process.take({"out": 1}, [b"a"])
        process.take({"done": True, "returncode": 0}, [b"b", b"c", b"d", b"e"])
        return [piece async for piece in process]

    assert asyncio.run(body()) == [Output("stdout", b"abc"), Output("stderr", b"de")]


@pytest.mark.slow
def test_a_flood_holds_up_no_other_call() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        flood = await box.start("yes")
        reading = asyncio.create_task(read(flood))
        watched = asyncio.create_task(box.exec("yes", timeout=2, on_output=lambda piece: None))
        for number in range(20):
            assert (await box.exec(f"echo {number}")).stdout == f"{number}\n"
        assert not reading.done()
        assert (await watched).timed_out
        await flood.kill()
        await reading

    inside(body)


def test_an_order_that_a_waiting_process_did_not_live_to_take_is_the_next_one_s() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        assert box._process is not None
        await box.exec("true")
        # The processes that wait below the keepers, as the kernel kills them for memory.
        for keeper in children(box._process.pid):
            for waiting in children(keeper):
                os.kill(waiting, signal.SIGKILL)
        results = await asyncio.gather(*(box.exec(f"echo {number}") for number in range(4)))
        assert [result.stdout for result in results] == ["0\n", "1\n", "2\n", "3\n"]

    inside(body)


def test_what_one_program_leaves_behind_is_not_the_next_one_s() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        for number in range(8):
            await box.exec(f"(setsid sleep {MARK} &); cd /; umask 0; ulimit -n 5; exit {number}")
            result = await box.exec("umask; ulimit -n; basename $PWD; ls /proc/self/fd | wc -l")
            mask, files, place, descriptors = result.stdout.split()
            assert (mask, files != "5", place, descriptors) == ("0022", True, "work", "4")
        await until(lambda: len(running(SLEEP)) == 8)
        slow = asyncio.create_task(box.exec(f"sleep {MARK}", timeout=0.3))
        assert (await box.exec("echo fine")).stdout == "fine\n"
        assert (await slow).timed_out
        await until(lambda: len(running(SLEEP)) == 8)  # the timeout was the other program's

    inside(body)


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found
