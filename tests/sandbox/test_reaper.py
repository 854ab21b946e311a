"""Nothing outlives its run, and no run touches what may be another's."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.waiting import wait_until
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.hardening import DEFAULT_IMAGE, Profile
from vf.sandbox.container.opening import open_container
from vf.sandbox.container.reaper import GRACE, MARK, PREFIX, Owner, find, reap, start_of, this_host

HOLD = """
import asyncio
from vf.sandbox.container.opening import open_pool
from vf.sandbox.container.reaper import this_process
async def main():
    async with open_pool(size=1) as pool, pool.acquire() as sandbox:
        await pool.filled()
        hide = "trap '' TERM HUP; setsid sh -c 'trap \\"\\" TERM HUP; sleep 600' & sleep 600"
        asyncio.create_task(sandbox.exec(hide, timeout=900))
        await sandbox.bash("true")
        print(this_process().run, flush=True)
        while line := await asyncio.to_thread(input):
            print((await sandbox.python(line)).stdout, end="", flush=True)
asyncio.run(main())
"""
CREATE = """
import asyncio
from tests.waiting import wait_until
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.reaper import this_process
from vf.sandbox.container.docker_sandbox import DockerSandbox
async def again(engine):
    while True:
        await (await DockerSandbox.create(engine)).close()
async def main():
    engine = Engine.connect()
    print(this_process().run, flush=True)
    await asyncio.gather(*(again(engine) for _ in range(3)))
asyncio.run(main())
"""


@contextmanager
def client(code: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start another run; yield its process, and its name once it has one."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def of_run(engine: Engine, run: str) -> list[str]:
    return [item.name for item in asyncio.run(find(engine)) if item.run == run]


def wait_until_gone(engine: Engine, run: str) -> None:
    wait_until(lambda: not of_run(engine, run))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_containers_end_by_themselves_when_their_client_dies(
    engine: Engine, number: signal.Signals
) -> None:
    with client(HOLD) as (process, run):
        assert len(of_run(engine, run)) >= 2
        process.send_signal(number)
        wait_until_gone(engine, run)


@pytest.mark.parametrize("after", [0.0, 0.2])
def test_a_client_killed_while_it_creates_leaves_nothing_that_lasts(
    engine: Engine, after: float
) -> None:
    with client(CREATE) as (process, run):
        time.sleep(after)
        process.kill()
        process.wait()
        # Created and never started: that cannot end by itself. The rest does.
        wait_until(
            lambda: {i.state for i in asyncio.run(find(engine)) if i.run == run} <= {"created"}
        )

        def nothing_left() -> bool:
            asyncio.run(reap(engine))
            return not of_run(engine, run)

        # The engine may still be making one that the client requested.
        for _ in range(5):
            wait_until(nothing_left)
            time.sleep(0.1)
        assert of_run(engine, run) == []


def test_two_runs_whose_reapers_leave_each_other_alone(engine: Engine, profile: Profile) -> None:
    async def mine() -> str:
        async with open_container(profile) as sandbox:
            await reap(engine)
            return (await sandbox.python("6 * 7")).stdout

    with client(HOLD) as (process, run):
        assert process.stdin
        assert process.stdout
        with client(HOLD) as (other, second):
            assert asyncio.run(mine()) == "42\n"
            assert len(of_run(engine, run)) >= 2
            assert len(of_run(engine, second)) >= 2
            other.kill()
            wait_until_gone(engine, second)
        asyncio.run(reap(engine))
        process.stdin.write("'still ' + 'here'\n")
        process.stdin.flush()
        assert process.stdout.readline() == "'still here'\n"


@pytest.fixture
def plain(engine: Engine) -> Iterator[ExitStack]:
    """Removes what a test has made."""
    with ExitStack() as stack:
        yield stack


def container(
    engine: Engine, stack: ExitStack, labels: dict[str, str], *, running: bool = False
) -> str:
    """Make a container that nobody holds, and return its id."""
    made: str = engine.call_now(
        "create_container",
        DEFAULT_IMAGE,
        command=["sleep", "600"],
        labels=labels,
        host_config={"NetworkMode": "none"},
    )["Id"]
    stack.callback(lambda: asyncio.run(engine.remove(made)))
    if running:
        engine.call_now("start", made)
    return made


def there(engine: Engine, made: str) -> bool:
    return any(item["Id"] == made for item in engine.call_now("containers", all=True))


def gone_process() -> dict[str, str]:
    done = subprocess.Popen(["true"])
    done.wait()
    return Owner("gone", this_host(), done.pid, "1").labels(3600)


def test_the_dead_are_removed_in_every_state(engine: Engine, plain: ExitStack) -> None:
    dead = gone_process()
    living = Owner("living", this_host(), os.getpid(), start_of(os.getpid()) or "").labels(3600)
    made = {}
    # While they are made they look alive: other runs on this engine reap, too.
    for state in ("created", "running", "paused", "exited"):
        made[state] = container(engine, plain, living | {"test": state}, running=state != "created")
    engine.call_now("pause", made["paused"])
    engine.call_now("kill", made["exited"])
    asyncio.run(reap(engine))
    assert all(there(engine, one) for one in made.values())
    for state in ("created", "running"):
        one = container(engine, plain, dead, running=state == "running")
        asyncio.run(reap(engine))
        assert not there(engine, one)
    found = [item for item in asyncio.run(find(engine)) if item.run == "living"]
    assert {item.state for item in found} == {"created", "running", "paused", "exited"}
    # Whatever their state, they can be removed.
    for one in made.values():
        asyncio.run(engine.remove(one))
        assert not there(engine, one)


def test_what_is_not_provably_dead_stays(engine: Engine, plain: ExitStack) -> None:
    dead = gone_process()
    elsewhere = dead | {PREFIX + "host": "another machine"}
    kept = {
        "not ours": {key: value for key, value in dead.items() if key != MARK},
        "of another machine": elsewhere,
        "without an expiry": {k: v for k, v in dead.items() if k != PREFIX + "expires"},
        "with a broken pid": dead | {PREFIX + "pid": "?"},
    }
    made = {why: container(engine, plain, labels) for why, labels in kept.items()}
    long_ago = f"{time.time() - GRACE - 10:.0f}"
    late = container(engine, plain, elsewhere | {PREFIX + "expires": long_ago})
    asyncio.run(reap(engine))
    assert {why for why, one in made.items() if there(engine, one)} == set(kept)
    assert not there(engine, late)


def test_what_a_killed_run_had_its_helpers_in_is_removed_by_the_next(engine: Engine) -> None:
    """The kit, say, is collected by a container that is no sandbox."""
    helper = """
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.image import run_in
from vf.sandbox.container.hardening import DEFAULT_IMAGE
from vf.sandbox.container.reaper import this_process
print(this_process().run, flush=True)
run_in(Engine.connect(), DEFAULT_IMAGE, ["sleep", "600"], user="65534:65534")
"""
    with client(helper) as (process, run):

        def left() -> bool:
            return any(item.run == run for item in asyncio.run(find(engine)))

        wait_until(left)
        process.kill()
        process.wait()
        assert left()
        asyncio.run(reap(engine))
        assert not left()
