"""Nobody gains by going unscored: what was not scored counts as 0 beside every mean."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.evaluation.commands import call, results
from tests.evaluation.stand_in import MODEL, standing
from vf.evaluation.compare import compare
from vf.evaluation.results import mark
from vf.evaluation.tally import Tally

KNOWN = 3


class Voidable(vf.Environment):
    """Twelve questions, in an environment that the model's replies can break."""

    rubric = vf.Rubric(lambda trace: float(trace.reply == str(trace.task.answer)))

    def tasks(self, split: str) -> list[vf.Task]:
        return [vf.Task(f"{split}-{n}", str(n), answer=n) for n in range(12)]

    def step(self, reply: vf.Message) -> vf.Step:
        if reply.content == "void":
            raise OSError("the supervisor is gone")
        return vf.Step(terminated=True)


def voids(messages: list[vf.Message]) -> str:
    """Answer what it knows, and break what it does not."""
    asked = messages[-1].content
    return asked if int(asked) < KNOWN else "void"


def guesses(messages: list[vf.Message]) -> str:
    asked = messages[-1].content
    return asked if int(asked) < KNOWN else "no idea"


def evaluated(policy: Any) -> Any:
    return asyncio.run(vf.evaluate(Voidable(), vf.ScriptedModel(policy), rollouts_per_example=2))


def test_a_policy_that_voids_what_it_would_lose_gains_nothing() -> None:
    evaluation = evaluated(voids)
    assert evaluation.mean_reward == 1.0
    assert evaluation.mean_reward_of_all == 0.25 == evaluated(guesses).mean_reward
    tally = Tally("e", "m", 12, 2)
    for trace in evaluation.traces:
        tally.add(trace)
    summary = tally.summary()
    assert summary.flattered
    assert (summary.reward.mean, summary.success.mean) == (1.0, 1.0)
    assert (summary.reward_of_all.mean, summary.success_of_all.mean) == (0.25, 0.25)
    assert summary.reward_of_all.tasks == 12


def test_what_the_rubric_leaves_unscored_counts_as_0_too() -> None:
    environment = Voidable()
    environment.rubric = vf.Rubric(lambda trace: 1.0 if trace.task.answer < KNOWN else None)
    evaluation = asyncio.run(vf.evaluate(environment, vf.ScriptedModel(guesses)))
    assert (evaluation.errors, evaluation.unscored) == (0, 9)
    assert (evaluation.mean_reward, evaluation.mean_reward_of_all) == (1.0, 0.25)


def test_a_comparison_shows_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, policy in (("a", guesses), ("b", voids)):
        with vf.TraceStore(tmp_path / name / "traces.jsonl") as store:
            for number, trace in enumerate(evaluated(policy).traces):
                mark(trace, "e", "m", number)
                store.append(trace)
    (found,) = compare(tmp_path / "a", tmp_path / "b")
    assert found.rows["reward"].mean_b == 1.0
    assert found.rows["reward_of_all"].mean_a == found.rows["reward_of_all"].mean_b == 0.25
    assert found.rows["reward_of_all"].difference.mean == 0.0
    assert "18 of 24 rollouts of B were not scored" in found.notes
    out = call(capsys, "--compare", str(tmp_path / "a"), str(tmp_path / "b"))[1]
    assert "reward, not scored = 0" in out
    (same,) = compare(tmp_path / "a", tmp_path / "a")
    assert set(same.rows) == {"reward", "success"}


SHOP = """
import vf


class Shop(vf.Environment):
    rubric = vf.Rubric(lambda trace: 1.0)

    def tasks(self, split):
        return [vf.Task(f"{split}-{n}", str(n), info={"broken": n >= BROKEN}) for n in range(12)]

    def reset(self, task):
        if task.info["broken"]:
            raise OSError("the supervisor is gone")
        return self.first_messages(task)
"""


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.parametrize(("known", "code"), [(3, 1), (12, 0)])
def test_the_command_shows_the_mean_over_all_beside_that_of_the_scored(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    known: int,
    code: int,
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / f"shop_{known}_of_test.py"
    file.write_text(f"BROKEN = {known}\n{SHOP}")
    with standing() as (url, _):
        argv = [str(file), "-m", MODEL, "-b", url, "-o", str(tmp_path / "out")]
        found, out, err = call(capsys, *argv)
    assert found == code
    said = results(tmp_path / "out")
    assert said["reward"]["mean"] == 1.0
    assert said["reward_of_all"]["mean"] == said["success_of_all"]["mean"] == known / 12
    assert ("reward, not scored = 0" in out) == (known < 12)
    if known < 12:
        assert "0.250 [" in out
        assert "25.0% [" in out
        assert "9 of 12 rollouts were not scored" in out
        assert "9 failed in the environment; the first: reset raised OSError" in out
        assert "(0.250 with not scored = 0)" in err
