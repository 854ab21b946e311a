"""What training does with group rewards, and with rollouts that have no reward."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("torch")

import vf
from vf.environments.environment import Split
from vf.runtime.errors import TrainingError
from vf.traces.trace import ToolEvent
from vf.trainer.rl_trainer import RLTrainer


def by_place(traces: Sequence[vf.Trace]) -> list[float]:
    return [index / len(traces) for index in range(len(traces))]


def broken(traces: Sequence[vf.Trace]) -> list[float]:
    raise KeyError("no judge")


def no_reward_for_odd_seeds(trace: vf.Trace) -> float | None:
    return None if trace.seed % 2 else (trace.seed // 2) % 2


def errors_pay(trace: vf.Trace) -> float:
    return len(trace.tool_events) / 2


RUBRICS = {
    "group": vf.Rubric(lambda trace: 1.0, group_rewards=[vf.GroupReward(by_place, 0.5)]),
    "broken": vf.Rubric(lambda trace: 1.0, group_rewards=[broken]),
    "partly": vf.Rubric(no_reward_for_odd_seeds),
    "never": vf.Rubric(lambda trace: None),
    "errors": vf.Rubric(errors_pay),
}


class Scored(vf.Environment):
    """Say anything; what counts is the rubric."""

    max_turns = 1

    def __init__(self, rubric: str) -> None:
        self.rubric = RUBRICS[rubric]

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(16):
            yield vf.Task(f"{split}-{index}", f"Say {index}.")

    def step(self, reply: vf.Message) -> vf.Step:
        for number in range(self.rng.randrange(3)):
            self.tool_events.append(ToolEvent(0, str(number), "tool", "rejected"))
        return vf.Step(terminated=True)


vf.register("test-scored", Scored)


def make(make_trainer: Any, rubric: str, **settings: Any) -> RLTrainer:
    trainer: RLTrainer = make_trainer(
        rubric, env="test-scored", env_args={"rubric": rubric}, **settings
    )
    return trainer


def written(trainer: RLTrainer, step: int = 1) -> list[vf.Trace]:
    return list(vf.TraceStore(trainer.folder.traces / f"step-{step:06d}.jsonl"))


def test_group_rewards_reach_the_advantages_and_the_traces(make_trainer: Any) -> None:
    trainer = make(make_trainer, "group")
    metrics = trainer.step()
    assert metrics["groups/uniform_fraction"] == 0.0
    assert metrics["tokens/trained"] > 0
    assert metrics["part/by_place"] == pytest.approx(sum(range(8)) / 64)
    rewards = sorted(trace.reward or 0.0 for trace in written(trainer))
    assert rewards == pytest.approx(sorted([0.5 + index / 16 for index in range(8)] * 2))


def test_group_rewards_that_fail_stop_the_run_with_the_cause(make_trainer: Any) -> None:
    trainer = make(make_trainer, "broken")
    with pytest.raises(TrainingError, match="in the rubric: 'broken' raised KeyError: 'no judge'"):
        trainer.step()
    trainer.close(failed=True)  # which waits until all traces are written
    assert all(trace.reward is None for trace in written(trainer))


def test_rollouts_without_a_reward_are_counted_and_not_trained_on(make_trainer: Any) -> None:
    trainer = make(make_trainer, "partly", eval_strategy="steps", max_steps=1)
    trainer.train()
    first, last = trainer.folder.read_metrics()
    traces = written(trainer)
    unscored = [trace for trace in traces if trace.seed % 2]
    assert 0 < len(unscored) < len(traces) == 16
    assert last["rollouts/unscored"] == len(unscored)
    assert last["rollouts/scored"] == len(traces) - len(unscored)
    assert last["rollouts/failed"] == 0
    assert all(trace.error is None and trace.reward is None for trace in unscored)
    scored = [trace.reward for trace in traces if trace.reward is not None]
    assert last["reward/mean"] == pytest.approx(sum(scored) / len(scored))
    assert first["eval/rollouts/unscored"] > 0
    assert first["eval/rollouts/failed"] == 0


def test_a_rubric_that_never_scores_is_reported(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(make_trainer, "never")
    said: list[str] = []
    monkeypatch.setattr(trainer.display, "note", said.append)
    metrics = trainer.step()
    assert metrics["rollouts/unscored"] == 16
    assert "reward/mean" not in metrics
    assert len(said) == 1
    assert "the rubric left every rollout without a reward" in said[0]


@pytest.mark.slow
def test_an_alarm_reaches_the_user_the_log_and_the_metrics(
    make_trainer: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf.trainer.watching.alarms.MIN_ROLLOUTS", 48)
    trainer = make(make_trainer, "errors", batch_size=64)
    said: list[str] = []
    monkeypatch.setattr(trainer.display, "note", said.append)
    monitor = logging.getLogger("vf.trainer.watching.records")
    monitor.addHandler(caplog.handler)  # a run's loggers do not propagate
    try:
        metrics = [trainer.step() for _ in range(2)]
    finally:
        monitor.removeHandler(caplog.handler)
    assert metrics[0]["alarm/errors"] == pytest.approx(1.0, abs=0.01)
    told = "reward goes together with failed tool calls"
    assert [text[:7] for text in said if told in text] == ["step 1:"]
    assert [record.levelname for record in caplog.records if told in record.message] == ["WARNING"]
    # What is remembered outlives the process: it does not ring again after a resume.
    trainer.save()
    trainer.close()
    again = make(make_trainer, "errors", batch_size=64)
    again.resume()
    monkeypatch.setattr(again.display, "note", said.append)
    again.step()
    assert len([text for text in said if told in text]) == 1
