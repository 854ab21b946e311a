"""Which turn gets which credit, on cases worked out by hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vf
from vf.rubrics.penalties import extra_tool_calls, tool_errors
from vf.runtime.errors import RubricError
from vf.traces.trace import Branch, StopReason, ToolEvent, Trace, Turn
from vf.trainer.learning.advantages.turn_credit import (
    overlong_costs,
    returns,
    turn_advantages,
    turn_rewards,
)
from vf.trainer.learning.batches.batch import build_samples, micro_batches
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs


def outcome(trace: Trace) -> float:
    value: float = trace.info["outcome"]
    return value


RUBRIC = vf.Rubric(outcome=outcome, penalties=[tool_errors(weight=0.2)])


def trace(
    outcome: float,
    turns: int = 2,
    steps: tuple[float, ...] = (),
    failed_in: tuple[int, ...] = (),
    lengths: tuple[int, ...] = (),
    finish: Literal["stop", "length"] = "stop",
    rubric: vf.Rubric = RUBRIC,
) -> Trace:
    """A rollout with a prompt token and two sampled ones in each turn, and a call in each."""
    branch = Branch()
    found = Trace("test", vf.Task("t", "?"), 0, branches=[branch], info={"outcome": outcome})
    for turn in range(turns):
        branch.add_context([1], turn)
        branch.add_sampled([2, 3], [-1.0, -1.0], [0, 0], turn)
        kind: Any = "rejected" if turn in failed_in else "ok"
        found.tool_events.append(ToolEvent(turn, str(turn), "f", kind))
        found.turns.append(Turn(1, lengths[turn] if lengths else 2, finish, 0.0))
    found.step_rewards = list(steps) or [0.0] * turns
    found.stop_reason = StopReason.TERMINATED
    found.score = asyncio.run(rubric.score(found))
    return found


def group(*traces: Trace) -> Group:
    return Group(vf.Task("t", "?"), list(traces))


def advantages(groups: list[Group], **args: Any) -> list[Any]:
    [samples] = build_samples(groups, TrainerArgs(**args))
    rows = []
    for sample in samples:
        [batch] = micro_batches([sample], 100)
        rows.append(batch.advantages[batch.loss_mask].tolist())
    return rows


def test_turn_credit_by_hand() -> None:
    # The first failed a call in turn 0 of 3: of its calls 1/3 failed, so 0.2/3 of 1 is taken.
    one = trace(1.0, 3, failed_in=(0,))
    # The second got 0.25 in turn 0 and nothing in the end: outcome 0.5 = 0.25 + 0.25 at the end.
    two = trace(0.5, 2, steps=(0.25, 0.0))
    cost = 0.2 / 3
    assert one.reward == pytest.approx(1 - cost)
    assert turn_rewards(one) == pytest.approx([-cost, 0.0, 1.0])
    assert turn_rewards(two) == pytest.approx([0.25, 0.25])
    # γ = 0.5: returns of the first are (1/4 − cost, 1/2, 1); of the second (0.375, 0.25).
    # At turn 2 the second's last return stands for it.
    a0, a1, a2 = (0.25 - cost - 0.375) / 2, (0.5 - 0.25) / 2, (1.0 - 0.25) / 2
    got = advantages([group(one, two)], credit="turn", credit_discount=0.5)
    assert got[0] == pytest.approx([a0, a0, a1, a1, a2, a2])
    assert got[1] == pytest.approx([-a0, -a0, -a1, -a1])


def test_the_fault_is_blamed_on_its_turn_and_no_later_one() -> None:
    faultless, late = trace(1.0), trace(1.0, failed_in=(1,))
    early = trace(1.0, failed_in=(0,))
    rows = advantages([group(faultless, early)], credit="turn")
    assert rows[1][0] < 0.0  # the turn of the fault
    assert rows[1][2] == pytest.approx(rows[0][2])  # what came after was as good as the other's
    rows = advantages([group(faultless, late)], credit="turn")
    assert rows[1][0] == pytest.approx(rows[1][2])
    assert rows[1][0] < 0.0


rewards = st.floats(-1, 1, allow_nan=False)


@given(st.floats(0, 1), st.lists(rewards, min_size=1, max_size=5), st.sets(st.integers(0, 4)))
def test_placing_rewards_never_changes_their_sum(
    score: float, steps: list[float], failed: set[int]
) -> None:
    made = trace(score, len(steps), tuple(steps), tuple(failed))
    assert made.reward is not None
    assert sum(turn_rewards(made)) == pytest.approx(made.reward, abs=1e-9)
    assert returns(turn_rewards(made), 1.0)[0] == pytest.approx(made.reward, abs=1e-9)


@pytest.mark.parametrize("kind", ["mean", "mean_std", "rloo"])
def test_with_nothing_to_place_turn_credit_is_trace_credit(kind: str) -> None:
    made = [trace(1.0, 3), trace(0.25, 1), trace(0.5, 2)]
    by_turn = advantages([group(*made)], credit="turn", advantage=kind)
    by_trace = advantages([group(*made)], advantage=kind)
    for ours, theirs in zip(by_turn, by_trace, strict=True):
        assert ours == pytest.approx(theirs)


@given(st.lists(st.lists(rewards, min_size=1, max_size=4), min_size=1, max_size=4))
def test_advantages_match_a_naive_loop(rows: list[list[float]]) -> None:
    got = turn_advantages(rows)
    for index, row in enumerate(rows):
        for turn, value in enumerate(row):
            others = [other[turn] if turn < len(other) else other[-1] for other in rows]
            assert got[index][turn] == pytest.approx(value - sum(others) / len(others), abs=1e-9)


@pytest.mark.parametrize("kind", [tool_errors(), extra_tool_calls(free=1)], ids=["errors", "extra"])
def test_ready_made_penalties_know_their_turns(kind: vf.Penalty) -> None:
    assert kind.turns is not None
    assert kind.turns(trace(1.0, 3, failed_in=(1, 2))) == [0.0, 1.0, 1.0]


def test_turns_of_a_penalty_that_make_no_sense_are_an_error_naming_it() -> None:
    def fault(trace: Trace) -> float:
        return 0.5

    wrong: list[Any] = [lambda _: [1.0], lambda _: [1.0, float("nan")], lambda _: 1 / 0]
    for turns in wrong:
        rubric = vf.Rubric(outcome=outcome, penalties=[vf.Penalty(fault, turns=turns)])
        with pytest.raises(RubricError, match="penalty 'fault'"):
            trace(1.0, rubric=rubric)


def test_what_a_turn_cost_is_in_the_record_and_old_records_can_be_read() -> None:
    made = trace(1.0, 3, failed_in=(0, 2))
    assert made.score is not None
    assert made.score.turn_costs == {"tool_errors": pytest.approx([0.2 / 3, 0.0, 0.2 / 3])}
    assert turn_rewards(Trace.from_json(made.to_json())) == turn_rewards(made)
    failure = trace(0.0, 3, failed_in=(0, 2)).score
    assert failure is not None
    assert failure.turn_costs == {}, "there was nothing to take"
    old = json.loads(made.to_json())
    del old["score"]["turn_costs"]
    assert turn_rewards(Trace.from_json(json.dumps(old))) == [0.0, 0.0, made.reward]


def test_group_rewards_change_what_a_turn_cost() -> None:
    """They share the cap: what a group reward takes, a penalty can no longer cost."""
    rubric = vf.Rubric(
        outcome=outcome,
        penalties=[tool_errors(weight=0.3)],
        group_rewards=[vf.GroupReward(lambda group: [0.0] * len(group), weight=0.3)],
        cap=0.4,
    )
    made = [trace(1.0, 2, failed_in=(0, 1), rubric=rubric) for _ in range(2)]
    assert turn_rewards(made[0]) == pytest.approx([-0.15, 0.85])  # alone it costs 0.3
    asyncio.run(rubric.score_group(made))
    assert made[0].reward == pytest.approx(0.6)
    assert turn_rewards(made[0]) == pytest.approx([-0.05, 0.65])  # without it 0.7 would be left


def test_overlong_costs_by_hand() -> None:
    # L_max = 100, buffer = 40: free to 60, half at 80, all from 100 on; of the longest turn.
    made = {n: trace(1.0, 2, lengths=(n, 3)) for n in (60, 80, 100, 120)}
    for length, cost in {60: 0.0, 80: 0.25, 100: 0.5, 120: 0.5}.items():
        assert overlong_costs(made[length], 100, 40, 0.5) == pytest.approx([cost, 0.0])


def test_overlong_costs_reach_the_advantages_and_not_the_record() -> None:
    long, short = trace(1.0, 1, lengths=(90,)), trace(0.0, 1, lengths=(5,))
    args: dict[str, Any] = {"max_tokens": 100, "overlong_buffer": 20, "overlong_penalty": 0.4}
    [[a, *_], [b, *_]] = advantages([group(long, short)], **args)
    assert (a, b) == pytest.approx(((1.0 - 0.2) / 2, -(1.0 - 0.2) / 2))
    assert long.reward == 1.0
    turn_wise = advantages([group(long, short)], credit="turn", **args)
    assert turn_wise[0][0] == pytest.approx(a)


def test_truncated_rollouts_count_in_their_group_and_train_nothing() -> None:
    full, cut = trace(1.0), trace(0.0, finish="length")
    limited = trace(0.5)
    limited.stop_reason = StopReason.MAX_TURNS
    assert len(advantages([group(full, cut, limited)])) == 3
    [row] = advantages([group(full, cut, limited)], mask_truncated=True)
    assert row == pytest.approx([0.5] * 4)
    assert build_samples([group(cut, limited)], TrainerArgs(mask_truncated=True)) == []
