"""Estimators against enumeration, numerical integration, and simulation of their coverage."""

from __future__ import annotations

import itertools
import math
import random
from statistics import fmean

import pytest

from vf.evaluation.estimators import (
    mean_of_tasks,
    pass_at_k,
    pass_hat_k,
    t_quantile,
)


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_and_pass_hat_k_are_what_enumerating_all_subsets_gives(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        rollouts = [True] * c + [False] * (n - c)
        subsets = list(itertools.combinations(rollouts, k))
        assert pass_at_k(n, c, k) == pytest.approx(fmean(any(s) for s in subsets), abs=1e-12)
        assert pass_hat_k(n, c, k) == pytest.approx(fmean(all(s) for s in subsets), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(2, 3, 1), (2, -1, 1), (2, 1, 0), (2, 1, 3)])
def test_counts_that_cannot_be_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="needs 0 <= c <= n"):
        pass_at_k(n, c, k)
    with pytest.raises(ValueError, match="needs 0 <= c <= n"):
        pass_hat_k(n, c, k)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 9, 50, 200, 201, 500])
def test_the_density_up_to_the_quantile_integrates_to_its_probability(df: int) -> None:
    top, steps = t_quantile(0.975, df), 20_000
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)

    def density(x: float) -> float:
        return scale * math.exp(-(df + 1) / 2 * math.log1p(x * x / df))

    width = top / steps
    area = width * sum(density((place + 0.5) * width) for place in range(steps))
    assert area == pytest.approx(0.475, abs=1e-6)


def test_the_interval_is_the_clustered_standard_error_of_the_rollouts() -> None:
    """Miller's sum over pairs of rollouts of one task, from the rollouts themselves."""
    rng = random.Random(1)
    groups = [[float(rng.random() < p) for _ in range(4)] for p in (0.1, 0.3, 0.5, 0.9, 0.9, 0.2)]
    rollouts = [value for group in groups for value in group]
    mean, n, tasks = fmean(rollouts), len(rollouts), len(groups)
    pairs = sum((a - mean) * (b - mean) for group in groups for a in group for b in group)
    error = math.sqrt(pairs / n**2 * tasks / (tasks - 1))
    found = mean_of_tasks([fmean(group) for group in groups])
    assert found.mean == pytest.approx(mean)
    assert found.high is not None
    assert found.high - found.mean == pytest.approx(t_quantile(0.975, tasks - 1) * error)


def coverage(
    tasks: int,
    rollouts: int,
    *,
    truth: float = 0.5,
    spread: float = 3.0,
    pooled: bool = False,
    trials: int = 3000,
) -> float:
    """Return how often the interval holds the truth, for tasks of Beta-distributed difficulty."""
    rng, hits = random.Random(7), 0
    for _ in range(trials):
        groups = []
        for _ in range(tasks):
            p = rng.betavariate(spread * truth, spread * (1 - truth))
            groups.append([float(rng.random() < p) for _ in range(rollouts)])
        values = [v for g in groups for v in g] if pooled else [fmean(g) for g in groups]
        found = mean_of_tasks(values, bounds=(0.0, 1.0))
        hits += (
            found.low is not None and found.high is not None and found.low <= truth <= found.high
        )
    return hits / trials


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.parametrize(("tasks", "rollouts"), [(12, 4), (40, 4), (40, 1)])
def test_the_interval_covers_the_truth_in_95_of_100_evaluations(tasks: int, rollouts: int) -> None:
    assert 0.93 <= coverage(tasks, rollouts) <= 0.97


@pytest.mark.parametrize("truth", [0.05, 0.9])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_it_covers_the_truth_near_0_and_1_too(truth: float, spread: float) -> None:
    assert coverage(20, 4, truth=truth, spread=spread, trials=1000) >= 0.93


def test_rollouts_taken_for_independent_would_not_cover_it() -> None:
    """The simulation can fail: without clustering, the interval is too short."""
    assert coverage(40, 4, pooled=True, trials=1000) < 0.9


def test_where_all_tasks_are_alike_the_interval_is_from_the_bound_or_there_is_none() -> None:
    none = mean_of_tasks([0.0] * 20, bounds=(0.0, 1.0))
    assert (none.mean, none.low) == (0.0, 0.0)
    assert none.high is not None
    assert (1 - none.high) ** 20 == pytest.approx(0.025)
    every = mean_of_tasks([1.0] * 20, bounds=(0.0, 1.0))
    assert every.low == pytest.approx(1 - none.high)
    assert every.high == 1.0
    middle = mean_of_tasks([0.5] * 20, bounds=(0.0, 1.0))
    assert (middle.low, middle.high) == (None, None)
    assert mean_of_tasks([3.0, 3.0]).low is None


def test_one_task_and_none() -> None:
    one = mean_of_tasks([0.4])
    assert (one.mean, one.low, one.tasks) == (0.4, None, 1)
    assert math.isnan(mean_of_tasks([]).mean)


def test_the_interval_is_cut_to_what_is_possible() -> None:
    cut = mean_of_tasks([-1.0, -1.0, 1.0], bounds=(-1.0, 1.0))
    assert (cut.low, cut.high) == (-1.0, 1.0)
    share = mean_of_tasks([0.0, 0.0, 1.0], bounds=(0.0, 1.0))
    assert share.low is not None
    assert share.high is not None
    assert 0.0 < share.low < 1 / 3 < share.high < 1.0
    low = mean_of_tasks([0.0] * 9999 + [1e-9], bounds=(0.0, 1.0))
    assert low.low == pytest.approx(0.0, abs=1e-9)
    assert low.high == pytest.approx(0.0, abs=1e-9)


def test_rounding_is_no_spread() -> None:
    """0.3 and 0.1 + 0.2 are one reward."""
    third = mean_of_tasks([0.3, 0.1 + 0.2, 0.3], bounds=(0.0, 1.0))
    assert (third.mean, third.low, third.high) == (0.3, None, None)
    difference = mean_of_tasks([0.0, 0.1 + 0.2 - 0.3, -1e-17], bounds=(-1.0, 1.0))
    assert (str(difference.mean), difference.low) == ("0.0", None)
    every = mean_of_tasks([1.0, 1.0 - 1e-16], bounds=(0.0, 1.0))
    assert every.mean == every.high == 1.0
    assert mean_of_tasks([3e-20, 1e-20]).low is not None  # a metric of another scale
