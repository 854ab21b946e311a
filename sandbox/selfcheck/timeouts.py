"""Timeouts: they come when they should, only then, and leave nothing running.

A process that still runs keeps appending to a file, so that no view of the backend's processes is
needed.
"""

from __future__ import annotations

import asyncio

from vf.sandbox.contract import ExecResult, Sandbox
from vf.sandbox.selfcheck.check import Broken, check, expect, refusal, require

BEAT = "while :; do echo x >> {}; sleep 0.05; done"
STILL = 0.6  # seconds in which a living process would have written
SOON = 20.0  # seconds that a backend may take to kill, on a busy machine


def timed_out(result: ExecResult, timeout: float) -> None:
    """Expect a result that was stopped in time."""
    expect("timed_out", True, result.timed_out)
    expect("ok", False, result.ok)
    expect("oom_killed", False, result.oom_killed)
    took = result.duration
    require(timeout * 0.9 <= took < timeout + SOON, f"duration of about {timeout} s", took)


async def expect_dead(sandbox: Sandbox, path: str) -> None:
    """Expect that something wrote the file, and that it does so no more."""
    try:
        before = len(await sandbox.read_file(path))
    except FileNotFoundError:
        raise Broken("a process that ran until the timeout", f"no file {path!r}") from None
    await asyncio.sleep(STILL)
    after = len(await sandbox.read_file(path))
    if after != before:
        raise Broken("a process that is dead after the timeout", "it runs on")


@check("timeouts", "one that is over is a result, with the output so far")
async def over(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo before; echo too >&2; sleep 30; echo after", timeout=0.7)
    timed_out(result, 0.7)
    expect("stdout and stderr so far", ("before\n", "too\n"), (result.stdout, result.stderr))


@check("timeouts", "a quick death by a signal is none")
async def quick_death(sandbox: Sandbox) -> None:
    for name, number in (("KILL", 9), ("TERM", 15), ("SEGV", 11), ("INT", 2)):
        result = await sandbox.exec(f"kill -{name} $$; sleep 30", timeout=20)
        expect(f"the return code after SIG{name}", 128 + number, result.returncode)
        expect(f"timed_out after SIG{name}", False, result.timed_out)
        expect(f"oom_killed after SIG{name}", False, result.oom_killed)


@check("timeouts", "a program that ends in time is not touched")
async def in_time(sandbox: Sandbox) -> None:
    result = await sandbox.exec("sleep 0.3; echo done", timeout=20)
    expect("stdout", "done\n", result.stdout)
    expect("timed_out", False, result.timed_out)


@check("timeouts", "the process is killed")
async def kills(sandbox: Sandbox) -> None:
    timed_out(await sandbox.exec(BEAT.format("beat-1"), timeout=1), 1)
    await expect_dead(sandbox, "beat-1")


@check("timeouts", "its children are killed")
async def kills_children(sandbox: Sandbox) -> None:
    line = f"({BEAT.format('beat-2')}) & (sh -c '{BEAT.format('beat-3')}' &) ; wait; sleep 30"
    timed_out(await sandbox.exec(line, timeout=1), 1)
    await expect_dead(sandbox, "beat-2")
    await expect_dead(sandbox, "beat-3")


@check("timeouts", "a program that ignores SIGTERM and SIGINT is killed")
async def kills_the_stubborn(sandbox: Sandbox) -> None:
    line = f"trap '' TERM INT HUP QUIT; {BEAT.format('beat-4')}"
    timed_out(await sandbox.exec(line, timeout=1), 1)
    await expect_dead(sandbox, "beat-4")


@check("timeouts", "everything works afterwards")
async def afterwards(sandbox: Sandbox) -> None:
    await sandbox.exec("sleep 30", timeout=0.3)
    expect("stdout", "alive\n", (await sandbox.exec("echo alive")).stdout)
    expect("the echo", "2\n", (await sandbox.python("1 + 1")).stdout)


@check("timeouts", "one of 0 or less is ValueError")
async def bad(sandbox: Sandbox) -> None:
    for timeout in (0.0, -1.0, float("nan")):
        with refusal(ValueError, f"timeout={timeout}"):
            await sandbox.exec(["true"], timeout=timeout)
    with refusal(ValueError, "timeout=0 of python"):
        await sandbox.python("1", timeout=0)
    with refusal(ValueError, "timeout=0 of bash"):
        await sandbox.bash("true", timeout=0)


@check("timeouts", "Python is interrupted, and keeps its state if it lets itself be")
async def python(sandbox: Sandbox) -> None:
    await sandbox.python("kept = 41")
    timed_out(await sandbox.python("print('begun', flush=True)\nwhile True: pass", timeout=1), 1)
    expect("the state", "42\n", (await sandbox.python("kept + 1")).stdout)


@check("timeouts", "Python that does not stop is killed, and the loss of its state is said")
async def stubborn_python(sandbox: Sandbox) -> None:
    await sandbox.python("gone = 1")
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    result = await sandbox.python(code, timeout=0.5)
    timed_out(result, 0.5)
    require("lost" in result.stderr, "a word on stderr that the state was lost", result.stderr)
    result = await sandbox.python("gone")
    require("NameError" in result.stderr, "NameError for what is gone", result)
    expect("the echo afterwards", "2\n", (await sandbox.python("1 + 1")).stdout)


@check("timeouts", "what bash waits for is killed, and it works afterwards")
async def bash(sandbox: Sandbox) -> None:
    timed_out(await sandbox.bash(BEAT.format("beat-5"), timeout=1), 1)
    await expect_dead(sandbox, "beat-5")
    expect("stdout afterwards", "alive\n", (await sandbox.bash("echo alive")).stdout)
