"""A whole evaluation and a whole training run over two engines, of which one is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.evaluation.commands import call, results, traces
from tests.parts import require
from tests.sandbox.second_engine import SecondEngine
from tests.trainer.conftest import TrainerFactory
from tests.waiting import wait_until
from vf.sandbox.container.address import Address
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.reaper import find

pytestmark = pytest.mark.slow

RELAY = Path(__file__).with_name("relay.py")
EVAL = """
max_concurrent = 6
rollouts_per_example = 2
[[models]]
model = "oracle"
engine = "script"
[[environments]]
id = {id}
[environments.args]
"""


@pytest.fixture
def second(containers: None) -> Iterator[SecondEngine]:
    """An engine that is killed as soon as a rollout is in the middle of one of its sandboxes."""
    require("dockerd")
    found = SecondEngine()
    found.load()
    used, over = found.folder / "used", threading.Event()

    def kill() -> None:
        wait_until(lambda: used.exists() or over.is_set(), 120)
        if not over.is_set():
            found.kill()

    killing = threading.Thread(target=kill)
    killing.start()
    yield found
    over.set()
    killing.join()
    found.close()


def arguments(second: SecondEngine, **more: Any) -> dict[str, Any]:
    """Return the arguments of the environment."""
    doomed = second.address.url
    hosts = [Address.from_environment().url, doomed]
    return {"hosts": hosts, "doomed": doomed, "used": str(second.folder / "used"), **more}


def was_killed(second: SecondEngine) -> bool:
    assert second.process is not None
    return second.process.poll() is not None


def is_clean(engine: Engine) -> bool:
    return not [item for item in asyncio.run(find(engine)) if item.mine or item.dead]


def see_that_nothing_is_left(engine: Engine, second: SecondEngine) -> None:
    """Look for containers of this process and of dead ones, once the killed engine is back."""
    second.start()
    with contextlib.closing(second.connect()) as other:
        for each in (engine, other):
            wait_until(partial(is_clean, each))


def test_an_evaluation_ends_as_if_none_had_been_lost(
    engine: Engine, second: SecondEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, folder = tmp_path / "eval.toml", tmp_path / "results"
    given = [f"{name} = {json.dumps(value)}" for name, value in arguments(second).items()]
    config.write_text("\n".join([EVAL.format(id=json.dumps(str(RELAY))), *given]))
    code, _, err = call(capsys, str(config), "--output", str(folder))
    assert code == 0, err
    assert was_killed(second)
    found = results(folder)
    assert (found["rollouts"], found["errors"]) == (16, {})
    done = traces(folder)
    assert Counter(trace.task.id for trace in done) == {f"eval-{n}": 2 for n in range(8)}
    assert len({trace.seed for trace in done}) == 16
    assert [trace.reward for trace in done] == [1.0] * 16
    see_that_nothing_is_left(engine, second)


@pytest.mark.parametrize("workers", [0, 2])
def test_training_ends_as_if_none_had_been_lost(
    engine: Engine,
    second: SecondEngine,
    workers: int,
    make_trainer: TrainerFactory,
    tmp_path: Path,
) -> None:
    trainer = make_trainer(
        env=str(RELAY),
        env_args=arguments(second, max_containers=8),
        rollouts={"workers": workers},
        batch_size=8,
        rollouts_per_example=4,
        max_steps=3,
        max_concurrent=6,
        max_error_rate=0.0,
    )
    trainer.train()
    trainer.close()
    assert was_killed(second)
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    steps = [line for line in lines if "rollouts/scored" in line]
    assert [(step["rollouts/scored"], step["rollouts/failed"]) for step in steps] == [(8, 0)] * 3
    done = [
        trace
        for file in sorted((tmp_path / "run" / "traces").glob("*.jsonl"))
        for trace in vf.TraceStore(file)
    ]
    origins = [trace.origin for trace in done]
    assert len(set(origins)) == len(done) == 24
    assert [trace.error for trace in done] == [None] * 24
    assert all(len(trace.turns) == 3 for trace in done)
    see_that_nothing_is_left(engine, second)
