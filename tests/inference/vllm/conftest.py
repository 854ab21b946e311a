"""Engines and servers that end with the test."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

with suppress(ModuleNotFoundError):  # without their packages the files here are skipped one by one
    import httpx

    from tests.inference.vllm.stand_in_engine import (
        COMMAND,
        ENCODED,
        EXECUTABLE,
        MODEL,
        Journal,
        NumberedWeights,
        Standing,
        StandingTogether,
    )
    from tests.waiting import wait_until
    from vf.inference.ports import choose_port
    from vf.inference.settings import VllmSettings
    from vf.inference.vllm import servers
    from vf.inference.vllm import vllm_engine as engine_module
    from vf.inference.vllm.replicated_engine import ReplicatedEngine, vllm_engine
    from vf.inference.vllm.server_args import Adapters
    from vf.inference.vllm.server_process import ServerProcess
    from vf.inference.vllm.vllm_engine import VllmEngine
    from vf.inference.vllm.weight_store import WeightStore


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """What the stand-in writes down."""
    return Journal(tmp_path / "journal.jsonl")


@pytest.fixture
def stand(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Standing]]:
    """Return a factory of engines, not started; ``how`` is how the stand-in misbehaves."""
    monkeypatch.setattr(servers, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(engine_module, "WATCH_SECONDS", 0.05)
    with ExitStack() as stack:

        def make(
            method: str = "lora",
            how: dict[str, Any] | None = None,
            *,
            model: str = MODEL,
            rank: int = 8,
            versions: int = 2,
            max_seq_len: int = 512,
            encoded: tuple[str, list[int]] = ENCODED,
            **settings: Any,
        ) -> Standing:
            if not settings.get("base_url"):
                settings.setdefault("executable", EXECUTABLE)
                settings["env"] = settings.get("env", {}) | variables(journal, how or {})
            weights = NumberedWeights(rank=rank)
            noted: list[str] = []
            engine = VllmEngine(
                VllmSettings(**settings),
                model,
                weights,
                WeightStore(weights, tmp_path / "published"),
                method=method,
                log_path=tmp_path / "logs" / "inference.log",
                max_seq_len=max_seq_len,
                adapters=Adapters(rank, versions) if method == "lora" else None,
                cpu=True,
                shared_gpu=False,
                encoded=encoded,
                note=noted.append,
            )
            stack.callback(engine.stop)
            return Standing(engine, weights, journal, tmp_path, method, noted)

        yield make


@pytest.fixture
def stand_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., StandingTogether]]:
    """Return a factory of engines made of several servers, not started."""
    monkeypatch.setattr(servers, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(engine_module, "WATCH_SECONDS", 0.05)
    with ExitStack() as stack:

        def make(
            method: str = "lora", how: dict[str, Any] | None = None, **settings: Any
        ) -> StandingTogether:
            every = Journal(tmp_path / "journal-{port}.jsonl")
            if "base_urls" not in settings:
                settings = {"executable": EXECUTABLE, "replicas": 3} | settings
                settings["env"] = variables(every, how or {})
            weights = NumberedWeights()
            noted: list[str] = []
            engine = vllm_engine(
                VllmSettings(**settings),
                MODEL,
                weights,
                method=method,
                folder=tmp_path / "published",
                log_path=tmp_path / "logs" / "inference.log",
                max_seq_len=512,
                adapters=Adapters(8, 2) if method == "lora" else None,
                cpu=True,
                shared_gpu=False,
                encoded=ENCODED,
                note=noted.append,
            )
            assert isinstance(engine, ReplicatedEngine)
            stack.callback(engine.stop)
            return StandingTogether(engine, weights, tmp_path, noted)

        yield make


@pytest.fixture
def serve(tmp_path: Path, journal: Journal) -> Iterator[Callable[..., str]]:
    """Return what starts a stand-in of somebody else's, with flags, and gives its base URL."""
    with ExitStack() as stack:

        def start(
            *words: str, name: str = MODEL, port: int = 0, separate: bool = False, **how: Any
        ) -> str:
            port = choose_port("127.0.0.1", port)
            command = [*COMMAND, "--port", str(port), "--served-model-name", name, *words]
            path = tmp_path / "journal-{port}.jsonl"
            env = os.environ | variables(Journal(path) if separate else journal, how)
            env |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
            stack.callback(ServerProcess(command, env, tmp_path / "theirs.log").stop)
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: _answers(f"{url}/health"))
            return f"{url}/v1"

        yield start


def variables(journal: Journal, how: dict[str, Any]) -> dict[str, str]:
    """Return the environment that the stand-in reads."""
    return {"STAND_IN_JOURNAL": str(journal.path), "STAND_IN": json.dumps(how)}


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, verify=False).status_code == 200
    except httpx.HTTPError:
        return False
