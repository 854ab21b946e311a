"""What a run says about its signal and its baseline."""

from __future__ import annotations

import pytest

import vf
from vf.traces.trace import Score
from vf.trainer.run.group import Group
from vf.trainer.watching.findings import Silence, baseline_notes, step_notes


def group(*rewards: float | None, min_size: int = 2) -> Group:
    made = Group(vf.Task("t", "?"), min_size=min_size)
    traces = []
    for reward in rewards:
        traces.append(vf.Trace(environment="e", task=made.task, seed=0))
        if reward is not None:
            traces[-1].score = Score(reward=reward, outcome=reward)
    made.take(traces)
    return made


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([group(1.0, 1.0), group(1.0, 1.0)], "All solved: take harder tasks"),
        ([group(0.0, 0.0), group(0.0, 0.0)], "None solved: take easier tasks"),
        ([group(0.0, 0.0), group(1.0, 1.0)], "tasks that succeed sometimes"),
        ([group(None, None)], "the rubric left every rollout without a reward"),
        ([group(0.0, 1.0, min_size=3)], "no group has 3 scored rollouts"),
    ],
)
def test_a_step_without_signal_says_why_once_and_then_counts(
    groups: list[Group], said: str
) -> None:
    silence, line = Silence(), {"time/total": 1.0}
    [note] = silence.notes(7, groups, line)
    assert note.startswith("step 7: no learning signal: ")
    assert said in note
    assert len(note) < 180
    assert silence.notes(8, [group(0.0, 0.0), group(0.0, 1.0)], line) == []
    assert silence.notes(9, groups, line) == ["step 9: no learning signal again, 2 steps so far"]
    assert silence.notes(10, groups, {"groups/effective": 1.0}) == []


def test_another_reason_is_given_in_full() -> None:
    silence = Silence()
    silence.notes(1, [group(0.0, 0.0)], {})
    assert "All solved" in silence.notes(2, [group(1.0, 1.0)], {})[0]


def test_waits_for_sandboxes_are_reported_where_they_cost_much() -> None:
    waits = {"sandbox/wait_s_mean": 3.0, "sandbox/wait_s_max": 9.0}
    [note] = step_notes(2, {**waits, "time/total": 10.0})
    assert "3.0 s on average, 9.0 s at most" in note
    assert step_notes(2, {**waits, "time/total": 100.0}) == []


def test_memory_that_ran_out_is_reported() -> None:
    line = {"time/total": 1.0, "oom_retries": 1}
    [note] = step_notes(3, line)
    assert "step 3 ran out of memory" in note
    assert step_notes(3, {**line, "oom_retries": 0}) == []


@pytest.mark.parametrize(
    ("success", "said"), [(0.0, "not one of 40"), (0.81, "81% of 40"), (0.8, None), (0.01, None)]
)
def test_a_baseline_that_leaves_nothing_to_learn_is_warned_of(
    success: float, said: str | None
) -> None:
    held_out = {"eval/success_rate": success, "eval/rollouts/scored": 40.0}
    training = {"success_rate": success, "rollouts/scored": 40.0}
    for step, line, evaluates in ((0, held_out, True), (1, training, False)):
        notes = baseline_notes(step, line, evaluates=evaluates)
        assert [said in note for note in notes if said] == ([True] if said else [])
        assert len(notes) == (said is not None)
        assert baseline_notes(step + 1, line, evaluates=evaluates) == []
