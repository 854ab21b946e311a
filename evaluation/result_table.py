"""Results as tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vf.evaluation.compare import Comparison
from vf.evaluation.estimators import Estimate
from vf.evaluation.progress import clock
from vf.evaluation.tally import Summary

WIDTH = 200  # columns if the output is a pipe, so that no cell is cut
NOT_SCORED = ", not scored = 0"


def console() -> Console:
    """Return the console that results are printed to."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


def print_results(summaries: Sequence[Summary], console: Console) -> None:
    """Print the results of every model in every environment."""
    console.print(_overview(summaries))
    for summary in summaries:
        console.print()
        name = escape(f"{summary.environment} · {summary.model}")
        console.print(f"[bold]{name}[/bold]", highlight=False)
        for line in _lines(summary):
            console.print(escape(f"  {line}"), soft_wrap=True, highlight=False)
        if summary.pass_at:
            console.print(_passes(summary))
        if summary.components:
            console.print(_components(summary))


def interval(estimate: Estimate, *, percent: bool = False) -> str:
    """Return a mean with its interval, or that there is none."""
    if estimate.tasks == 0:
        return "–"
    form = ".1%" if percent else ".3f"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:{form}} (no interval)"
    return f"{estimate.mean:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def _overview(summaries: Sequence[Summary]) -> Table:
    table = Table(title="mean [95 % interval, clustered by task]", title_justify="left")
    flattered = any(each.flattered for each in summaries)
    for name in ("environment", "model", "reward", "success"):
        table.add_column(name)
    if flattered:
        for name in ("reward", "success"):
            table.add_column(f"{name}{NOT_SCORED}")
    for name in ("tasks", "rollouts", "failed", "truncated", "tokens"):
        table.add_column(name, justify="right")
    for each in summaries:
        of_all = [interval(each.reward_of_all), interval(each.success_of_all, percent=True)]
        table.add_row(
            escape(each.environment),
            escape(each.model),
            interval(each.reward),
            interval(each.success, percent=True),
            *(of_all if flattered else []),
            str(each.tasks),
            f"{each.scored}/{each.rollouts}",
            str(each.failed),
            str(each.truncated),
            f"{each.completion_tokens:,}",
        )
    return table


def _lines(summary: Summary) -> Iterator[str]:
    stops = ", ".join(f"{name} {count}" for name, count in summary.stop_reasons.items())
    yield f"stop reasons: {stops or 'none'}"
    yield (
        f"turns {summary.turns:,}, prompt tokens {summary.prompt_tokens:,}, "
        f"sampled tokens {summary.completion_tokens:,}"
        + ("" if summary.cost is None else f", cost {summary.cost:.4f}")
    )
    if (user := summary.user) is not None:
        yield (
            f"simulated user, not in these figures: requests {user.requests:,}, "
            f"prompt tokens {user.prompt_tokens:,}, sampled tokens {user.completion_tokens:,}"
            + ("" if user.cost is None else f", cost {user.cost:.4f}")
        )
        if user.unanswered:
            yield (
                f"{user.unanswered} rollouts ended because the user had no answer to what the "
                "model said"
            )
    if summary.branches_per_rollout != 1.0:
        kinds = ", ".join(f"{kind} {count}" for kind, count in summary.forks.items())
        yield f"branches per rollout: {summary.branches_per_rollout:.3g} (forks: {kinds})"
    phases = sorted(summary.seconds.items(), key=lambda item: -item[1])
    spent = ", ".join(f"{name} {clock(seconds)}" for name, seconds in phases if seconds >= 0.5)
    if spent:
        yield f"time, summed over concurrent rollouts: {spent}"
    if not_scored := summary.failed + summary.unscored:
        counted = f"; only the means headed '{NOT_SCORED[2:]}' count them"
        yield (
            f"{not_scored} of {summary.rollouts} rollouts were not scored"
            f"{counted if summary.flattered else ''}"
        )
    if summary.unscored:
        yield f"{summary.unscored} got no reward from the rubric"
    if summary.rewriting:
        yield summary.rewriting
    if summary.missing:
        yield f"{summary.missing} rollouts have not been run"
    for boundary, seen in summary.errors.items():
        yield f"{seen['count']} failed in the {boundary}; the first: {seen['first']}"


def _passes(summary: Summary) -> Table:
    table = Table(title="with k rollouts", title_justify="left")
    for name in ("k", "pass@k: one succeeds", "pass^k: all succeed", "tasks", "incomplete"):
        table.add_column(name)
    for k, at in summary.pass_at.items():
        hat = summary.pass_hat[k]
        left_out = f"{at.left_out} skipped" if at.left_out else ""
        table.add_row(
            str(k),
            interval(at, percent=True),
            interval(hat, percent=True),
            str(at.tasks),
            left_out,
        )
    return table


def _components(summary: Summary) -> Table:
    table = Table(title="components and metrics", title_justify="left")
    table.add_column("name")
    table.add_column("mean")
    table.add_column("tasks", justify="right")
    for name, estimate in summary.components.items():
        table.add_row(escape(name), interval(estimate), str(estimate.tasks))
    return table


def print_comparison(comparisons: Sequence[Comparison], console: Console) -> None:
    """Print how two evaluations differ."""
    table = Table(title="B − A, paired by task [95 % interval]", title_justify="left")
    for name in ("environment", "A", "B", "what", "mean A", "mean B", "difference", "tasks"):
        table.add_column(name)
    for each in comparisons:
        for what, row in each.rows.items():
            table.add_row(
                escape(each.environment),
                escape(each.model_a),
                escape(each.model_b),
                what.replace("_of_all", NOT_SCORED),
                f"{row.mean_a:.3f}",
                f"{row.mean_b:.3f}",
                interval(row.difference) + (" *" if row.apart else ""),
                str(row.difference.tasks),
            )
    console.print(table)
    if any(row.apart for each in comparisons for row in each.rows.values()):
        console.print("* the interval excludes 0", highlight=False)
    for each in comparisons:
        for note in each.notes:
            console.print(escape(f"{each.environment}: {note}"), soft_wrap=True, highlight=False)
