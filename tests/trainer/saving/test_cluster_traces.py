"""The checks of a run whose parts were killed find what they are there for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_traces import Seen, check_counts, check_errors, spans, steps

from vf.traces.store import TraceStore
from vf.traces.task import Task
from vf.traces.trace import Failure, Origin, Trace

STEPS, GROUPS, ROLLOUTS = 2, 2, 3


def make(step: int, group: int, rollout: int) -> Trace:
    task = Task(f"t{group}", "Say it.")
    return Trace(environment="e", task=task, seed=0, origin=Origin(step, group, rollout))


def whole() -> dict[int, list[Trace]]:
    """Return the traces of a run in which nothing is wrong."""
    return {
        step: [
            make(step, group, rollout)
            for group in range((step - 1) * GROUPS, step * GROUPS)
            for rollout in range(ROLLOUTS)
        ]
        for step in range(1, STEPS + 1)
    }


def twice(traces: dict[int, list[Trace]]) -> None:
    traces[2].append(traces[2][0])


def done_over(traces: dict[int, list[Trace]]) -> None:
    traces[2].append(make(2, 3, 0))


def missing(traces: dict[int, list[Trace]]) -> None:
    del traces[1][-1]


def a_group_missing(traces: dict[int, list[Trace]]) -> None:
    del traces[1][:ROLLOUTS]


def a_step_missing(traces: dict[int, list[Trace]]) -> None:
    del traces[2]


def misplaced(traces: dict[int, list[Trace]]) -> None:
    traces[1].append(traces[2].pop())


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (twice, "is there 2 times"),
        (done_over, "group 3 has the rollouts {0: 2, 1: 1, 2: 1}"),
        (missing, "group 1 has the rollouts {0: 1, 1: 1}"),
        (a_group_missing, "the groups are not those from 0 to 2: [1, 2, 3]"),
        (a_step_missing, "step 2 has no traces"),
        (misplaced, "in step 1 is of Origin(step=2"),
    ],
)
def test_rollouts_that_are_lost_or_counted_twice_are_found(
    spoil: Callable[[dict[int, list[Trace]]], None], said: str
) -> None:
    traces = whole()
    assert check_counts(traces, rollouts=ROLLOUTS, most=STEPS) == []
    spoil(traces)
    assert said in "\n".join(check_counts(traces, rollouts=ROLLOUTS, most=STEPS))


def test_a_trace_that_was_on_disk_must_stay_as_it_was(tmp_path: Path) -> None:
    store, trace = TraceStore(tmp_path / "traces" / "step-000001.jsonl"), make(1, 0, 0)
    with store:
        store.append(trace)
    store.path.write_bytes(store.path.read_bytes() + b'{"environment": "torn')
    seen = Seen()
    seen.look(tmp_path)
    assert list(seen.lines) == [trace.id]
    attic = tmp_path / "traces" / "superseded-1"
    attic.mkdir()
    store.path.rename(attic / store.path.name)
    assert seen.lost(tmp_path) == [], "it was put away, not lost"
    (attic / store.path.name).unlink()
    assert seen.lost(tmp_path) == [f"trace {trace.id} was lost"]
    trace.seed = 1
    with store:
        store.append(trace)
    assert seen.lost(tmp_path) == [f"trace {trace.id} was changed"]
    assert {step: len(found) for step, found in steps(tmp_path).items()} == {1: 1}


def test_what_was_killed_must_not_count_as_a_failure() -> None:
    trace = make(1, 0, 0)
    trace.error = Failure("model", "ModelError", "the server went away", "")
    [problem] = check_errors([trace, make(1, 0, 1)])
    assert "model: the server went away" in problem


def test_the_answers_of_a_branch_are_apart_by_their_turns() -> None:
    mask = [0, 1, 1, 1, 0, 0, 1]
    turns = [0, 0, 0, 1, 1, 2, 2]
    assert list(spans(mask, turns)) == [(1, 3), (3, 4), (6, 7)]
