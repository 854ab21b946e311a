"""Real training in a v0 environment of verifiers: the embedded engine, the tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments import registry
from vf.trainer.rl_trainer import RLTrainer

ENVIRONMENT = """
import verifiers as vf
from datasets import Dataset


def digits(completion):
    said = completion[-1]["content"]
    return sum(c.isdigit() for c in said) / max(1, len(said))


def load_environment(count: int = 8) -> vf.Environment:
    rows = [{"question": f"Say {i}.", "answer": str(i)} for i in range(count)]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[digits]))
"""


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vft_digits.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(tmp_path)
    if "verifiers" not in registry.registered():  # an older installation of vf-rl
        vf.register("verifiers", "vf.bridges.verifiers.from_verifiers:from_verifiers")


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.usefixtures("registered")
def test_two_steps_in_an_environment_of_verifiers(make_trainer: Any, tmp_path: Path) -> None:
    trainer: RLTrainer = make_trainer(
        env="verifiers:vft-digits", env_args={"count": 4}, max_steps=2, batch_size=8
    )
    lines = [trainer.step() for _ in range(2)]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["rollouts/scored"] == 8 for line in lines)
    assert all(line["rollouts/failed"] == 0 for line in lines)
    assert any(line["reward/std"] > 0 for line in lines), lines
    assert all(line["metric/verifiers_reward"] == line["reward/mean"] for line in lines)
    assert all(line["logprob_gap"] < 0.01 for line in lines)
    files = (tmp_path / "run" / "traces").glob("*.jsonl")
    traces = [vf.Trace.from_json(row) for file in files for row in file.read_bytes().splitlines()]
    assert len(traces) == 16
    for trace in traces:
        said = trace.reply
        assert trace.reward == pytest.approx(sum(c.isdigit() for c in said) / max(1, len(said)))
