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
    """Queries that were asked before in this rollout, case and blanks aside.

    Range: [0, 1]; 0 without queries.

    Formula: (queries − different queries) / queries.

    Source: our own.

    Known ways to game it: add a word to each, which
    :func:`~vf.rubrics.penalties.extra_tool_calls` makes costly.

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

    Known ways to game it: open anything; :func:`without_evidence` asks whether it was of use.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
    """

    def opened_nothing(trace: Trace) -> float:
        return float(not search_record(trace)["opened"])

    return Penalty(opened_nothing, weight)


def without_evidence(weight: float = 0.3, documents: str = "documents") -> Penalty:
    """Documents that the answer rests on, and that the model never laid eyes on.

    Range: [0, 1].

    Formula: |needed − (found ∪ opened)| / |needed|. Where the task does not say what is needed: 1
    if no document was found or opened at all, else 0.

    Source: our own; the recall of the supporting facts of HotpotQA (Yang et al.,
    arXiv:1809.09600), as a penalty.

    Known ways to game it: ask for very many results a query, which the search tool's budget of
    tokens bounds; open documents by guessed ids, where these say what they are about.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
        documents: The key of ``task.info`` that holds the ids of the needed documents, if any.
    """

    def without_evidence(trace: Trace) -> float:
        record = search_record(trace)
        seen = {doc_id for found in record["found"] for doc_id in found} | set(record["opened"])
        needed = set(trace.task.info.get(documents, ()))
        return len(needed - seen) / len(needed) if needed else float(not seen)

    return Penalty(without_evidence, weight)


def search_record(trace: Trace) -> dict[str, Any]:
    """Return what was searched; nothing where a limit ended the rollout before the first step."""
    if trace.truncated and not trace.turns:
        return {"queries": [], "found": [], "opened": []}
    record: dict[str, Any] = trace.info["search"]
    return record
