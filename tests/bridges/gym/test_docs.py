"""The code in the page about Gymnasium runs, straight from the text."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import vf
from vf.trainer.settings.load_config import parse_config

TEXT = (Path(__file__).parents[3] / "docs" / "gymnasium.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def test_none_is_overlooked() -> None:
    assert len(blocks("python")) == 6
    assert TEXT.count("```") == 2 * (6 + len(blocks("toml")))


@pytest.mark.parametrize("code", blocks("python"), ids=range(6))
def test_the_python_runs(code: str) -> None:
    exec(code, {"__name__": "docs"})


def test_the_toml_is_a_valid_config() -> None:
    (text,) = blocks("toml")
    config, _ = parse_config(tomllib.loads(text))
    assert vf.make(config.env[0].id, **config.env[0].args).max_turns == 8
