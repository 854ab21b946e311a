"""What samples say about a model: intervals clustered by task, pass@k and pass^k.

Tasks are drawn from some population, and rollouts of one task resemble each other, so the
independent observations are the tasks, not the rollouts. Every estimate here is therefore a mean
over tasks of one number per task, and its interval is that of a mean of independent numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean, stdev

LEVEL = 0.95
UNIT = (0.0, 1.0)  # bounds of rewards, successes and other shares
_ROUNDING = 1e-12  # of the bounds' distance, or of the largest value: less is no difference
_SERIES_UP_TO = 200  # degrees of freedom; above, the expansion is exact to seven digits


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks with its interval.

    Attributes:
        mean: NaN where there are no tasks.
        low: Lower end of the 95 % interval; None where none can be given.
        high: Upper end.
        tasks: How many tasks it is of.
        left_out: Tasks that had too few rollouts to count.
    """

    mean: float
    low: float | None
    high: float | None
    tasks: int
    left_out: int = 0


def mean_of_tasks(
    values: Sequence[float],
    *,
    bounds: tuple[float, float] | None = None,
    left_out: int = 0,
) -> Estimate:
    """Return the mean over tasks and its confidence interval.

    x̄ ± t(G − 1) · s / √G, with the standard deviation s of the G tasks' values. Where all tasks
    have the same number of rollouts this is the clustered standard error of Miller 2024, "Adding
    Error Bars to Evals" (arXiv:2411.00640, equation 4), times √(G / (G − 1)) for small G, with
    Student's t in place of the normal's quantile.

    Of shares, the interval is that of log(x̄ / (1 − x̄)), whose error is s / (√G · x̄ (1 − x̄)):
    near 0 and 1, the distribution of x̄ is too skewed for a symmetric interval (Korn & Graubard
    1998, "Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data", Survey Methodology 24, section 2).

    Where all values are the same but for rounding, s says nothing. If they all lie on a bound, the
    interval comes from (1 − μ)^G ≥ α / 2, which any distribution between the bounds obeys: of a
    mean μ away from the bound, G values on it are that improbable. Anywhere else there is no
    interval.

    Args:
        values: One number per task: the mean over its rollouts, say.
        bounds: Between which every possible value lies; the interval is cut to them. Values
            between 0 and 1 are shares.
        left_out: Passed on.
    """
    count = len(values)
    if count == 0:
        return Estimate(math.nan, None, None, 0, left_out)
    mean = fmean(values)
    scale = max(map(abs, values)) if bounds is None else bounds[1] - bounds[0]
    if max(values) - min(values) <= _ROUNDING * scale:
        exact = (0.0, *(bounds or ()))
        mean = next((value for value in exact if abs(mean - value) <= _ROUNDING * scale), values[0])
        low, high = _interval_of_equals(mean, count, bounds)
        return Estimate(mean, low, high, count, left_out)
    half = t_quantile((1 + LEVEL) / 2, count - 1) * stdev(values) / math.sqrt(count)
    if bounds == UNIT and 0.0 < mean < 1.0:
        reach = half / (mean * (1.0 - mean))
        low, high = (_logistic(math.log(mean / (1.0 - mean)) + way) for way in (-reach, reach))
        return Estimate(mean, low, high, count, left_out)
    low, high = mean - half, mean + half
    if bounds is not None:
        low, high = max(bounds[0], low), min(bounds[1], high)
    return Estimate(mean, low, high, count, left_out)


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x > -700.0 else 0.0


def _interval_of_equals(
    value: float, count: int, bounds: tuple[float, float] | None
) -> tuple[float | None, float | None]:
    if bounds is None or value not in bounds:
        return None, None
    bottom, top = bounds
    reach = (1.0 - ((1 - LEVEL) / 2) ** (1 / count)) * (top - bottom)
    return (bottom, bottom + reach) if value == bottom else (top - reach, top)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the probability that at least one of k rollouts succeeds, of n with c successes.

    1 − C(n − c, k) / C(n, k): unbiased (Chen et al. 2021, arXiv:2107.03374, equation 1).

    Raises:
        ValueError: If not 0 ≤ c ≤ n, or not 1 ≤ k ≤ n.
    """
    _check(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return the probability that all of k rollouts succeed, of n with c successes.

    C(c, k) / C(n, k): unbiased (Yao et al. 2024, τ-bench, arXiv:2406.12045, section 3).

    Raises:
        ValueError: If not 0 ≤ c ≤ n, or not 1 ≤ k ≤ n.
    """
    _check(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")


def t_quantile(p: float, df: int) -> float:
    """Return the quantile of Student's t distribution.

    Bisection on the distribution's finite series (Abramowitz & Stegun 26.7.3 and 26.7.4), and
    for many degrees of freedom their expansion around the normal quantile (26.7.5).

    Args:
        p: A probability, 0.5 < p < 1.
        df: Degrees of freedom, at least 1.

    Raises:
        ValueError: If an argument is out of range.
    """
    if not 0.5 < p < 1 or df < 1:
        raise ValueError(f"needs 0.5 < p < 1 and df >= 1, got p={p}, df={df}")
    return _quantile(p, df)


@cache
def _quantile(p: float, df: int) -> float:
    z = NormalDist().inv_cdf(p)
    if df > _SERIES_UP_TO:
        terms = (
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        )
        return z + sum(term / float(df) ** power for power, term in enumerate(terms, start=1))
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / √df
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, df) < 2 * p - 1 else (low, middle)
    return math.tan(low) * math.sqrt(df)


def _within(angle: float, df: int) -> float:
    """Return P(|T| < √df · tan(angle))."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = df % 2
    total, term = 0.0, cosine if odd else 1.0
    for power in range(odd, df - 1, 2):  # the exponents of the cosine: 1, 3, ... or 0, 2, ...
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
