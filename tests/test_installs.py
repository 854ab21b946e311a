"""What `scripts/check_installs.py` resolves, and what it says of pip's refusals."""

from __future__ import annotations

import tomllib
from pathlib import Path

import check_installs
from check_installs import Combination, combinations, requirements, why
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_every_extra_is_resolved_alone_and_beside_the_trainer() -> None:
    extras = list(PROJECT["optional-dependencies"])
    found = [set(each.extras) for each in combinations(extras)]
    assert all({extra} in found for extra in extras)
    for extra in set(extras) - {"docs", "test", "dev"}:
        assert any(len(each) > 1 and each >= {"train", extra} for each in found), extra


def test_extras_that_name_others_are_replaced_by_what_they_ask_for() -> None:
    found = requirements(PROJECT, Combination(("dev",)))
    extras = PROJECT["optional-dependencies"]
    assert {*PROJECT["dependencies"], *extras["train"], *extras["docs"]} < set(found)
    assert not any(line.startswith("vf-rl[") for line in found)


def test_the_versions_of_vllm_are_those_that_the_bounds_allow() -> None:
    [wanted] = map(Requirement, PROJECT["optional-dependencies"]["vllm"])
    assert all(wanted.specifier.contains(version) for version in check_installs.VLLM)
    major, minor, _ = map(int, check_installs.VLLM[-1].split("."))
    assert not wanted.specifier.contains(f"{major}.{minor + 1}.0")


def test_a_conflict_names_both_requirements() -> None:
    said = """\
ERROR: Cannot install transformers<6 and >=5.20 and vllm==0.32.0 because these package versions \
have conflicting dependencies.

The conflict is caused by:
    The user requested transformers<6 and >=5.20
    vllm 0.32.0 depends on transformers<5.20.0 and >=5.16.1

To fix this you could try to:
"""
    assert why(said) == (
        "CONFLICT: The user requested transformers<6 and >=5.20; "
        "vllm 0.32.0 depends on transformers<5.20.0 and >=5.16.1"
    )
    assert why(
        "WARNING: x\nERROR: Could not find y\nERROR: No matching distribution found for y"
    ) == ("ERROR: No matching distribution found for y")
