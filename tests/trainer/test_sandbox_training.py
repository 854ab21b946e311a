"""Training in an environment whose episodes each have a container."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.trainer.conftest import TrainerFactory, VfRl
from vf.environments.environment import Split
from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.reaper import find
from vf.sandbox.hosting.source import sandbox_source
from vf.tools.episode_sandbox import EpisodeSandbox
from vf.traces.trace import Failure
from vf.trainer.run.group import Group
from vf.trainer.watching.metrics import rollout_metrics

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[2] / "configs" / "code-contest.toml"
TINY = [
    *("model=tiny", "env.args.visible=1", "bf16=false", "max_tokens=24"),
    *("max_prompt_len=900", "max_seq_len=1000", "micro_batch_tokens=4096"),
    *("env.args.sandbox.pool=1", "env.args.sandbox.concurrency=1"),
]


class Counted(vf.Environment):
    """Reply with digits; a program in a container counts them."""

    max_turns = 1

    def __init__(self) -> None:
        self.source = sandbox_source({"backend": "docker", "pool": 4, "lifetime": 300})
        self.tools = [vf.PythonTool(self.source)]
        self.rubric = vf.Rubric(outcome=lambda trace: trace.info["share"])

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(4):
            yield vf.Task(f"{split}-{index}", f"Say {index}.")

    async def step(self, reply: vf.Message) -> vf.Step:
        async with EpisodeSandbox.of(self, self.source).fresh() as sandbox:
            result = await sandbox.exec(["tr", "-dc", "0-9"], input=reply.content)
        assert result.ok
        share = len(result.stdout) / max(1, len(reply.content))
        return vf.Step(terminated=True, info={"share": share})


vf.register("test-counted", Counted)


def ours(engine: Engine) -> set[str]:
    return {item.name for item in asyncio.run(find(engine)) if item.mine}


@pytest.mark.gate
def test_a_step_of_training_in_containers(engine: Engine, make_trainer: TrainerFactory) -> None:
    trainer = make_trainer(env="test-counted", batch_size=8, rollouts_per_example=4)
    metrics = trainer.step()
    assert metrics["rollouts/scored"] == 8
    assert metrics["rollouts/failed"] == 0
    assert 0 < metrics["sandbox/wait_s_mean"] <= metrics["sandbox/wait_s_max"]
    assert ours(engine), "the pool is filled again while the model learns"
    trainer.close()
    assert ours(engine) == set()


def test_the_config_for_code_contest_can_start(engine: Engine, vf_rl: VfRl) -> None:
    overrides = [part for setting in TINY for part in ("--set", setting)]
    code, out, _ = vf_rl(CONFIG, "--dry-run", *overrides)
    assert code == 0
    assert "everything starts" in out
    assert ours(engine) == set()


def refusal(vf_rl: VfRl, *settings: str) -> str:
    code, _, err = vf_rl(CONFIG, *(word for each in (*TINY, *settings) for word in ("--set", each)))
    assert code == 2
    return err


def test_a_limit_out_of_range_ends_a_run_before_it_begins(tmp_path: Path, vf_rl: VfRl) -> None:
    err = refusal(vf_rl, "env.args.sandbox.memory=0", f"output_dir='{tmp_path}/runs'")
    assert "memory must be positive, got 0" in err
    assert not (tmp_path / "runs").exists()


def test_without_an_engine_a_run_ends_before_it_begins(
    tmp_path: Path, vf_rl: VfRl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/docker.sock")
    err = refusal(vf_rl, f"output_dir='{tmp_path}/runs'")
    assert "no container engine answers at unix:///no/such/docker.sock" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("setting", ["image='no-such:image'", "runtime='no-such'"])
def test_what_the_engine_lacks_ends_a_run_before_it_begins(setting: str, vf_rl: VfRl) -> None:
    assert setting.split("'")[1] in refusal(vf_rl, f"env.args.sandbox.{setting}")


def _trace(**values: Any) -> vf.Trace:
    return vf.Trace(environment="e", task=vf.Task("t", "Go."), seed=0, **values)


def test_the_wait_counts_rollouts_that_used_a_sandbox_failed_ones_too() -> None:
    error = Failure.of(SandboxError("none was ready"))
    group = Group(vf.Task("t", "Go."))
    group.failed = [_trace(error=error, timing={"sandbox": 5.0}), _trace(error=error)]
    metrics = rollout_metrics([group])
    assert metrics["sandbox/wait_s_mean"] == 5.0
    group.failed.append(_trace(error=error, timing={"sandbox": 1.0}))
    metrics = rollout_metrics([group])
    assert metrics["sandbox/wait_s_mean"] == 3.0
    assert metrics["sandbox/wait_s_max"] == 5.0
    group.failed = []
    assert not [name for name in rollout_metrics([group]) if name.startswith("sandbox/")]
