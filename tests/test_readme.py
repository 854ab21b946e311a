"""The README's code runs, straight from the text."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import vf
from vf.trainer.settings.load_config import parse_config

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_python_blocks_run() -> None:
    scope: dict[str, object] = {}
    code = blocks("python")
    assert len(code) == 2
    for block in code:
        exec(block, scope)
    assert "capitals" in vf.registered()


def test_the_toml_is_a_valid_config() -> None:
    (text,) = blocks("toml")
    assert parse_config(tomllib.loads(text))[0].env.id == "calculator"
