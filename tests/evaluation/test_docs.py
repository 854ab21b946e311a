"""The TOMLs that are shown, and shipped, can be run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from vf.evaluation.eval_config import parse_config
from vf.evaluation.run import prepare
from vf.runtime.toml import read_toml

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs" / "evals").glob("*.toml"))


def test_the_toml_in_the_page_is_a_valid_evaluation() -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    config = parse_config(tomllib.loads(block))
    assert [len(place.tasks) for place in prepare(config)] == [100, 50]
    assert config.limits.max_cost == 0.05


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.stem))
def test_the_shipped_evaluations_are_valid(path: Path) -> None:
    assert len(prepare(parse_config(read_toml(path)))) >= 3


def test_there_are_some() -> None:
    assert SHIPPED
