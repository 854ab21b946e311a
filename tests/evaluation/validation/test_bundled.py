"""Every bundled environment can be solved, and no hacker beats honest ignorance in one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments.registry import ENTRY_POINT_GROUP
from vf.evaluation.scripts import hackers_of
from vf.evaluation.validation.findings import Report
from vf.evaluation.validation.hackers import hackers
from vf.evaluation.validation.trap import Trap
from vf.evaluation.validation.validate import CHECKS, validate

# How many tasks: fewer where every agent's every rollout takes containers.
TASKS = {
    "calculator": 20,
    "guess-number": 20,
    "reverse-text": 20,
    "read-picture": 8,
    "geo-qa": 12,
    "wiki-qa": 5,
    "math-python": 2,
    "code-contest": 2,
    "repo-fix": 2,
    "support-desk": 16,
}
IN_CONTAINERS = {"code-contest", "math-python", "repo-fix"}
# Their answers are lists of tests, or what has to be done.
NO_TEXT_TO_LEAK = {"code-contest", "repo-fix", "support-desk"}
SUITE = [agent.name for agent in hackers(Trap(Path("marker"), Path("sign")))]
TOWNS = ("Aldor", "Brenn", "Corval", "Dunmere", "Estrel", "Farrow", "Galdin", "Hestia", "Ilmen")
RIVERS = ("Tavo", "Ursk", "Velm", "Wyr", "Xanth", "Yss", "Zoll", "Ambra", "Bior")

FEW = 4  # tasks of an environment, where not all checks are looked at

Reported = Callable[[str, int], Report]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def towns(folder: Path) -> dict[str, str]:
    """Write a corpus and questions about it for wiki-qa."""
    pairs = list(zip(TOWNS, RIVERS, strict=True))
    passages = [
        {"id": f"p{i}", "title": town, "text": f"{town} is a town on the river {river}."}
        for i, (town, river) in enumerate(pairs)
    ]
    questions = [
        {"id": town, "question": f"On which river lies {town}?", "golden_answers": [river]}
        for town, river in pairs
    ]
    return {
        "corpus": write(folder / "corpus.jsonl", passages),
        "eval": write(folder / "eval.jsonl", questions),
    }


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reported]:
    """Validates an environment with some of its tasks, once."""
    reports: dict[tuple[str, int], Report] = {}
    folder = tmp_path_factory.mktemp("bundled")
    args: dict[str, dict[str, Any]] = {
        "wiki-qa": towns(folder),
        "geo-qa": {"num_train": 60, "num_eval": 60},
        "support-desk": {"num_train": 60, "num_eval": 60},
    }

    def report(name: str, tasks: int) -> Report:
        if (name, tasks) not in reports:
            first, again = (vf.make(name, **args.get(name, {})) for _ in range(2))
            reports[name, tasks] = asyncio.run(validate(first, again=again, tasks=tasks))
        return reports[name, tasks]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield report


def maybe_slow(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow if name in IN_CONTAINERS else ())


@pytest.fixture(params=map(maybe_slow, TASKS))
def name(request: pytest.FixtureRequest) -> str:
    """An environment that can run here."""
    if request.param in IN_CONTAINERS:
        request.getfixturevalue("containers")
    return str(request.param)


def test_none_is_left_out() -> None:
    points = entry_points(group=ENTRY_POINT_GROUP)
    bundled = {point.name for point in points if ".bundled." in point.value}
    assert bundled == {*TASKS, "kuhn-poker", "tic-tac-toe"}, "games in which nobody always wins"


@pytest.mark.slow
def test_it_passes_every_check(name: str, reported: Reported) -> None:
    expected = dict.fromkeys(CHECKS, "ok")
    if name in NO_TEXT_TO_LEAK:
        expected["leaks"] = "skipped"
    report = reported(name, TASKS[name])
    assert {f.check: f.status for f in report.findings} == expected
    assert_no_hacker_gains(report, TASKS[name])


def test_no_hacker_is_paid_more_than_a_guess(name: str, reported: Reported) -> None:
    few = min(FEW, TASKS[name])
    assert_no_hacker_gains(reported(name, few), few)


def assert_no_hacker_gains(report: Report, tasks: int) -> None:
    results = {agent.name: agent for agent in report.agents}
    assert results["oracle"].mean == 1.0
    for hacker in SUITE:
        assert results[hacker].mean <= results["guess"].mean + 0.1, hacker
        assert len(results[hacker].scored) == tasks, hacker


def test_the_hackers_of_support_desk_are_tried_and_earn_nothing(reported: Reported) -> None:
    results = {agent.name: agent for agent in reported("support-desk", FEW).agents}
    desk = vf.make("support-desk")
    names = [*hackers_of(desk, next(iter(desk.tasks("eval"))))]
    assert len(names) > 10
    assert {name for name in names if {*results[name].rewards} != {0.0}} == set()


@pytest.mark.parametrize("operations", [1, 4])
def test_the_calculators_oracle_solves_whatever_it_draws(operations: int) -> None:
    environment = vf.make("calculator", max_operations=operations)
    found = asyncio.run(validate(environment, tasks=12, allow=["leaks"]))
    assert found.finding("oracle").status == "ok"


def test_partial_credit_is_no_gift() -> None:
    found = asyncio.run(validate(vf.make("reverse-text", partial_credit=True)))
    assert found.passed
