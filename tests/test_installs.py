"""What `scripts/check_installs.py` resolves, and what it says of a conflict."""

from __future__ import annotations

import tomllib
from pathlib import Path

import check_installs
import pytest
from check_installs import Combination, combinations, resolve
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_every_extra_is_resolved_alone_and_beside_the_trainer() -> None:
    extras = list(PROJECT["optional-dependencies"])
    found = [set(each.extras) for each in combinations(extras)]
    assert all({extra} in found for extra in extras)
    for extra in set(extras) - {"docs", "test", "dev"}:
        assert any(len(each) > 1 and each >= {"train", extra} for each in found), extra


def test_the_versions_of_vllm_are_those_that_the_bounds_allow() -> None:
    [wanted] = map(Requirement, PROJECT["optional-dependencies"]["vllm"])
    assert all(wanted.specifier.contains(version) for version in check_installs.VLLM)
    major, minor, _ = map(int, check_installs.VLLM[-1].split("."))
    assert not wanted.specifier.contains(f"{major}.{minor + 1}.0")


def test_a_conflict_names_both_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two packages in files, so that no index is asked."""
    project = '[project]\nname = "{}"\nversion = "1"\ndependencies = {}\n'
    extras = '[project.optional-dependencies]\nold = ["numpy<1", "numpy>2"]\n'
    (tmp_path / "pyproject.toml").write_text(project.format("mine", "[]") + extras)
    monkeypatch.setattr(check_installs, "ROOT", tmp_path)
    good, said = resolve(Combination(("old",)), "torch==2.13.0")
    assert not good
    assert all(requirement in said for requirement in ("numpy<1", "numpy>2"))
