"""Real training in a game of Gymnasium's: the embedded engine, the tiny model."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.bridges.gym.from_gym import GymEnvironment
from vf.trainer.rl_trainer import RLTrainer

pytestmark = pytest.mark.slow

ARGS = """
gymnasium_id = "FrozenLake-v1"
args = { is_slippery = false }
max_turns = 2
"""


def lucky_lake() -> GymEnvironment:
    """Return a lake of two fields, and take the number of digits for the action."""
    return GymEnvironment(
        "FrozenLake-v1",
        {"desc": ["SG"], "is_slippery": False},
        parse=lambda reply: sum(c.isdigit() for c in reply) % 4,
        max_turns=2,
    )


vf.register("test-lake", lucky_lake)


def test_two_steps_in_a_lake_that_luck_crosses(make_trainer: Any, tmp_path: Path) -> None:
    trainer: RLTrainer = make_trainer(
        env="test-lake", max_steps=2, max_prompt_len=512, max_seq_len=768, rollouts_per_example=8
    )
    lines = [trainer.step() for _ in range(2)]
    assert any(0 < line["reward/mean"] < 1 for line in lines), lines
    assert all(line["rollouts/failed"] == 0 for line in lines)
    assert all(line["metric/lost_turns"] == 0 for line in lines)
    assert all(line["logprob_gap"] < 0.01 for line in lines)
    files = (tmp_path / "run" / "traces").glob("*.jsonl")
    traces = [vf.Trace.from_json(row) for file in files for row in file.read_bytes().splitlines()]
    assert len(traces) == 32
    assert {trace.reward for trace in traces} == {0.0, 1.0}
    for trace in traces:
        assert trace.reward == trace.info["gym"]["return"]
        assert "You stand on [ ]" in trace.messages[0].content


def test_it_is_trained_in_by_its_id_and_arguments(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(
        env="gym",
        env_args=tomllib.loads(ARGS),
        max_steps=2,
        batch_size=8,
        max_prompt_len=512,
        max_seq_len=768,
    )
    for step in (1, 2):
        line = trainer.step()
        assert line["step"] == step
        assert line["rollouts/scored"] == 8
        assert line["metric/lost_turns"] + line["metric/steps"] == 2
