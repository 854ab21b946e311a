"""Alarms ring when rewards are gamed, once, and not when they are not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import vf
from vf.traces.trace import Fork, ForkKind, Score, ToolEvent, Turn
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.watching.alarms import MIN_ROLLOUTS, STEPS, Alarms, RunAlarms, spearman

Rollout = tuple[float, int, int]  # reward, tokens, failed calls


def make_group(rollouts: list[Rollout], outcome: float | None = None) -> Group:
    group = Group(vf.Task("t", "p"))
    for reward, tokens, errors in rollouts:
        trace = vf.Trace(environment="e", task=group.task, seed=0)
        trace.score = Score(reward, reward if outcome is None else outcome)
        trace.turns = [Turn(1, tokens, "stop", 0.1)]
        trace.tool_events = [ToolEvent(0, "c", "t", "rejected") for _ in range(errors)]
        group.traces.append(trace)
    return group


def test_an_agent_that_rewrites_its_history_is_reported_with_the_cost() -> None:
    def group(kinds: dict[int, ForkKind]) -> Group:
        made = make_group([(0.5, 10, 0)] * 4)
        for trace in made.traces:
            trace.turns = [Turn(1000 * (turn + 1), 10, "stop", 0.1) for turn in range(5)]
            trace.forks = [
                Fork(turn, "message 1 differs: user 'at 9:01'\n became 'at 9:02'", kind)
                for turn, kind in kinds.items()
            ]
        return made

    alarms = Alarms()
    metrics, notes = alarms.observe([group({2: "parallel", 3: "parallel", 4: "conversation"})])
    assert (metrics["alarm/rewrites"], notes) == (0.0, [])
    metrics, [note] = alarms.observe([group({1: "rewritten", 2: "rewritten", 4: "rewritten"})])
    assert metrics["alarm/rewrites"] == 1.0
    assert "75% of the calls begin a new context" in note
    assert "message 1 differs: user 'at 9:01' became 'at 9:02'." in note
    assert "10,000 tokens a rollout" in note  # the prompts of turns 1, 2 and 4
    assert "leave earlier messages as they are" in note
    again = Alarms(**alarms.state())
    assert again.observe([group({1: "rewritten", 2: "rewritten", 4: "rewritten"})])[1] == []
    assert again.observe([group({})])[0]["alarm/rewrites"] == 0.0


def observe(make: Callable[[random.Random], Rollout], steps: int = 20) -> tuple[Alarms, list[str]]:
    """Show steps of 4 groups of 8 rollouts; return the alarms and all that was said."""
    rng, alarms, said = random.Random(0), Alarms(), []
    for _ in range(steps):
        groups = [make_group([make(rng) for _ in range(8)]) for _ in range(4)]
        said += alarms.observe(groups)[1]
    return alarms, said


def long_pays(rng: random.Random) -> Rollout:
    tokens = rng.randrange(100)
    return tokens / 100 + rng.gauss(0, 0.05), tokens, rng.randrange(3)


def short_pays(rng: random.Random) -> Rollout:
    reward, tokens, errors = long_pays(rng)
    return 1 - reward, tokens, errors


def errors_pay(rng: random.Random) -> Rollout:
    errors = rng.randrange(5)
    return errors / 5 + rng.gauss(0, 0.05), rng.randrange(100), errors


def errors_cost(rng: random.Random) -> Rollout:
    reward, tokens, errors = errors_pay(rng)
    return 1 - reward, tokens, errors


def nothing_pays(rng: random.Random) -> Rollout:
    return rng.random(), rng.randrange(100), rng.randrange(5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (long_pays, "reward and length go together (ρ = +0.9"),
        (short_pays, "reward and length go together (ρ = -0.9"),
        (errors_pay, "reward goes together with failed tool calls (ρ = +0.9"),
    ],
)
def test_an_alarm_is_reported_once_when_it_begins(
    make: Callable[[random.Random], Rollout], said: str
) -> None:
    alarms, notes = observe(make)
    assert len(notes) == 1
    assert said in notes[0]
    assert len(alarms.ringing) == 1


@pytest.mark.parametrize("make", [nothing_pays, errors_cost])
def test_there_is_no_alarm_without_cause(make: Callable[[random.Random], Rollout]) -> None:
    assert observe(make)[1] == []


def test_harder_tasks_that_take_longer_are_no_cause() -> None:
    """Across tasks reward and length go together; within each they do not."""
    rng, alarms = random.Random(0), Alarms()
    for _ in range(10):
        for level in range(4):
            rollouts = [
                (level / 5 + 0.1 * rng.random(), 100 * level + rng.randrange(50), 0)
                for _ in range(8)
            ]
            metrics, notes = alarms.observe([make_group(rollouts)])
            assert notes == []
    assert abs(metrics["alarm/length"]) < 0.3


def test_few_rollouts_and_uniform_groups_say_nothing() -> None:
    alarms = Alarms()
    few = [make_group([(float(n), n, n) for n in range(MIN_ROLLOUTS - 1)])]
    assert alarms.observe(few)[0]["alarm/length"] == 0.0
    same = [make_group([(1.0, n, n) for n in range(MIN_ROLLOUTS)])]
    assert alarms.observe(same)[0]["alarm/length"] == 0.0
    more = [make_group([(0.0, 0, 0), (1.0, 1, 1)])]
    assert alarms.observe(more)[0]["alarm/length"] > 0.9


def test_an_alarm_that_ended_can_begin_again() -> None:
    rng, alarms, said = random.Random(0), Alarms(), []
    for make in (long_pays, nothing_pays, long_pays):
        for _ in range(20):
            groups = [make_group([make(rng) for _ in range(8)]) for _ in range(4)]
            said += alarms.observe(groups)[1]
    assert len(said) == 2


def trend(outcome: Callable[[int], float], reward: Callable[[int], float]) -> list[str]:
    rng, alarms, said = random.Random(0), Alarms(), []
    for step in range(STEPS):
        rollout = (reward(step) + rng.gauss(0, 0.01), 10, 0)
        group = make_group([rollout, rollout], outcome(step) + rng.gauss(0, 0.01))
        metrics, notes = alarms.observe([group])
        said += notes
    assert bool(said) == bool(metrics["alarm/outcome"])
    return said


def test_an_outcome_that_falls_while_the_reward_rises_is_reported() -> None:
    [said] = trend(lambda step: 0.8 - 0.01 * step, lambda step: 0.4 + 0.01 * step)
    assert "the outcome fell while the reward rose" in said


@pytest.mark.parametrize(
    ("outcome", "reward"), [(0.01, 0.01), (-0.01, -0.01), (0.0, 0.01), (-0.01, 0.0), (0.01, -0.01)]
)
def test_any_other_trend_is_not(outcome: float, reward: float) -> None:
    assert trend(lambda step: 0.5 + outcome * step, lambda step: 0.4 + reward * step) == []


def test_unscored_and_empty_groups_are_passed_over() -> None:
    group = Group(vf.Task("t", "p"))
    metrics, notes = Alarms().observe([group])
    assert set(metrics.values()) == {0.0}
    assert notes == []


def test_what_is_remembered_goes_through_json() -> None:
    alarms, _ = observe(long_pays)
    again = Alarms(**json.loads(json.dumps(alarms.state())))
    group = [make_group([(0.1, 1, 0), (0.9, 2, 1)])]
    assert again.observe(group) == alarms.observe(group)
    assert again.ringing == {"length"}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20))
@settings(deadline=None)
def test_spearman_is_pearson_of_the_ranks(pairs: list[tuple[int, int]]) -> None:
    def ranks(values: list[int]) -> list[float]:
        return [
            sum(other < value for other in values) + (values.count(value) - 1) / 2
            for value in values
        ]

    x, y = (ranks([pair[axis] for pair in pairs]) for axis in (0, 1))
    mx, my = fmean(x), fmean(y)
    covariance = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    spread = (sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y)) ** 0.5
    found = spearman([float(a) for a, _ in pairs], [float(b) for _, b in pairs])
    assert found == pytest.approx(covariance / spread if spread else 0.0, abs=1e-12)


def test_environments_are_watched_apart() -> None:
    """Reward goes with length in one, against it in the other: mixed up, neither would ring."""
    rng, args = random.Random(0), TrainerArgs()
    alarms, said = RunAlarms({"a": args, "b/c": args}), list[str]()
    for step in range(20):
        groups = []
        for name, sign in (("a", 1), ("b/c", -1)):
            for _ in range(4):
                tokens = [rng.randint(1, 99) for _ in range(8)]
                group = make_group([(sign * count / 99, count, 0) for count in tokens])
                group.environment = name
                groups.append(group)
        metrics, notes = alarms.observe(groups, {}, args)
        said += notes
        if step == 12:
            saved = json.loads(json.dumps(alarms.state()))
            alarms = RunAlarms({"a": args, "b/c": args})
            alarms.load(saved)
    assert metrics["env/a/alarm/length"] == pytest.approx(1.0)
    assert metrics["env/b/c/alarm/length"] == pytest.approx(-1.0)
    assert abs(metrics["alarm/length"]) == pytest.approx(1.0)
    rang = sorted(note.partition(":")[0] for note in said if "length" in note)
    assert rang == ["a", "b/c"]


def test_the_alarms_of_before_there_were_mixtures_are_read() -> None:
    old = Alarms(ringing=["kl", "length"], rollouts=[(0.1, 0.2, 0.3)]).state()
    alarms = RunAlarms({"a": TrainerArgs()})
    alarms.load(old)
    assert alarms.state()["environments"]["a"]["rollouts"] == [(0.1, 0.2, 0.3)]
    assert alarms.state()["ringing"] == ["kl"]
