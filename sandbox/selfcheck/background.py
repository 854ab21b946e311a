"""Output while a program runs, and programs that run in the background."""

from __future__ import annotations

import asyncio
import os

from vf.sandbox.contract import Output, Process, Sandbox
from vf.sandbox.selfcheck.check import check, expect, refusal, require

SECONDS = f"987{os.getpid():07d}.5"  # identifies our sleepers
WHOLE = b"".join(b"%d\n" % number for number in range(1, 300_001))


async def sleepers(sandbox: Sandbox) -> int:
    """Return the number of living sleepers."""
    exactly = SECONDS.replace(".", "[.]")  # does not match the command line of this search
    command = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx '{exactly}'"
    return int((await sandbox.exec(command)).stdout)


async def line_of(process: Process) -> bytes:
    """Return the next piece of output."""
    async for piece in process:
        return piece.data
    return b""


@check("background", "what a program writes is seen while it runs, and is in the result")
async def seen(sandbox: Sandbox) -> None:
    pieces: list[Output] = []
    first = asyncio.Event()

    def see(piece: Output) -> None:
        pieces.append(piece)
        first.set()

    wait = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two >&2; seq 300000"
    call = asyncio.create_task(sandbox.exec(wait, timeout=60, max_output=1000, on_output=see))
    await asyncio.wait([call, asyncio.ensure_future(first.wait())], return_when="FIRST_COMPLETED")
    expect("whether the program has ended by its first output", False, call.done())
    expect("its first output", Output("stdout", b"one\n"), pieces[0])
    await sandbox.write_file("go", "")
    result = await call
    out = b"".join(piece.data for piece in pieces if piece.stream == "stdout")
    err = b"".join(piece.data for piece in pieces if piece.stream == "stderr")
    expect("all that was seen of stdout", b"one\n" + WHOLE, out)
    expect("all that was seen of stderr", b"two\n", err)
    require(result.stdout.startswith("one\n1\n"), "the head in the result", result.stdout)
    require(result.stdout.endswith("\n300000\n"), "the tail in the result", result.stdout)
    expect("truncated", True, result.truncated)


@check("background", "one reads what it is sent, and answers while it runs")
async def conversation(sandbox: Sandbox) -> None:
    process = await sandbox.start('while read x; do echo "got $x"; done; echo bye >&2; exit 3')
    pieces = aiter(process)
    for word in (b"one", b"two"):
        await process.write(word + b"\n")
        expect("the answer", Output("stdout", b"got " + word + b"\n"), await anext(pieces))
    with refusal(RuntimeError, "a second reader"):
        await anext(aiter(process))
    await process.end_input()
    await process.end_input()
    with refusal(BrokenPipeError, "input after its end"):
        await process.write(b"late")
    expect("what comes last", [Output("stderr", b"bye\n")], [piece async for piece in pieces])
    result = await process.wait(timeout=20)
    expect("the return code", 3, result.returncode)
    expect("the output that nobody read", ("", ""), (result.stdout, result.stderr))
    await process.kill()


@check("background", "the result has what nobody read")
async def unread(sandbox: Sandbox) -> None:
    process = await sandbox.start(["sh", "-c", "echo $A; pwd >&2; exit 4"], env={"A": "b"}, cwd="/")
    result = await process.wait(timeout=20)
    got = (result.stdout, result.stderr, result.returncode)
    expect("stdout, stderr and return code", ("b\n", "/\n", 4), got)
    result = await (await sandbox.start("seq 300000")).wait(timeout=60)
    require(result.stdout.endswith("\n300000\n"), "the tail of much output", result.stdout)
    process = await sandbox.start("echo ready; seq 300000")
    require((await line_of(process)).startswith(b"ready\n"), "the first line", "something else")
    await process.wait(timeout=60)


@check("background", "what nobody reads makes the program wait, and nothing is lost")
async def flow(sandbox: Sandbox) -> None:
    process = await sandbox.start("seq 300000; seq 300000; touch flowed")
    await asyncio.sleep(0.5)
    missing = (await sandbox.exec(["cat", "flowed"])).returncode
    require(missing, "a program that waits for its reader", "its end")
    out = b"".join([piece.data async for piece in process])
    expect("all that it wrote", 2 * WHOLE, out)
    expect("the return code", 0, (await process.wait(timeout=20)).returncode)


@check("background", "no such program is a result of 127, no such user is ValueError")
async def cannot_run(sandbox: Sandbox) -> None:
    process = await sandbox.start(["no-such-program-at-all"])
    expect("the return code", 127, (await process.wait(timeout=20)).returncode)
    with refusal(ValueError, "an unknown user"):
        await sandbox.start(["true"], user="no-such-user")


@check("background", "waiting has a timeout, which ends nothing")
async def waiting(sandbox: Sandbox) -> None:
    process = await sandbox.start(["sh", "-c", "read x; exit 5"])
    with refusal(TimeoutError, "a program that runs on"):
        await process.wait(timeout=0.2)
    await process.end_input()
    expect("the return code", 5, (await process.wait(timeout=20)).returncode)
    with refusal(BrokenPipeError, "input for a program that has ended"):
        await process.write(b"x")


@check("background", "a kill ends everything that it started")
async def kill(sandbox: Sandbox) -> None:
    process = await sandbox.start(f"(setsid sleep {SECONDS} &); echo ready; sleep {SECONDS}")
    expect("its first output", b"ready\n", await line_of(process))
    await process.kill()
    await process.kill()
    result = await process.wait(timeout=20)
    expect("the return code and timed_out", (137, False), (result.returncode, result.timed_out))
    expect("how many of its processes are left", 0, await sleepers(sandbox))
    # Its own end is not theirs.
    process = await sandbox.start(f"(setsid sleep {SECONDS} &); echo ready")
    expect("the return code", 0, (await process.wait(timeout=20)).returncode)
    await process.kill()
    expect("how many of its processes are left", 0, await sleepers(sandbox))


@check("background", "many run at the same time, beside other calls")
async def many(sandbox: Sandbox) -> None:
    processes = [await sandbox.start(["cat"]) for _ in range(8)]
    expect("stdout of exec", "other\n", (await sandbox.exec("echo other")).stdout)
    for number, process in enumerate(processes):
        await process.write(b"%d" % number)
        await process.end_input()
    results = await asyncio.gather(*(process.wait(timeout=20) for process in processes))
    expect("stdout of each", [str(n) for n in range(8)], [result.stdout for result in results])
