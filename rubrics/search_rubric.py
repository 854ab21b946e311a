"""How an answer that was searched for is scored, in every environment that searches."""

from __future__ import annotations

from typing import Literal, get_args

from vf.rubrics.answers import answer_em, answer_f1, answered, overlap
from vf.rubrics.penalties import extra_tool_calls, tool_errors
from vf.rubrics.rubric import Rubric
from vf.rubrics.search_penalties import (
    documents_opened,
    opened_nothing,
    repeated_queries,
    searches,
    without_evidence,
)
from vf.traces.errors import ConfigError
from vf.traces.suggest import did_you_mean

Outcome = Literal["em", "f1"]


def search_rubric(outcome: Outcome = "em", free_calls: int | str = 0) -> Rubric:
    """Return a rubric: exact match or token F1, less what a poor search costs.

    Penalties, with their weights: calls beyond the free ones 0.2, repeated queries 0.1, nothing
    opened 0.2, answered without evidence 0.3, wrong tool calls 0.1; together at most half of the
    outcome. Whether the answer had the form that is asked for is a metric, ``format``.

    Args:
        outcome: ``em`` (:func:`~vf.rubrics.answers.answer_em`) or ``f1``
            (:func:`~vf.rubrics.answers.answer_f1`).
        free_calls: How many calls cost nothing, or the key of ``task.info`` that holds it.

    Raises:
        ConfigError: There is no such outcome.
    """
    scorers = {"em": answer_em, "f1": answer_f1}
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
            "format": answered,
            "em": answer_em,
            "f1": overlap,
            "searches": searches,
            "opened": documents_opened,
        },
    )
