"""Nobody goes unscored by choice: whatever code does to its sandbox is a result."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import Any

import pytest

import vf
from tests.waiting import until
from vf.environments.bundled.math_python import MathPython
from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox

from .conftest import AS_ROOT_TOO, MIB, PROFILE, Arena, processes_of
from .voids import LOWER, VOIDS

SMALL = {"backend": "docker", "pool": 2, "memory": 256 * MIB, "workspace": 64 * MIB, "tmp": MIB}
SMALL |= {"pids": 64, "lifetime": 300}


@pytest.mark.parametrize("name", VOIDS)
@AS_ROOT_TOO
def test_it_comes_to_a_result_and_so_does_what_follows(arena: Arena, name: str) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.python(VOIDS[name], timeout=2)
        assert not result.ok
        calls = (sandbox.exec("true"), sandbox.python("1"), sandbox.bash("true", timeout=5))
        for call in calls:
            result = await call  # perhaps of a loss: but a result
        await sandbox.exec("rm -f /tmp/full /workspace/full /dev/shm/full")
        # Killed processes count until their parent, the interpreter, has buried them or ended.
        await sandbox.python("import os; os._exit(0)")
        await until(lambda: result.ended or len(arena.processes()) < 20)
        if result.ended:  # as where the kernel has no Landlock
            await sandbox.close()

    arena.attack(attack, may_end=True)


def test_no_process_can_put_the_supervisor_before_itself(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        show = LOWER + "print(open('/proc/self/oom_score_adj').read())"
        scores = [(await sandbox.exec(["python3", "-c", show])).stdout.strip()]
        scores.append((await sandbox.python(show)).stdout.strip())
        assert scores == ["1000", "1000"]
        ours = (await sandbox.exec("cat /proc/1/oom_score_adj")).stdout.strip()
        assert ours == "500"
        # Nothing else is lost by that: files move, and descriptors are opened again by their path.
        line = "mkdir -p a b; echo x > a/f; mv a/f b/g; ln b/g a/h; echo y > /dev/stdout; cat a/h"
        assert (await sandbox.bash(line)).stdout == "y\nx\n"

    arena.attack(attack)


@pytest.mark.slow
def test_twelve_tasks_of_which_three_are_known_earn_a_quarter(containers: None) -> None:
    """Each of the nine others is voided, if it can be, in another way."""
    ways = iter(list(VOIDS.values())[1:])
    chosen: dict[str, str] = {}

    def policy(messages: list[vf.Message]) -> Any:
        prompt = messages[1].content
        task = by_prompt[prompt]
        if len(messages) > 2:
            return "I do not know."
        if task in known:
            return f"Answer: {task.answer}"
        chosen[prompt] = next(ways)
        return {"python": {"code": chosen[prompt]}}

    env = MathPython(sandbox=SMALL, num_eval=12, python_timeout=2)
    tasks = list(env.tasks("eval"))
    by_prompt = {str(task.prompt): task for task in tasks}
    known = tasks[:3]
    evaluation = asyncio.run(vf.evaluate(env, vf.ScriptedModel(policy), max_concurrent=2))
    assert [trace.error for trace in evaluation.traces] == [None] * 12
    assert len(chosen) == 9
    assert evaluation.mean_reward == 0.25


def test_a_supervisor_that_is_killed_without_a_trace_was_killed_by_the_code(engine: Engine) -> None:
    async def run() -> None:
        async with await DockerSandbox.create(engine, PROFILE) as sandbox:
            waiting = asyncio.create_task(sandbox.exec("touch begun; sleep infinity"))
            await sandbox.exec("until [ -e begun ]; do sleep 0.01; done")
            await kill_supervisor(engine, sandbox.name)
            result = await waiting
            assert (result.ended, result.returncode, result.ok) == (True, 137, False)
            assert "ended through what ran in it" in result.stderr
            assert (await sandbox.python("1")).ended
            with pytest.raises(FileNotFoundError):
                await sandbox.read_file("begun")
            with pytest.raises(OSError, match="ended through what ran in it"):
                await sandbox.write_file("f", "x")

    asyncio.run(run())


def test_one_that_is_killed_before_any_code_ran_is_a_failure(engine: Engine) -> None:
    async def run() -> None:
        async with await DockerSandbox.create(engine, PROFILE, warm=True) as sandbox:
            await sandbox.write_file("a", "x")
            await kill_supervisor(engine, sandbox.name)
            await until(lambda: not sandbox.alive)
            with pytest.raises(SandboxError, match="supervisor ended"):
                await sandbox.exec("true")

    asyncio.run(run())


@pytest.mark.parametrize("how", ["kill", "pause", "remove_container"])
def test_what_the_engine_was_told_to_do_is_a_failure(engine: Engine, how: str) -> None:
    async def run() -> None:
        async with await DockerSandbox.create(engine, PROFILE) as sandbox:
            assert sandbox._session is not None
            sandbox._session._grace = 1.0
            waiting = asyncio.create_task(sandbox.exec("touch begun; sleep infinity", timeout=2))
            await sandbox.exec("until [ -e begun ]; do sleep 0.01; done")
            options = {"force": True} if how == "remove_container" else {}
            await engine.call(how, sandbox.name, **options)
            with pytest.raises(SandboxError, match="through the engine"):
                await waiting
            with pytest.raises(SandboxError, match="through the engine"):
                await sandbox.write_file("f", "x")

    asyncio.run(run())


def test_a_stream_that_breaks_on_the_way_is_a_failure(engine: Engine) -> None:
    async def run() -> None:
        async with await DockerSandbox.create(engine, PROFILE) as sandbox:
            assert (await sandbox.exec("echo ran")).ok
            held = sandbox._stream.writer.get_extra_info("socket")
            with socket.socket(fileno=os.dup(held.fileno())) as copy:
                copy.shutdown(socket.SHUT_RDWR)
            with pytest.raises(SandboxError, match="broke on the way"):
                await sandbox.exec("true")

    asyncio.run(run())


async def kill_supervisor(engine: Engine, name: str) -> None:
    """Kill it from outside, without the engine's knowledge, as a kernel short of memory does."""
    if os.getuid() != 0:
        pytest.skip("only root may kill it")
    container = (await engine.call("inspect_container", name))["Id"]
    (pid,) = [pid for pid in processes_of(container) if is_first(pid)]
    os.kill(pid, signal.SIGKILL)


def is_first(pid: int) -> bool:
    """Return whether it is its container's PID 1, which the supervisor is."""
    with (
        contextlib.suppress(FileNotFoundError, ProcessLookupError),  # it has ended meanwhile
        open(f"/proc/{pid}/status", encoding="utf-8") as file,
    ):
        return any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in file)
    return False
