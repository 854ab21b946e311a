"""When the time is over, everything is dead, however it hides; what it said is kept."""

from __future__ import annotations

import asyncio

from tests.sandbox.local_box import inside, mark, running
from tests.waiting import until
from vf.sandbox.contract import ExecResult
from vf.sandbox.local import UnsafeLocalSandbox

MARK = mark(30)

HIDING = {
    "a child": "sleep MARK",
    "a background job": "sleep MARK & sleep MARK",
    "setsid": "setsid sleep MARK & sleep MARK",
    "a double fork": "(setsid sh -c '(setsid sleep MARK &) &' &); sleep MARK",
    "ignored signals": "trap '' TERM INT HUP QUIT; sleep MARK; sleep MARK",
    "stopped": "sleep MARK & kill -STOP $!; kill -STOP $$",
    "closed streams": "exec <&- >&- 2>&-; sleep MARK",
    "full stdout": "yes MARK",
    "full stderr": "yes MARK >&2",
    "no newline": "head -c 100000000 /dev/zero; sleep MARK",
    "a pipeline": "yes MARK | (sleep MARK; cat)",
    "one that starts another": "while :; do (setsid sleep MARK &); sleep 0.01; done",
    "a hundred": "for i in $(seq 100); do sleep MARK & done; wait",
}


def run(cmd: list[str] | str, timeout: float = 0.7) -> ExecResult:
    """Run a command that takes too long; check that nothing of it is left when it answers."""

    async def body(box: UnsafeLocalSandbox) -> ExecResult:
        result = await box.exec(cmd, timeout=timeout)
        assert running(MARK) == []
        assert (await box.exec("echo fine")).stdout == "fine\n"
        return result

    return inside(body)


def test_nothing_survives_however_it_hides() -> None:
    marks = {how: mark(60 + number) for number, how in enumerate(HIDING)}
    left: list[int] = []

    async def body(box: UnsafeLocalSandbox) -> None:
        async def hide(how: str) -> ExecResult:
            result = await box.exec(HIDING[how].replace("MARK", marks[how]), timeout=1.0)
            left.extend(running(marks[how]))
            return result

        for result in await asyncio.gather(*map(hide, HIDING)):
            assert (result.timed_out, result.returncode, result.ok) == (True, 137, False)
            assert result.oom_killed is False
            assert result.duration >= 1.0

    inside(body)
    assert left == []


def test_orphans_and_zombies_are_buried() -> None:
    zombies = f"""
import os, time
for _ in range(50):
    if os.fork() == 0:
        os._exit(0)
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "{MARK}"])
        os._exit(0)
time.sleep(3600)
"""
    assert run(["python3", "-c", zombies], timeout=1.0).timed_out


def test_a_program_that_ends_in_time_may_leave_something_until_the_end() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        result = await box.exec(f"setsid sleep {MARK} & echo left")
        assert result.stdout == "left\n"
        await until(lambda: len(running(f"sleep\0{MARK}")) == 1)

    inside(body)
    assert running(f"sleep\0{MARK}") == []


def test_a_timeout_of_one_is_not_that_of_another() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        long = asyncio.create_task(
            box.exec("until [ -e over ]; do sleep 0.01; done; echo whole", timeout=60)
        )
        short = await asyncio.gather(*(box.exec("sleep 60", timeout=0.3) for _ in range(8)))
        assert all(result.timed_out for result in short)
        await box.write_file("over", "")
        assert (await long).stdout == "whole\n"

    inside(body)


def test_a_timeout_too_short_to_start_in() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        for call in (box.exec, box.python, box.bash):
            result = await call("1 # " + "x" * 10, timeout=1e-6)
            assert result.timed_out or result.returncode in (0, 127)
        assert (await box.exec("echo fine")).stdout == "fine\n"
        assert (await box.python("2")).stdout == "2\n"
        assert (await box.bash("echo fine")).stdout == "fine\n"

    inside(body)


def test_timeouts_one_after_the_other_wear_nothing_out() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        for _ in range(5):
            assert (await box.exec("sleep 60", timeout=0.02)).timed_out
            assert (await box.python("import time; time.sleep(60)", timeout=0.05)).timed_out
            assert (await box.bash("sleep 60", timeout=0.02)).timed_out
        assert (await box.python("6 * 7")).stdout == "42\n"
        assert (await box.bash("echo fine")).stdout == "fine\n"

    inside(body)
