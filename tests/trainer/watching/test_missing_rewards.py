"""The alarm of rollouts that go without a reward where they would have failed.

``recorded`` holds what runs of the tiny model in ``calculator`` did, a line a step, a group as
``[task, outcomes of the scored, failed]``. In ``voids-sick.jsonl`` 60 % of the rollouts that would
have failed was interrupted, in ``voids-healthy.jsonl`` 15 % of all, by chance.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, pvariance

import pytest

pytest.importorskip("torch")

import vf
from vf.traces.trace import Score, Turn
from vf.trainer.run.group import Group
from vf.trainer.watching.alarms import STEPS, Alarms
from vf.trainer.watching.metrics import rollout_metrics
from vf.trainer.watching.missing_rewards import StepVoids, association

RECORDED = Path(__file__).parent / "recorded"


def make_group(task: str, outcomes: list[float], failed: int, unscored: int = 0) -> Group:
    group = Group(vf.Task(task, "p"))
    for outcome in outcomes:
        trace = vf.Trace(environment="e", task=group.task, seed=0, score=Score(outcome, outcome))
        trace.turns = [Turn(1, 1, "stop", 0.1)]
        group.traces.append(trace)
    group.failed = [vf.Trace(environment="e", task=group.task, seed=0) for _ in range(failed)]
    group.unscored = [vf.Trace(environment="e", task=group.task, seed=0) for _ in range(unscored)]
    return group


def recorded(name: str) -> Iterator[list[Group]]:
    for line in (RECORDED / name).read_text().splitlines():
        yield [make_group(*group) for group in json.loads(line)]


def ring(steps: Iterator[list[Group]]) -> list[str]:
    alarms, said = Alarms(), []
    for groups in steps:
        notes = alarms.observe(groups)[1]
        alarms = Alarms(**json.loads(json.dumps(alarms.state())))  # as a resumed run has it
        said += [note for note in notes if "without a reward" in note]
    return said


def test_a_recorded_run_whose_rollouts_were_voided_rings_once() -> None:
    [said] = ring(recorded("voids-sick.jsonl"))
    assert "more often where the others of the step did better" in said
    assert "with them as 0, the reward is" in said


def test_a_recorded_run_whose_rollouts_failed_by_chance_does_not() -> None:
    assert ring(recorded("voids-healthy.jsonl")) == []


def chance(rng: random.Random, step: int, *, rate: float = 0.1) -> list[Group]:
    """Return groups of any difficulty; the later, the better. Attempts fail by chance."""
    groups = []
    for number in range(8):
        solved = min(1.0, rng.random() + step / 100)
        outcomes = [float(rng.random() < solved) for _ in range(8)]
        failed = sum(rng.random() < rate for _ in range(8))
        groups.append(make_group(f"t{number}", outcomes, failed))
    return groups


@pytest.mark.slow
def test_failures_by_chance_ring_in_hardly_any_run() -> None:
    rings = 0
    for seed in range(50):
        rng = random.Random(seed)
        rings += bool(ring(chance(rng, step) for step in range(60)))
    assert rings <= 3


def test_an_outage_that_hits_whole_steps_does_not_ring() -> None:
    rng = random.Random(0)
    outages = {3, 4, 5, 20}
    assert ring(chance(rng, step, rate=0.9 if step in outages else 0.0) for step in range(60)) == []


def test_tasks_of_which_nothing_is_scored_ring() -> None:
    def steps() -> Iterator[list[Group]]:
        for _ in range(50):
            solved = [make_group(f"known-{n}", [1.0] * 7 + [0.0], 0) for n in range(7)]
            yield [*solved, make_group("unknown", [], 24)]

    [said] = ring(steps())
    assert "'unknown'" in said


def test_a_rubric_that_cannot_score_a_task_does_not_ring() -> None:
    solved = [make_group(f"known-{n}", [1.0] * 7 + [0.0], 0) for n in range(7)]
    assert ring(iter([[*solved, make_group("open", [], 0, unscored=8)]] * 30)) == []


def test_voids_that_rise_with_the_reward_ring() -> None:
    def steps(rise: int) -> Iterator[list[Group]]:
        rng = random.Random(0)
        for step in range(STEPS):
            done = step // 4
            outcomes = [float(rng.random() < 0.2 + 0.1 * done) for _ in range(40)]
            yield [make_group("a", outcomes, 2 + rise * done), make_group("b", outcomes, 2)]

    assert "their share rose together with the reward" in ring(steps(4))[0]
    assert ring(steps(0)) == []


def test_the_association_is_the_covariance_over_its_standard_error_under_permutation() -> None:
    rng = random.Random(0)
    groups = [make_group(f"t{n}", [rng.random()], rng.randrange(3)) for n in range(7)]
    step = StepVoids.of(groups)
    shares = [len(group.failed) / (1 + len(group.failed)) for group in groups]
    outcomes = [group.outcomes[0] for group in groups]
    sums = []
    for _ in range(20_000):
        rng.shuffle(outcomes)
        sums.append(-sum((s - fmean(shares)) * o for s, o in zip(shares, outcomes, strict=True)))
    assert step.variance == pytest.approx(pvariance(sums), rel=0.05)
    many = [step] * 9
    assert association(many[:1]) == 0.0  # too few groups to tell
    assert association(many) == pytest.approx(3 * step.covariance / step.variance**0.5)


def test_metrics_count_voids_as_nothing_earned() -> None:
    groups = [make_group("a", [1.0, 1.0], 2), make_group("b", [1.0, 0.0], 0, unscored=2)]
    metrics = rollout_metrics(groups)
    assert (metrics["voids/share"], metrics["voids/tasks"]) == (0.5, 2)
    assert metrics["reward/mean"] == 0.75
    assert metrics["reward/voids_as_zero"] == pytest.approx(3 / 8)
