"""How many worker processes a run has, and what it says about it."""

from __future__ import annotations

from typing import Any

import pytest

import vf
from vf.runtime.errors import ConfigError
from vf.trainer.run.worker_count import worker_count
from vf.trainer.settings.load_config import parse_config

# What a program that is started registers, and no worker could import.
exec("vf.register('test-of-a-program', object)", {"vf": vf, "__name__": "__main__"})


def count(
    cores: int,
    env: str = "calculator",
    engine: str = "vllm",
    containers: int | None = None,
    **rollouts: Any,
) -> Any:
    raw = {
        "model": "tiny",
        "env": {"id": env},
        "inference": {"engine": engine},
        "rollouts": rollouts,
    }
    return worker_count(parse_config(raw)[0], cores, containers)


@pytest.mark.parametrize(
    ("cores", "expected"), [(2, 0), (7, 0), (8, 1), (16, 2), (63, 7), (64, 8), (224, 8)]
)
def test_by_default_there_is_a_worker_for_every_8_cores(cores: int, expected: int) -> None:
    assert count(cores)[0] == expected


def test_by_default_there_is_none_beside_the_embedded_engine() -> None:
    assert count(64, engine="embedded")[0] == 0


@pytest.mark.parametrize("wanted", [0, 1, 12])
def test_the_settings_decide(wanted: int) -> None:
    for engine in ("embedded", "vllm"):
        assert count(4, engine=engine, workers=wanted)[0] == wanted


def test_an_environment_of_the_program_itself_stays_in_its_process() -> None:
    found, why = count(64, env="test-of-a-program")
    assert found == 0
    assert "its program registers 'test-of-a-program' itself" in why
    with pytest.raises(ConfigError, match=r"(?s)rollouts\.workers = 2.*a file of its own"):
        count(64, env="test-of-a-program", workers=2)


def test_each_worker_has_a_container() -> None:
    assert count(64, containers=8)[0] == 8
    assert count(64, containers=3) == (3, "one for each of sandbox.max_containers = 3")
    assert count(64, containers=3, workers=3)[0] == 3
    with pytest.raises(
        ConfigError, match=r"rollouts\.workers = 4, but sandbox\.max_containers = 3"
    ):
        count(64, containers=3, workers=4)
