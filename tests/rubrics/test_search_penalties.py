"""The penalties for searching against their formulas, written out naively."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vf
from tests.rubrics.traces import penalty_of
from vf.inference.model import LimitReached
from vf.rubrics.penalties import opened_nothing, repeated_queries, without_evidence
from vf.rubrics.penalties.search import search_rubric
from vf.runtime.errors import RubricError
from vf.traces.trace import StopReason

SETTINGS = settings(deadline=None, max_examples=25)
QUERIES = st.lists(
    st.sampled_from(["paris", "Paris", " PARIS ", "rome", "rome  city", "rome city"])
)
IDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=4)


def trace_of(
    queries: list[str] | None = None,
    found: list[list[str]] | None = None,
    opened: list[str] | None = None,
    **info: Any,
) -> vf.Trace:
    record = {"queries": queries or [], "found": found or [], "opened": opened or [], "index": "i"}
    return vf.Trace("e", vf.Task("t", "p", answer="x", info=info), 0, info={"search": record})


@given(QUERIES)
@SETTINGS
def test_repeated_queries_is_the_share_that_was_asked_before(queries: list[str]) -> None:
    asked: list[list[str]] = []
    again = 0
    for query in queries:
        words = query.lower().split()
        again += words in asked
        asked.append(words)
    expected = again / len(queries) if queries else 0.0
    assert penalty_of(repeated_queries(), trace_of(queries)) == pytest.approx(expected)


@given(IDS)
@SETTINGS
def test_opened_nothing_is_all_or_nothing(opened: list[str]) -> None:
    assert penalty_of(opened_nothing(), trace_of(opened=opened)) == (0.0 if opened else 1.0)


@given(st.lists(IDS, max_size=3), IDS, IDS)
@SETTINGS
def test_without_evidence_is_the_share_of_needed_documents_never_seen(
    found: list[list[str]], opened: list[str], needed: list[str]
) -> None:
    trace = trace_of(["q"] * len(found), found, opened, documents=needed)
    unseen = 0
    for doc_id in set(needed):
        shown = any(doc_id in ids for ids in found)
        unseen += not shown and doc_id not in opened
    nothing = not opened and not any(found)
    expected = unseen / len(set(needed)) if needed else float(nothing)
    assert penalty_of(without_evidence(), trace) == pytest.approx(expected)


def test_the_needed_documents_may_have_another_key_and_be_a_mapping() -> None:
    trace = trace_of(found=[["a"]], gold={"a": "Title", "b": "Other"})
    assert penalty_of(without_evidence(documents="gold"), trace) == 0.5


def test_a_rollout_that_a_limit_ended_before_its_first_answer_is_scored() -> None:
    late = vf.ScriptedModel([LimitReached(StopReason.MAX_SECONDS)])

    class Quiz(vf.Environment):
        rubric = search_rubric()

    trace = asyncio.run(vf.rollout(Quiz(), vf.Task("t", "p", ["a"]), late))
    assert trace.error is None
    assert trace.score is not None
    assert trace.score.reward == 0.0
    assert trace.score.penalties["repeated_queries"] == 0.0
    assert trace.score.penalties["opened_nothing"] == 1.0
    assert trace.score.metrics["searches"] == trace.score.metrics["opened"] == 0.0


@pytest.mark.parametrize("penalty", [repeated_queries, opened_nothing, without_evidence])
def test_a_trace_without_a_record_is_an_error_and_never_a_penalty(penalty: Any) -> None:
    trace = vf.Trace("e", vf.Task("t", "p"), 0)
    with pytest.raises(RubricError, match=r"tools = \[vf.search.SearchTools.*vf.search.recorded"):
        penalty_of(penalty(), trace)
