"""What the page gets of evaluations: estimates, histograms, failures, and differences by task."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

import vf
from tests.traces.view.material import research
from vf.traces.trace import Failure
from vf.viewer.watch import Watch


def scored(task: str, reward: float | None) -> vf.Trace:
    trace = research()
    assert trace.score is not None
    trace.origin, trace.task.id = None, task
    trace.score.reward = trace.score.outcome = reward
    return trace


def store(file: Path, traces: Iterable[vf.Trace]) -> None:
    with vf.TraceStore(file) as out:
        for trace in traces:
            out.append(trace)


def results(folder: Path, traces: Iterable[vf.Trace], tasks: int = 2) -> Path:
    """Make the folder of an evaluation of two rollouts a task."""
    store(folder / "quiz" / "model" / "traces.jsonl", traces)
    size = {"rollouts_per_example": 2, "tasks": {"quiz": tasks}}
    (folder / "config.json").write_text(json.dumps({"size": size}))
    return folder


def test_an_evaluation_is_followed_while_it_runs(tmp_path: Path) -> None:
    folder = results(tmp_path / "one", [scored("a", 1.0), scored("a", 0.0)])
    watch = Watch([folder])
    [told] = dict(watch.scan())["evaluations"]["evaluations"]
    assert (told["name"], told["environment"]) == ("one/quiz/model", "quiz")
    assert (told["tasks"], told["rollouts"], told["scored"], told["missing"]) == (2, 4, 2, 2)
    assert told["reward"]["mean"] == 0.5
    assert told["pass_at"][2]["mean"] == 1.0
    assert told["pass_hat"][2]["mean"] == 0.0
    assert watch.scan() == []
    lost = scored("b", None)
    lost.error = Failure("model", "Timeout", "no answer after 31 s\nmore", "")
    store(folder / "quiz" / "model" / "traces.jsonl", [lost, scored("b", 1.0)])
    [told] = dict(watch.scan())["evaluations"]["evaluations"]
    assert (told["scored"], told["failed"], told["missing"]) == (3, 1, 0)
    assert told["reward"]["mean"] == 0.75
    assert [told["histogram"]["counts"][i] for i in (0, -1)] == [1, 2]
    assert told["failures"] == [
        {"stop": "terminated", "boundary": "", "error": "", "count": 1},
        {"stop": "terminated", "boundary": "model", "error": "no answer after # s", "count": 1},
    ]


def test_a_file_that_is_written_again_counts_once(tmp_path: Path) -> None:
    folder = results(tmp_path / "one", [scored("a", 1.0), scored("b", 0.0)])
    watch = Watch([folder])
    watch.scan()
    file = folder / "quiz" / "model" / "traces.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    (folder / "kept").write_bytes(lines[0] + b"no trace\n" + lines[1][:100])
    (folder / "kept").replace(file)
    [told] = dict(watch.scan())["evaluations"]["evaluations"]
    assert (told["scored"], told["reward"]["mean"]) == (1, 1.0)


def test_a_name_does_not_repeat_what_the_folder_says(tmp_path: Path) -> None:
    def names(*folders: Path) -> list[str]:
        told = dict(Watch(folders).scan())["evaluations"]["evaluations"]
        return [each["name"] for each in told]

    alone, more = tmp_path / "quiz-model", tmp_path / "more-quiz"
    results(alone, [scored("a", 1.0)])
    results(more, [scored("a", 1.0)])
    assert names(alone, more) == ["quiz-model", "more-quiz/model"]
    watch = Watch([alone])
    watch.scan()
    store(alone / "quiz" / "other" / "traces.jsonl", [scored("a", 1.0)])
    told = dict(watch.scan())["evaluations"]["evaluations"]
    assert [each["name"] for each in told] == ["quiz-model/model", "quiz-model/other"]


def test_two_are_compared_by_the_tasks_that_both_have(tmp_path: Path) -> None:
    one = results(tmp_path / "one", [scored(name, 0.0) for name in "abc"])
    other = scored("a", 0.5)
    other.task.prompt = "another question under the same id"
    two = results(tmp_path / "two", [scored("b", 0.5), scored("c", 1.0), scored("d", 1.0), other])
    differences = dict(Watch([one, two]).scan())["evaluations"]["differences"]
    a, b = (str(folder / "quiz" / "model" / "traces.jsonl") for folder in (one, two))
    assert differences[a][b]["mean"] == 0.75
    assert differences[b][a]["mean"] == -0.75
    assert differences[a][b]["tasks"] == 2
    low, high = differences[a][b]["low"], differences[a][b]["high"]
    assert (low, high) == (pytest.approx(-1.0), 1.0)  # two tasks say little


def test_held_out_evaluations_of_a_run_are_named_by_their_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step, reward in ((0, 0.0), (15, 1.0)):
        store(run / "traces" / f"eval-{step:06d}.jsonl", [scored("a", reward), scored("b", 0.5)])
    (run / "metrics.jsonl").write_text('{"step": 0}\n')
    told = dict(Watch([run]).scan())["evaluations"]["evaluations"]
    assert [(each["name"], each["step"]) for each in told] == [
        ("run, step 0", 0),
        ("run, step 15", 15),
    ]
    assert [each["reward"]["mean"] for each in told] == [0.25, 0.75]
    assert "evaluations" not in dict(Watch([run], evaluates=False).scan())
