"""The rubric of environments that search: its parts, and what it takes at most."""

from __future__ import annotations

import asyncio

import pytest

import vf
from tests.rubrics.one_answer import answered
from vf.rubrics.penalties.search import search_rubric
from vf.traces.trace import ToolEvent


def trace_of(queries: list[str], found: list[list[str]], opened: list[str]) -> vf.Trace:
    record = {"queries": queries, "found": found, "opened": opened, "index": "i"}
    task = vf.Task("t", "p", answer="x", info={"documents": ["a"]})
    return vf.Trace("e", task, 0, info={"search": record})


def metric(name: str, trace: vf.Trace) -> object:
    return search_rubric().metrics[name](trace)


def test_metrics_count_queries_and_different_documents() -> None:
    trace = trace_of(["x", "x"], [[], ["a"]], ["a", "b", "a"])
    assert (metric("searches", trace), metric("opened", trace)) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("Answer: Paris", True),
        ("I found it.\nAnswer:  New York \nBye.", True),
        ("**Answer:** Paris", True),
        ("Answer:", False),
        ("Answer:\nParis", False),
        ("answer: Paris", False),
        ("Paris", False),
        ("", False),
        ("Answer: Paris\nAnswer: London", False),
        ("Answer: Paris\nAnswer:", False),
        ("Answer: Paris Answer: Paris", False),
    ],
)
def test_the_form_is_one_answer_on_one_line(text: str, stated: bool) -> None:
    assert metric("format", answered(text, "x")) == float(stated)


def test_the_rubric_of_a_search_takes_at_most_half() -> None:
    trace = trace_of(["q"] * 9, [[]] * 9, [])
    trace.messages = [vf.Message("assistant", "Answer: x")]
    trace.tool_events = [ToolEvent(0, str(n), "search", "rejected") for n in range(9)]
    score = asyncio.run(search_rubric("em").score(trace))
    assert (score.outcome, score.reward) == (1.0, 0.5)
    assert set(score.penalties) == {
        "extra_tool_calls",
        "repeated_queries",
        "opened_nothing",
        "without_evidence",
        "tool_errors",
    }
    assert set(score.metrics) == {"format", "em", "f1", "searches", "opened"}


def test_an_unknown_outcome_is_a_config_error() -> None:
    with pytest.raises(vf.ConfigError, match="scored by em or f1, not 'f2'"):
        search_rubric("f2")  # type: ignore[arg-type]
