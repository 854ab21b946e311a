"""The code in the text about sandboxes runs, and its settings are valid."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.hosting.docker_source import DockerSource
from vf.sandbox.hosting.source import sandbox_source

TEXT = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    return str(found)


def test_the_python_runs(engine: Engine) -> None:
    exec(block("python"), {})


def test_the_settings_are_taken() -> None:
    settings = tomllib.loads(block("toml"))["env"]["args"]["sandbox"]
    source = sandbox_source(settings)
    assert isinstance(source, DockerSource)
    assert source.settings.bounds.pool == settings["pool"]
    assert source.settings.profile.packages == ("sympy",)
    assert source.settings.profile.limits.memory == settings["memory"]
