"""Scoring of searches: process penalties, and the rubric for answers found by searching.

All read ``trace.info["search"]``, the typed record that the search tools write: ``queries`` as the
model wrote them, ``found`` (for each query, the ids of the documents shown) and ``opened`` (ids).
None of it is text that a model could imitate in a message.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from vf.rubrics.outcomes import exact, marked, token_f1
from vf.rubrics.penalties.effort import extra_tool_calls, tool_errors
from vf.rubrics.rubric import Penalty, Rubric
from vf.runtime.errors import ConfigError, RubricError, did_you_mean
from vf.traces.trace import Trace

Outcome = Literal["em", "f1"]
_stated = marked("Answer:")


def repeated_queries(weight: float = 0.1) -> Penalty:
    """Queries that repeat an earlier one of this rollout, ignoring case and spaces.

    Range: [0, 1]; 0 without queries.

    Formula: (queries − different queries) / queries.

    Source: our own.

    Known ways to game it: add a word to each, which :func:`extra_tool_calls` makes costly.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
    """

    def repeated_queries(trace: Trace) -> float:
        queries = [" ".join(query.casefold().split()) for query in search_record(trace)["queries"]]
        return 1.0 - len(set(queries)) / len(queries) if queries else 0.0

    return Penalty(repeated_queries, weight)


def opened_nothing(weight: float = 0.2) -> Penalty:
    """Answering without having opened any document.

    Range: 0 or 1.

    Formula: 1 if no document was opened, else 0.

    Source: our own.

    Known ways to game it: open anything; :func:`without_evidence` checks that it was useful.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
    """

    def opened_nothing(trace: Trace) -> float:
        return float(not search_record(trace)["opened"])

    return Penalty(opened_nothing, weight)


def without_evidence(weight: float = 0.3, documents: str = "documents") -> Penalty:
    """Documents that the answer needs and the model never saw.

    Range: [0, 1].

    Formula: |needed − (found ∪ opened)| / |needed|. If the task does not say what is needed: 1 if
        no document was found or opened at all, else 0.

    Source: our own; the recall of the supporting facts of HotpotQA (Yang et al.,
    arXiv:1809.09600), as a penalty.

    Known ways to game it: asking for very many results per query, which the search tool's token
        budget limits; opening documents by guessed ids, if these reveal their topic.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
        documents: The key of ``task.info`` that holds the ids of the needed documents, if any.
    """

    def without_evidence(trace: Trace) -> float:
        record = search_record(trace)
        seen = {doc_id for doc_ids in record["found"] for doc_id in doc_ids} | set(record["opened"])
        needed = set(trace.task.info.get(documents, ()))
        return len(needed - seen) / len(needed) if needed else float(not seen)

    return Penalty(without_evidence, weight)


def search_rubric(outcome: Outcome = "em", free_calls: int | str = 0) -> Rubric:
    """Return a rubric: exact match or token F1, reduced by penalties for a poor search.

    Penalties, with their weights: calls beyond the free ones 0.2, repeated queries 0.1, nothing
    opened 0.2, answered without evidence 0.3, wrong tool calls 0.1; together at most half of the
    outcome. The metric ``format`` says whether the answer had the requested form; ``searches`` and
    ``opened`` count queries and different documents.

    Args:
        outcome: ``em`` for exact match, ignoring case, punctuation and articles
            (:func:`~vf.rubrics.outcomes.text.exact`), or ``f1``
            (:func:`~vf.rubrics.outcomes.text.token_f1`).
        free_calls: Calls that cost nothing: a number, or the key of ``task.info`` that holds it.

    Raises:
        ConfigError: If there is no such outcome.
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
            "format": _form,
            "em": em,
            "f1": token_f1(allow_longer=True, extract=_stated),
            "searches": lambda trace: float(len(search_record(trace)["queries"])),
            "opened": lambda trace: float(len(set(search_record(trace)["opened"]))),
        },
    )


def _form(trace: Trace) -> float:
    """1 if the last message states one answer in the requested form, else 0."""
    return float([bool(text) for text in _stated(trace.reply)] == [True])


def search_record(trace: Trace) -> dict[str, Any]:
    """Return the record of the search; empty if a limit ended the rollout before the first step.

    Raises:
        RubricError: If there is none; the message says how the environment is to keep it.
    """
    if trace.truncated and not trace.turns:
        return {"queries": [], "found": [], "opened": []}
    if "search" not in trace.info:
        raise RubricError(
            f"environment {trace.environment!r}: its rubric reads what was searched, but the trace "
            "has no record of it; give it tools = [vf.search.SearchTools(...)], and end step with "
            "return vf.search.recorded(await self.run_tools(reply), self)"
        )
    record: dict[str, Any] = trace.info["search"]
    return record
