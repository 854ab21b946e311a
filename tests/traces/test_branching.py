"""Branches and forks, counted over rollouts."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

import vf
from tests.traces.agents import delegated
from vf.evaluation.result_table import print_results
from vf.evaluation.tally import Tally
from vf.traces.branching import Branching
from vf.traces.trace import Fork, Turn
from vf.trainer.run.group import Group
from vf.trainer.watching.metrics import rollout_metrics


def plain(**changes: Any) -> vf.Trace:
    """Return the rollout of an agent with one conversation."""
    trace = delegated()
    trace.branches, trace.forks, trace.lineages = trace.branches[:1], [], []
    return replace(trace, **changes)


def test_a_context_that_grows_is_one_branch_and_costs_nothing() -> None:
    found = Branching.of([plain(), plain(branches=[]), plain(turns=[], branches=[])])
    assert (found.rollouts, found.per_rollout, found.share) == (2, 1.0, 0.0)
    assert Branching().per_rollout == 1.0


def test_conversations_count_where_there_are_no_tokens() -> None:
    text = delegated()
    text.branches = []
    assert Branching.of([text, plain()]).per_rollout == 2.0


def test_training_and_evaluation_measure_the_same() -> None:
    traces = [delegated(), plain()]
    metrics = rollout_metrics([Group(traces[0].task, traces)])
    assert metrics["branches_per_rollout"] == 2.0
    assert metrics["forks_per_rollout"] == 1.0
    assert (metrics["forks/conversation"], metrics["forks/parallel"]) == (0.5, 0.5)
    tally = Tally("program", "m", 1, 2)
    for trace in traces:
        tally.add(trace)
    found = tally.summary().to_dict()
    assert found["branches_per_rollout"] == 2.0
    assert found["forks"] == {"conversation": 1, "parallel": 1}
    assert found["rewriting"] is None


def shown(trace: vf.Trace) -> str:
    """Return what `vf-rl eval` prints of one rollout."""
    tally = Tally("program", "m", 1, 1)
    tally.add(trace)
    console = Console(width=1000, file=io.StringIO())
    print_results([tally.summary()], console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_results_say_what_an_agent_rewrites_and_are_silent_of_one_branch() -> None:
    assert "branches" not in shown(plain())
    assert "branches per rollout: 3 (forks: conversation 1, parallel 1)" in shown(delegated())
    assert "begin a new context" not in shown(delegated())
    rewriting = delegated()
    rewriting.turns = [Turn(700, 5, "stop", 0.1)] * 3
    rewriting.forks = [Fork(turn, "the time differs", "rewritten") for turn in (1, 2)]
    assert (
        "100% of the calls begin a new context instead of extending one, most often because: the "
        "time differs. Each is computed from its beginning, 1,400 tokens a rollout"
    ) in shown(rewriting)
