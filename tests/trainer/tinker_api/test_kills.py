"""A server that is killed under a running loop: what was saved is there, bit for bit."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.trainer.commands.test_serve import serving
from tests.trainer.tinker_api.api_client import ApiClient, datum
from tests.trainer.tinker_api.test_training_requests import IDS

KILLS = 4


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], ApiClient]]:
    """Run the command; yield its process and a client."""
    with (
        serving("tiny", "--train", "--folder", str(folder)) as (process, printed),
        httpx.Client(base_url=printed["URL"], timeout=60) as http,
    ):
        yield process, ApiClient(SimpleNamespace(), http)  # type: ignore[arg-type]


def reached(api: ApiClient, model: str) -> Any:
    """Return what tells weights from others: log-probabilities."""
    return api.forward(model, [datum(IDS)])


def train(api: ApiClient, model: str, step: int) -> None:
    api.pass_(model, [datum(IDS)])
    api.step(model, rate=0.01 / (1 + step))


@pytest.mark.slow
def test_nothing_that_was_saved_is_lost_and_nothing_is_done_twice(tmp_path: Path) -> None:
    rng = random.Random(1)
    saved: list[tuple[str, int, Any]] = []  # path, steps and log-probabilities, as it was answered
    for _ in range(KILLS):
        with served(tmp_path) as (process, api):
            session, step = api.session(), 0
            if saved:
                path, step, expected = saved[-1]
                body = {"session_id": session, "model_seq_id": 0, "optimizer": True}
                model = api.done("load_weights", body | {"path": path})["model_id"]
                assert reached(api, model) == expected
                for older, *_ in saved[:-1]:
                    assert api.post("weights_info", {"tinker_path": older})["lora_rank"] == 4
            else:
                model = api.model(session)
            for _ in range(rng.randrange(1, 4)):
                train(api, model, step)
                step += 1
                begun = api.begin("save_weights", model, path=f"step-{step}")
                saved.append((api.result(begun)["path"], step, reached(api, model)))
            # Killed while a save and what follows it are under way.
            train(api, model, step)
            api.begin("save_weights", model, path="latest", overwrite=True)
            api.begin("optim_step", model, adam_params={"learning_rate": 0.1})
            process.send_signal(signal.SIGKILL)
            process.wait()
    # One that was never killed has been at the same weights.
    with served(tmp_path / "other") as (_, api):
        model = api.model()
        for _, step, expected in saved:
            train(api, model, step - 1)
            assert reached(api, model) == expected
