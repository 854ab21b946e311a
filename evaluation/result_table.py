"""Results as tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vf.evaluation.compare import Comparison
from vf.evaluation.estimators import Estimate
from vf.evaluation.progress import clock
from vf.evaluation.tally import Summary
from vf.runtime.terminal import fits, make_console, print_wrapped
from vf.traces.view.plain import ENDS

WIDTH = 200  # columns if the output is a pipe, so that no cell is cut
NARROW = 120  # columns below which the results are stacked, not set side by side
TITLE = "mean [95 % interval, clustered by task]"
NOT_SCORED = ", not scored = 0"


def console() -> Console:
    """Return the console that results are printed to."""
    return make_console(width=None if sys.stdout.isatty() else WIDTH)


def print_results(summaries: Sequence[Summary], console: Console) -> None:
    """Print the results of every model in every environment."""
    flattered = any(summary.flattered for summary in summaries)
    overview = _overview(summaries, flattered)
    if stacked := console.width < NARROW or not fits(overview, console):
        console.print(TITLE, style="italic")
    else:
        console.print(overview)
    for summary in summaries:
        console.print()
        name = Text(f"{summary.environment} · {summary.model}", style="bold")
        console.print(name, soft_wrap=True)
        if stacked:
            console.print(_headline(summary, flattered))
        for line in _lines(summary):
            print_wrapped(console, line, "  ")
        if summary.pass_at:
            console.print(_passes(summary))
        if summary.components:
            console.print(_components(summary))


def interval(estimate: Estimate, *, percent: bool = False) -> str:
    """Return a mean with its interval, or that there is none."""
    if estimate.tasks == 0:
        return "–"
    form = "z.1%" if percent else "z.3f"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:{form}} (no interval)"
    return f"{estimate.mean:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def _numbers(summary: Summary, flattered: bool) -> dict[str, str]:
    """Return the headline numbers by what they are called."""
    means = {
        "reward": interval(summary.reward),
        "success": interval(summary.success, percent=True),
    }
    if flattered:
        means[f"reward{NOT_SCORED}"] = interval(summary.reward_of_all)
        means[f"success{NOT_SCORED}"] = interval(summary.success_of_all, percent=True)
    return means | {
        "tasks": f"{summary.tasks:,}",
        "rollouts": f"{summary.scored}/{summary.rollouts}",
        "failed": f"{summary.failed:,}",
        "truncated": f"{summary.truncated:,}",
        "tokens": f"{summary.completion_tokens:,}",
    }


def _overview(summaries: Sequence[Summary], flattered: bool) -> Table:
    """Return the headline numbers, a row for each model in each environment."""
    table = Table(title=TITLE, title_justify="left")
    for name in ("environment", "model"):
        table.add_column(name)
    for name in _numbers(summaries[0], flattered):
        mean = name.startswith(("reward", "success"))
        table.add_column(name, justify="left" if mean else "right")
    for summary in summaries:
        names = (summary.environment, summary.model)
        table.add_row(*names, *_numbers(summary, flattered).values())
    return table


def _headline(summary: Summary, flattered: bool) -> Table:
    """Return the headline numbers of one model in one environment below each other."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in _numbers(summary, flattered).items():
        mean = name.startswith(("reward", "success"))
        table.add_row(f"  {name}", Text(value, style="bold" if mean else ""))
    return table


def _cost(cost: float | None) -> str:
    if cost is None:
        return ""
    if math.isnan(cost):
        return ", cost unknown: the API reports no tokens"
    return f", cost {cost:.4f}"


def _lines(summary: Summary) -> Iterator[str]:
    stops = ", ".join(f"{name} {count}" for name, count in summary.stop_reasons.items())
    yield f"stop reasons: {stops or 'none'}"
    if summary.silent:
        yield (
            f"{summary.silent:,} of {summary.rollouts:,} rollouts reached max_seconds before the "
            "model's first answer, and are scored: was the server overloaded, or did it hang?"
        )
    for reason, count in summary.finish_reasons.items():
        if reason in ENDS:
            yield f"{count:,} of {summary.turns:,} answers: {ENDS[reason]}"
    yield (
        f"turns {summary.turns:,}, prompt tokens {summary.prompt_tokens:,}, "
        f"sampled tokens {summary.completion_tokens:,}" + _cost(summary.cost)
    )
    if (user := summary.user) is not None:
        yield (
            f"simulated user, not in these figures: requests {user.requests:,}, "
            f"prompt tokens {user.prompt_tokens:,}, sampled tokens {user.completion_tokens:,}"
            + _cost(user.cost)
        )
        if user.unanswered:
            yield (
                f"{user.unanswered} rollouts ended because the user had no answer to what the "
                "model said"
            )
    if summary.branches_per_rollout != 1.0:
        kinds = ", ".join(f"{kind} {count}" for kind, count in summary.forks.items())
        forks = f" (forks: {kinds})" if kinds else ""  # roles have branches of their own
        yield f"branches per rollout: {summary.branches_per_rollout:.3g}{forks}"
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
        table.add_row(name, interval(estimate), str(estimate.tasks))
    return table


def print_comparison(comparisons: Sequence[Comparison], console: Console) -> None:
    """Print how two evaluations differ."""
    title = "B − A, paired by task [95 % interval]"
    whole = _differences(comparisons, title)
    if console.width >= NARROW and fits(whole, console):
        console.print(whole)
    else:
        console.print(title, style="italic")
        for comparison in comparisons:
            console.print()
            console.print(Text(comparison.environment, style="bold"), soft_wrap=True)
            for side, model in (("A", comparison.model_a), ("B", comparison.model_b)):
                console.print(Text(f"  {side}  {model}"), soft_wrap=True)
            console.print(_differences([comparison]))
    if any(row.apart for comparison in comparisons for row in comparison.rows.values()):
        console.print("* the interval excludes 0")
    for comparison in comparisons:
        for note in comparison.notes:
            print_wrapped(console, f"{comparison.environment}: {note}")


def _differences(comparisons: Sequence[Comparison], title: str = "") -> Table:
    """Return the differences as rows; without a title, the names stand above."""
    table = Table(title=title or None, title_justify="left")
    names = ("environment", "A", "B") if title else ()
    for name in (*names, "what", "mean A", "mean B", "difference"):
        table.add_column(name)
    table.add_column("tasks", justify="right")
    for comparison in comparisons:
        who = (comparison.environment, comparison.model_a, comparison.model_b) if title else ()
        for what, row in comparison.rows.items():
            table.add_row(
                *who,
                what.replace("_of_all", NOT_SCORED),
                f"{row.mean_a:.3f}",
                f"{row.mean_b:.3f}",
                interval(row.difference) + (" *" if row.apart else ""),
                str(row.difference.tasks),
            )
    return table
