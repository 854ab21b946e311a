"""v1 tasks that run commands in a runtime: here it is a sandbox, never this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import vf
from tests.late import Late
from vf.bridges.verifiers.from_verifiers import from_verifiers
from vf.runtime.calling import call
from vf.runtime.errors import RubricError, SandboxError
from vf.sandbox.contract import ExecResult
from vf.sandbox.hosting.source import Sandboxes

Late("verifiers.v1")  # skips these tests without it
pytestmark = pytest.mark.usefixtures("their_envs")
ENDED = ExecResult(137, stderr="the sandbox has ended", ended=True)


async def check(environment: vf.Environment) -> None:
    await call(environment.check)


def play(reply: str, sandbox: Sandboxes) -> vf.Trace:
    environment = from_verifiers("their-golf", sandbox=sandbox)
    task = next(iter(environment.tasks("train")))
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel([reply])))


@pytest.mark.bubblewrap
def test_what_the_model_wrote_runs_in_the_sandbox(tmp_path: Path) -> None:
    host = tmp_path / "host.txt"
    host.touch()
    program = (
        f"import os; print(0 if os.path.exists({str(host)!r}) else open('data/number.txt').read())"
    )
    trace = play(f"```python\n{program}\n```", "bubblewrap")
    assert trace.error is None
    assert trace.score is not None
    assert trace.score.parts == {"correct": 1.0}
    assert trace.score.metrics["greeted"] == 1.0  # variables of the task's and of the command's
    assert trace.score.metrics["capped"] == 1.0
    assert trace.info["sandbox"] == "bubblewrap"


def scripted(*results: str | ExecResult | Exception) -> Sandboxes:
    """Return sandboxes in which nothing runs, and whose files are gone once they have ended."""

    class Ending(vf.ScriptedSandbox):
        over = False

        async def exec(self, *args: object, **options: object) -> ExecResult:
            done: ExecResult = await super().exec(*args, **options)  # type: ignore[arg-type]
            self.over = done.ended
            return done

        async def read_file(self, path: str, *, max_bytes: int = 50 * 2**20) -> bytes:
            if self.over:
                raise FileNotFoundError(path)
            return await super().read_file(path, max_bytes=max_bytes)

    @asynccontextmanager
    async def opened() -> AsyncIterator[vf.Sandbox]:
        yield Ending(start=[""], exec=["hello you\n/workspace\n", *results])

    return opened


def test_a_program_that_fails_or_is_killed_is_wrong_and_no_failure() -> None:
    for result in (ExecResult(1), ExecResult(124, "42", timed_out=True)):
        trace = play("```python\n1\n```", scripted(result))
        assert trace.error is None
        assert trace.reward == 0.0


def test_a_program_cannot_avoid_a_score_by_ending_the_sandbox() -> None:
    trace = play("```python\n1\n```", scripted(ENDED, ENDED))
    assert trace.error is None
    assert trace.reward == 0.0
    assert trace.score is not None
    assert trace.score.metrics["sandbox_ended"] == 1.0


def test_a_sandbox_that_is_lost_is_a_failure_and_not_a_score() -> None:
    trace = play("```python\n1\n```", scripted(SandboxError("the host is gone")))
    assert trace.reward is None
    assert trace.error is not None
    assert trace.error.boundary == "sandbox"


def test_a_saved_trace_is_not_scored_without_the_runtime() -> None:
    trace = play("```python\n1\n```", scripted(ExecResult(1)))
    environment = from_verifiers("their-golf", sandbox=scripted())
    with pytest.raises(RubricError, match="live rollout"):
        asyncio.run(environment.rubric.score(trace))


def test_a_runs_check_finds_that_no_sandbox_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    environment = from_verifiers("their-golf", sandbox="docker")
    with pytest.raises(vf.ConfigError, match=r"nonexistent\.sock"):
        asyncio.run(check(environment))
