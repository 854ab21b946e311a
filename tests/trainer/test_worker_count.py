"""How many worker processes a run has, and what it says about it."""

from __future__ import annotations

from typing import Any

import pytest

import vf
from tests.trainer.configs import configured
from vf.runtime.errors import ConfigError
from vf.trainer.run.worker_count import worker_count

# What a program that is started registers, and no worker could import.
exec("vf.register('test-of-a-program', object)", {"vf": vf, "__name__": "__main__"})


def count(
    cores: int,
    env: str = "calculator",
    engine: str = "vllm",
    containers: int | None = None,
    at_once: int = 512,
    cluster: str = "local",
    **rollouts: Any,
) -> Any:
    config = configured(
        {"max_concurrent": at_once},
        env={"id": env},
        inference={"engine": engine},
        rollouts=rollouts,
        cluster={"backend": cluster},
    )
    return worker_count(config, cores, containers)


@pytest.mark.parametrize(
    ("cores", "at_once", "expected"),
    [(2, 64, 0), (7, 512, 0), (8, 1, 1), (64, 64, 2), (63, 512, 7), (64, 512, 8), (224, 9999, 8)],
)
def test_by_default_workers_follow_the_cores_and_the_rollouts(
    cores: int, at_once: int, expected: int
) -> None:
    assert count(cores, at_once=at_once)[0] == expected


def test_on_a_cluster_the_cores_of_this_machine_do_not_matter() -> None:
    assert count(1, cluster="ray", at_once=96)[0] == 3


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
