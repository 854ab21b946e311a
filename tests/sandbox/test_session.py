"""exec and the connection: what goes in and comes out, and what happens when an end is lost."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from importlib import resources
from typing import Any

import pytest

from tests.sandbox.local_box import inside, mark, running
from tests.waiting import Clock, until, wait_until
from vf.runtime.errors import SandboxError
from vf.sandbox.contract import ExecResult
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.session import Session

MIB = 2**20
MARK = mark(10)


def run(cmd: list[str] | str, **options: Any) -> ExecResult:
    async def body(box: UnsafeLocalSandbox) -> ExecResult:
        return await box.exec(cmd, **options)

    return inside(body)


def test_a_directory_that_is_not_there_is_a_result() -> None:
    result = run("true", cwd="nowhere")
    assert result.returncode == 126
    assert "nowhere: No such file or directory" in result.stderr


def test_a_character_that_the_cut_goes_through_is_left_out() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        for character, limit in itertools.product("ü世🦀", range(100, 108)):
            await box.write_file("text", character * 1000)
            result = await box.exec(["cat", "text"], max_output=limit)
            head, middle, tail = result.stdout.split("\n")
            assert set(head + tail) == {character}
            kept = len((head + tail).encode())
            missing = 1000 * len(character.encode()) - kept
            assert middle == f"[... {missing} bytes are missing ...]"
            assert limit - 8 < kept <= limit

    inside(body)


def test_what_cannot_be_sent_is_a_result() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        words = ["echo", *["x" * MIB] * 33]
        process = await box.start(words)
        for result in (await box.exec(words), await process.wait()):
            assert result.returncode == 126
            assert "Argument list too long" in result.stderr
        with pytest.raises(BrokenPipeError):
            await process.write(b"x")
        await process.kill()
        with pytest.raises(FileNotFoundError, match="name"):
            await box.read_file("x" * 33 * MIB)

    inside(body)


def test_extreme_arguments_are_errors_except_a_timeout_of_a_year() -> None:
    bad: list[dict[str, Any]] = [
        {"timeout": float("inf")},
        {"max_output": 64 * MIB + 1},
        {"user": "4294967295"},
        {"user": "9" * 5000},
    ]

    async def body(box: UnsafeLocalSandbox) -> str:
        for options in bad:
            with pytest.raises(ValueError, match=r"must be|there is no user"):
                await box.exec("true", **options)
        return (await box.exec("echo fine", timeout=3e7)).stdout

    assert inside(body) == "fine\n"


def test_a_cancelled_call_is_killed_inside() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        call = asyncio.create_task(box.exec(f"(setsid sleep {MARK} &); sleep {MARK}"))
        await until(lambda: len(running(f"sleep\0{MARK}")) == 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: not running(f"sleep\0{MARK}"))
        assert (await box.exec("echo fine")).stdout == "fine\n"

    inside(body)


def test_a_supervisor_that_dies_is_the_result_of_all_that_ran_and_wait() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        assert box._process is not None
        calls = [asyncio.create_task(box.exec(f"sleep {MARK}")) for _ in range(3)]
        await until(lambda: len(running(f"sleep\0{MARK}")) == 3)
        os.kill(box._process.pid, signal.SIGKILL)
        for outcome in await asyncio.gather(*calls):
            assert (outcome.ended, outcome.returncode, outcome.ok) == (True, 137, False)
            assert "supervisor ended: exit code -9" in outcome.stderr
        assert (await box.exec("true")).ended
        assert (await box.python("1")).ended
        with pytest.raises(FileNotFoundError, match="ended through what ran in it"):
            await box.read_file("f")
        with pytest.raises(OSError, match="ended through what ran in it"):
            await box.write_file("f", "x")
        assert not box.alive
        # The keepers saw to what ran.
        await until(lambda: not running(f"sleep\0{MARK}"))

    inside(body)


def test_a_supervisor_that_hangs_is_a_lost_sandbox() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        assert box._process is not None
        assert box._session is not None
        box._session._grace = 0.3
        os.kill(box._process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(SandboxError, match="did not answer 'exec' within"):
                await asyncio.wait_for(box._session.exec("true", timeout=0.1), 60)
        finally:
            os.kill(box._process.pid, signal.SIGCONT)

    inside(body)


@pytest.mark.slow
def test_a_supervisor_ends_when_its_client_gives_no_sign_of_life() -> None:
    async def body() -> None:
        source = (resources.files("vf.sandbox") / "supervisor.py").read_text("utf-8")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", source),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin
        assert process.stdout
        session = Session(process.stdout, process.stdin, silence=1.0)
        try:
            await session.begin()
            await session.exec("sleep 1.5")  # quiet, but its signs of life arrive
            # A client that holds the connection, and is not there.
            wait_until(lambda: process.pid not in running("vf.sandbox.inside.main"))
            with pytest.raises(SandboxError, match="no sign of life for 1 s"):
                await session.exec("true")
        finally:
            await session.close()
            process.stdin.close()
            assert await asyncio.wait_for(process.wait(), 60) == 0

    asyncio.run(body())


def test_an_answer_that_lay_unread_is_read(clock: Clock) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        assert box._root is not None
        done = box._root / "work" / "done"
        call = asyncio.create_task(box.exec("echo here; touch done", timeout=60))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        wait_until(done.exists)  # this loop is held up meanwhile
        clock.jump(1000.0)  # longer than the call may take
        assert (await call).stdout == "here\n"

    inside(body)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("print('Traceback: something')", "broke the protocol: no frame begins"),
        ("", "its supervisor ended"),
        ("import signal; signal.pause()", "did not answer 'hello'"),
        (
            "import sys; sys.stdout.buffer.write(bytes(3) + b'\\2' + bytes(4) + b'{}'); "
            "sys.stdout.flush(); import signal; signal.pause()",
            "broke the protocol: 'id'",
        ),
    ],
)
def test_what_is_no_supervisor_is_found_out(says: str, why: str) -> None:
    async def body() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            says,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin
        assert process.stdout
        session = Session(process.stdout, process.stdin, name="it")
        try:
            with pytest.raises(SandboxError, match=why):
                await session.begin(timeout=5 if "answer" not in why else 0.5)
            assert session.lost
        finally:
            await session.close()
            if process.returncode is None:
                process.kill()
            await process.wait()

    asyncio.run(body())
