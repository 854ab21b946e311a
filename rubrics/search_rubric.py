"""How an answer that was searched for is scored, in every environment that searches."""

from __future__ import annotations

from typing import Literal, get_args

from vf.rubrics.outcomes import exact, marked, token_f1
from vf.rubrics.penalties import extra_tool_calls, tool_errors
from vf.rubrics.rubric import Rubric
from vf.rubrics.search_penalties import (
    opened_nothing,
    repeated_queries,
    search_record,
    without_evidence,
)
from vf.runtime.errors import ConfigError
from vf.runtime.suggest import did_you_mean
from vf.traces.trace import Trace

Outcome = Literal["em", "f1"]
_stated = marked("Answer:")


def search_rubric(outcome: Outcome = "em", free_calls: int | str = 0) -> Rubric:
    """Return a rubric: exact match or token F1, less what a poor search costs.

    Penalties, with their weights: calls beyond the free ones 0.2, repeated queries 0.1, nothing
    opened 0.2, answered without evidence 0.3, wrong tool calls 0.1; together at most half of the
    outcome. Whether the answer had the form that is asked for is a metric, ``format``.

    Args:
        outcome: ``em`` for exact match but for case, punctuation and articles
            (:func:`~vf.rubrics.outcomes.text.exact`), or ``f1``
            (:func:`~vf.rubrics.outcomes.text.token_f1`).
        free_calls: How many calls cost nothing, or the key of ``task.info`` that holds it.

    Raises:
        ConfigError: There is no such outcome.
    """
    em = exact(ignore_case=True, ignore_punctuation=True, ignore_articles=True, extract=_stated)
    scorers = {"em": em, "f1": token_f1(extract=_stated)}
    if outcome not in scorers:
        raise ConfigError(
            f"an answer is scored by {' or '.join(get_args(Outcome))}, not {outcome!r}."
            f"{did_you_mean(str(outcome), scorers)}"
        )
    return Rubric(
        outcome=scorers[outcome],
        penalties=[
            extra_tool_calls(0.2, free=free_calls),
            repeated_queries(0.1),
            opened_nothing(0.2),
            without_evidence(0.3),
            tool_errors(0.1),
        ],
        metrics={
            "format": one_answer,
            "em": em,
            "f1": token_f1(allow_longer=True, extract=_stated),
            "searches": searches,
            "opened": documents_opened,
        },
    )


def one_answer(trace: Trace) -> float:
    """1 if the last message states one answer in the form that is asked for, else 0."""
    return float([bool(text) for text in _stated(trace.reply)] == [True])


def searches(trace: Trace) -> float:
    """How many queries were answered."""
    return float(len(search_record(trace)["queries"]))


def documents_opened(trace: Trace) -> float:
    """How many different documents were opened."""
    return float(len(set(search_record(trace)["opened"])))
