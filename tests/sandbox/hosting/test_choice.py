"""Which sandboxes "auto" means: those of an engine that answers, or else bubblewrap's."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments.runner import rollout
from vf.inference.models.scripted_model import ScriptedModel
from vf.sandbox.bubblewrap.system import find_system
from vf.sandbox.commands.sandbox import main
from vf.sandbox.hosting.bubblewrap_source import BubblewrapSource
from vf.sandbox.hosting.docker_source import DockerSource
from vf.sandbox.hosting.source import sandbox_source
from vf.sandbox.source import NamedSource
from vf.sandbox.spec import SandboxSpec


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name a socket that is not there."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/engine.sock")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Name a socket that takes connections."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "e.sock"))
        listening.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/e.sock")
        yield


def backend(sandbox: Any = "auto") -> str:
    source = sandbox_source(sandbox)
    assert isinstance(source, NamedSource)
    return source.backend


@pytest.mark.usefixtures("engine")
def test_an_engine_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend() == "docker"
    assert backend({"pool": 3}) == "docker"
    assert isinstance(getattr(vf.make("math-python"), "source", None), DockerSource)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert backend() == "bubblewrap", "without the package, none can be talked to"


@pytest.mark.usefixtures("no_engine")
def test_otherwise_bubblewrap() -> None:
    assert backend() == "bubblewrap"
    assert backend({"backend": "auto", "memory": 2**28}) == "bubblewrap"
    source = sandbox_source({"pool": 3})
    assert isinstance(source, BubblewrapSource)
    assert source.settings.bounds.pool == 3


@pytest.mark.usefixtures("no_engine")
def test_what_only_containers_have_means_docker() -> None:
    assert backend({"image": "mine"}) == "docker"
    assert backend({"packages": ["sympy"]}) == "docker"


def test_an_engine_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("tcp://10.255.255.1:2375", "ssh://nobody@nowhere.invalid", "no address"):
        monkeypatch.setenv("DOCKER_HOST", host)
        assert backend() == "docker"


def test_other_systems_have_docker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/engine.sock")
    monkeypatch.setattr("sys.platform", "darwin")
    assert backend() == "docker"


@pytest.mark.usefixtures("no_engine")
def test_an_error_names_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    find_system.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(vf.ConfigError) as caught:
        asyncio.run(sandbox_source("auto").check())
    assert "needs the program bwrap: on Debian and Ubuntu, apt install" in str(caught.value)
    assert "/nowhere/engine.sock: No such file" in str(caught.value)
    assert "apt-get install docker.io" in str(caught.value)


@pytest.mark.usefixtures("no_engine")
def test_a_task_with_an_image_says_that_it_needs_an_engine() -> None:
    with pytest.raises(vf.ConfigError) as caught:
        sandbox_source("auto").check_spec(SandboxSpec(image="theirs"))
    assert "image = 'theirs'" in str(caught.value)
    assert "/nowhere/engine.sock: No such file" in str(caught.value)


@pytest.mark.bubblewrap
@pytest.mark.usefixtures("no_engine")
def test_trace_and_doctor_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    environment = vf.make("math-python")
    task = next(iter(environment.tasks("eval")))
    trace = asyncio.run(rollout(environment, task, ScriptedModel(["<answer>1</answer>"])))
    assert trace.info["sandbox"] == "bubblewrap"
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "bubblewrap, since no container engine is here: /nowhere/engine.sock" in said
