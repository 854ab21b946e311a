"""What is found behind paths, and what the page gets when it changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.viewer.pages import append, line, make_run
from vf.viewer.runs import RunReader, columns, names_of
from vf.viewer.watch import Event, Watch, find


def named(events: list[Event], name: str) -> list[Any]:
    return [data for each, data in events if each == name]


def test_a_folder_stands_for_all_runs_evaluations_and_traces_in_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "one")
    (run / "traces" / "superseded-1").mkdir()
    (run / "traces" / "superseded-1" / "step-000002.jsonl").touch()
    begun = tmp_path / "runs" / "begun"
    (begun / "traces").mkdir(parents=True)
    (begun / "config.toml").touch()
    cell = tmp_path / "results" / "quiz" / "model"
    cell.mkdir(parents=True)
    (tmp_path / "results" / "config.json").write_text("{}")
    (cell / "traces.jsonl").touch()
    alone = tmp_path / "alone.jsonl"
    alone.touch()
    found = find([tmp_path, alone, tmp_path / "nowhere"])
    assert found.runs == [begun, run]
    assert found.results == [tmp_path / "results"]
    assert found.traces == [
        alone,
        cell / "traces.jsonl",
        run / "traces" / "step-000001.jsonl",
    ]
    assert found.missing == [tmp_path / "nowhere"]


def test_lines_that_are_not_metrics_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "a": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
        file.write('{"step": 5, "large": 1' + "0" * 400 + ', "none": NaN, "list": [1]}\n')
        file.write('{"step": ' + '{"a":' * 100_000 + "}" * 100_000 + "}\n")
    append(run, line(6))
    [told] = named(Watch([run]).scan(), "run")
    assert told["columns"]["step"][-2:] == [5, 6]
    assert told["columns"]["large"][-2] is None
    assert told["columns"]["reward/mean"][-1] == 0.56


def test_only_what_is_new_is_sent(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    watch = Watch([run])
    first = watch.scan()
    assert [name for name, _ in first] == ["page", "traces", "run"]
    [told] = named(first, "run")
    assert (told["name"], told["from"], told["count"]) == ("one", 0, 4)
    assert told["columns"]["reward/mean"] == [None, 0.51, 0.52, 0.53]
    assert watch.scan() == []
    append(run, line(4))
    [told] = named(watch.scan(), "run")
    assert (told["from"], told["count"], told["columns"]["step"]) == (4, 5, [4])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rew')  # a line that is being written
    assert named(watch.scan(), "run")[0]["columns"] == {}
    with (run / "traces" / "step-000002.jsonl").open("w") as file:
        file.write("{}\n")
    [traces] = named(watch.scan(), "traces")
    assert len(traces["files"]) == 2
    assert [name for name, _ in watch.everything()] == ["page", "traces", "run"]
    assert named(watch.everything(), "run")[0]["columns"]["step"] == [0, 1, 2, 3, 4]


def test_a_line_that_is_written_again_replaces_what_was_sent(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    reader = RunReader(run, "one")
    assert reader.refresh() is not None
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[-1] = json.dumps(line(3, **{"eval/reward/mean": 0.875}))
    (run / "new").write_text("\n".join(lines) + "\n")
    (run / "new").replace(run / "metrics.jsonl")
    told = reader.refresh()
    assert told is not None
    assert (told["from"], told["count"]) == (3, 4)
    assert told["columns"]["eval/reward/mean"] == [0.875]
    (run / "metrics.jsonl").write_text(lines[0] + "\n")  # a run that was rewound
    told = reader.refresh()
    assert told is not None
    assert (told["from"], told["count"]) == (1, 1)


def test_a_run_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "quickstart-1")
    wanted = tmp_path / "runs" / "quickstart-2"
    watch = Watch([wanted])
    assert [name for name, _ in watch.scan()] == ["page", "traces"]
    [said] = watch.waits
    assert said == f"{wanted} does not exist yet. Did you mean 'quickstart-1'?"
    wanted.mkdir()
    assert named(watch.scan(), "page")[0]["missing"] == [
        f"{wanted} holds no run, evaluation or traces yet."
    ]
    make_run(wanted.parent / "made", 1).joinpath("metrics.jsonl").rename(wanted / "metrics.jsonl")
    events = watch.scan()
    assert named(events, "page")[0]["missing"] == []
    assert named(events, "run")[0]["count"] == 2


def test_values_that_are_no_numbers_are_left_out() -> None:
    nan = float("nan")
    assert columns([{"step": 1, "a": nan}, {"step": 2, "b": 1 / 3}, {"a": float("-inf")}]) == {
        "step": [1, 2, None],
        "a": [None, None, None],
        "b": [None, 0.333333, None],
    }


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/a", "runs/b"], ["a", "b"]),
        (["old/a", "new/a"], ["old/a", "new/a"]),
        (["x/old/a", "y/old/a"], ["x/old/a", "y/old/a"]),
    ],
)
def test_names_tell_runs_apart(paths: list[str], names: list[str]) -> None:
    assert names_of([Path(path) for path in paths]) == names
