"""Process penalties for searching, computed from the typed record of what was searched and shown.

They read ``trace.info["search"]``, which the search tools' log writes: ``queries`` as the model
wrote them, ``found`` (for each query, the ids of the documents shown) and ``opened`` (ids). None of
it is text that a model could imitate in a message. Calls beyond those a task needs are
:func:`~vf.rubrics.penalties.extra_tool_calls`' business.
"""

from __future__ import annotations

from typing import Any

from vf.rubrics.rubric import Penalty
from vf.traces.trace import Trace


def repeated_queries(weight: float = 0.1) -> Penalty:
    """Share of the queries that were asked before in this rollout, case and blanks aside.

    Formula: (queries − different queries) / queries, 0 without queries. Known way to game it: add
    a word to each, which ``extra_tool_calls`` makes costly.
    """

    def repeated_queries(trace: Trace) -> float:
        queries = [" ".join(query.casefold().split()) for query in _record(trace)["queries"]]
        return 1.0 - len(set(queries)) / len(queries) if queries else 0.0

    return Penalty(repeated_queries, weight)


def opened_nothing(weight: float = 0.2) -> Penalty:
    """1 if no document was opened, 0 otherwise."""

    def opened_nothing(trace: Trace) -> float:
        return float(not _record(trace)["opened"])

    return Penalty(opened_nothing, weight)


def without_evidence(weight: float = 0.3, documents: str = "documents") -> Penalty:
    """Share of the documents that the answer rests on which the model never laid eyes on.

    Formula: |needed − (found ∪ opened)| / |needed|. Where the task does not say what is needed: 1
    if no document was found or opened at all, else 0. Known way to game it: ask for very many
    results a query; the search tool's budget of tokens bounds that.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
        documents: The key of ``task.info`` that holds the ids of the needed documents, if any.
    """

    def without_evidence(trace: Trace) -> float:
        record = _record(trace)
        seen = {doc_id for found in record["found"] for doc_id in found} | set(record["opened"])
        needed = set(trace.task.info.get(documents, ()))
        return len(needed - seen) / len(needed) if needed else float(not seen)

    return Penalty(without_evidence, weight)


def searches(trace: Trace) -> float:
    """How many queries were answered, for a metric."""
    return float(len(_record(trace)["queries"]))


def documents_opened(trace: Trace) -> float:
    """How many different documents were opened, for a metric."""
    return float(len(set(_record(trace)["opened"])))


def _record(trace: Trace) -> dict[str, Any]:
    record: dict[str, Any] = trace.info["search"]
    return record
