"""The flags that follow from the run: adapters that have a place, and GPUs that are all used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.inference.vllm.stand_in_engine import Standing
from vf.inference.settings import VllmSettings
from vf.inference.supports import TIES
from vf.inference.vllm.check_settings import check_divided, check_settings
from vf.inference.vllm.server_args import (
    given,
    parallel_args,
    returning_experts,
    returning_supports,
)
from vf.runtime.errors import ConfigError


@pytest.mark.parametrize("versions", [1, 2, 5])
def test_each_version_that_may_be_in_use_has_a_place(
    stand: Callable[..., Standing], versions: int
) -> None:
    standing = stand(versions=versions).start()
    assert standing.journal.flag("--max-loras") == str(versions)
    assert standing.journal.flag("--max-cpu-loras") == str(versions + 1)


@pytest.mark.parametrize(
    ("gpus", "args", "replicas"),
    [
        (None, {}, None),
        ([0], {}, None),
        ([0, 1, 2, 3], {}, 4),
        ([0, 1, 2, 3], {"tensor_parallel_size": 2}, 2),
        ([0, 1, 2, 3], {"tensor-parallel-size": 4}, None),
        ([0, 1, 2, 3], {"tensor_parallel_size": 2, "--pipeline-parallel-size": 2}, None),
        ([0, 1, 2, 3], {"tensor_parallel_size": 2, "data_parallel_size": 2}, 2),
        (None, {"data_parallel_size": 2}, 2),
        ([], {}, None),
    ],
)
def test_all_gpus_are_used(
    gpus: list[int] | None, args: dict[str, Any], replicas: int | None
) -> None:
    made = parallel_args(VllmSettings(gpus=gpus, args=args))
    if replicas is None:
        assert made == {}
    else:
        # Several API servers would not know of each other's adapters.
        assert made == {"data_parallel_size": replicas, "api_server_count": 1}


@pytest.mark.parametrize(
    ("settings", "top_ks", "most"),
    [
        ({}, [0], None),
        ({}, [5, 12], None),
        ({}, [0, 20], 20 + TIES),
        ({"args": {"max-logprobs": 99}}, [20], 99),
        ({"base_url": "http://127.0.0.1:8000/v1"}, [20], None),
    ],
)
def test_a_server_may_tell_as_many_logprobs_as_top_k_needs(
    settings: dict[str, Any], top_ks: list[int], most: int | None
) -> None:
    assert given(returning_supports(VllmSettings(**settings), top_ks)).get("max_logprobs") == most


@pytest.mark.parametrize("settings", [{"replicas": 2}, {"gpus_per_replica": 2}])
def test_servers_that_would_all_use_every_gpu_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"each would use all; name 2 or more with inference\.g"):
        check_divided(VllmSettings(**settings), cpu=False)
    check_divided(VllmSettings(**settings), cpu=True)
    check_divided(VllmSettings(**settings, gpus=[2, 3]), cpu=False)


@pytest.mark.parametrize(
    ("gpus", "args", "said"),
    [
        ([0, 1, 2], {"tensor_parallel_size": 2}, "names 3 GPUs, but the server would use 2: "),
        ([0, 1], {"tensor_parallel_size": 4}, r"inference\.args\.tensor_parallel_size = 4\."),
        ([0, 1], {"data_parallel_size": 4}, r"inference\.args\.data_parallel_size = 4\."),
        ([0, 1], {"pipeline_parallel_size": "2"}, "pipeline_parallel_size = '2' is not a whole"),
        (None, {"api_server_count": 2}, r"inference\.args\.api_server_count is for vf-rl to set"),
    ],
)
def test_sizes_that_do_not_fit_the_gpus_are_named_before_anything_starts(
    gpus: list[int] | None, args: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_settings(VllmSettings(gpus=gpus, args=args))


def test_gpus_of_each_server_that_do_not_fit_its_sizes_are_named() -> None:
    settings = VllmSettings(gpus_per_replica=3, args={"tensor_parallel_size": 2})
    with pytest.raises(
        ConfigError, match=r"^inference\.gpus_per_replica = 3, but the server would"
    ):
        check_settings(settings, here=False)


def test_a_server_that_returns_experts_needs_a_gpu() -> None:
    given = VllmSettings(args={"seed": 1}, env={"A": "b"})
    found = returning_experts(given, cpu=False)
    assert found.args == {"seed": 1, "enable_return_routed_experts": True}
    assert found.env == {"A": "b", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    with pytest.raises(ConfigError, match=r"router_replay: .* needs a GPU"):
        returning_experts(given, cpu=True)
    running = VllmSettings(base_url="http://127.0.0.1:1/v1")
    assert returning_experts(running, cpu=True) == running
