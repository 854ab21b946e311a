"""`vf-rl init` in every combination, in a clean venv: install, test, validate, evaluate, train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.environments.authoring.conftest import CleanVenv

pytestmark = pytest.mark.slow

COMBINATIONS = {
    "just-asks": [],
    "with-tools": ["--tools", "--prime-rl"],
    "own-agent": ["--agent"],
    "two-agents": ["--agents"],
    "in-sandbox": ["--sandbox"],
    "tools-in-sandbox": ["--tools", "--sandbox"],
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", COMBINATIONS)
def test_what_is_written_works_at_once(
    name: str, clean_venv: CleanVenv, request: pytest.FixtureRequest
) -> None:
    if "--sandbox" in COMBINATIONS[name]:
        request.getfixturevalue("containers")
    printed = clean_venv.run("vf-rl", "init", name, *COMBINATIONS[name])
    assert f"pip install -e '{name}[test]'" in printed
    clean_venv.install("-e", f"{name}[test]")
    tested = clean_venv.run("python", "-m", "pytest", name, "-p", "no:cacheprovider", "-q")
    assert " passed" in tested
    assert "skipped" not in tested
    if "--sandbox" not in COMBINATIONS[name]:  # there, its own tests have taken long enough for it
        assert f"{name} passed" in clean_venv.run("vf-rl", "eval", "--validate", name)
    settings = ["max_steps=2", "batch_size=4", "rollouts_per_example=2", "eval_examples=2"]
    overrides = [part for setting in settings for part in ("--set", setting)]
    clean_venv.run("vf-rl", f"{name}/{name}.toml", *overrides)
    assert steps(clean_venv.work / "runs" / f"{name}-1") == [1, 2]


def test_an_evaluation_needs_no_more_than_the_name(clean_venv: CleanVenv) -> None:
    clean_venv.run("vf-rl", "init", "at-once")
    clean_venv.install("-e", "at-once")
    printed = clean_venv.run("vf-rl", "eval", "at-once", "-n", "2")
    assert "no model was named (-m)" in printed
    assert (clean_venv.work / "evals" / "at-once-tiny" / "results.json").is_file()


def steps(run: Path) -> list[int]:
    """Return the steps that a run has trained."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(row["rollouts/failed"] == 0 for row in rows if "rollouts/failed" in row)
    return sorted({row["step"] for row in rows if "reward/mean" in row})
