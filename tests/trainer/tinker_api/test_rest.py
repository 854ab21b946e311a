"""Runs and checkpoints over HTTP, keys and tokens, and what the server refuses by name."""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.trainer.tinker_api.api_client import ApiClient, datum, running_api
from tests.trainer.tinker_api.test_training_requests import IDS, losses
from vf.inference.model_files import resolve_model
from vf.trainer.tinker_api.app import REFUSED
from vf.trainer.tinker_api.keys import Keys


def saved(api: ApiClient, model: str, path: str = "weights", **more: Any) -> str:
    """Save a model, and return the checkpoint's path."""
    begun = api.begin("save_weights", model, path=path, **more)
    text: str = api.result(begun)["path"]
    return text


def test_checkpoints_are_listed_expire_and_are_deleted(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = api.model()
    one = saved(api, model, "one", user_metadata={"note": "first"})
    saved(api, model, "two", ttl_seconds=7200)
    listed = api.http.get(f"/api/v1/training_runs/{model}/checkpoints").json()["checkpoints"]
    assert [entry["checkpoint_id"] for entry in listed] == ["weights/two", "weights/one"]
    assert listed[1]["user_metadata"] == {"note": "first"}
    assert listed[0]["expires_at"] is not None
    about = api.http.get(f"/api/v1/training_runs/{model}").json()
    assert about["last_checkpoint"]["checkpoint_id"] == "weights/two"
    assert (about["base_model"], about["lora_rank"]) == ("tiny", 4)
    every = api.http.get("/api/v1/checkpoints", params={"limit": 1, "offset": 1}).json()
    assert [entry["checkpoint_id"] for entry in every["checkpoints"]] == ["weights/one"]
    assert every["cursor"]["total_count"] >= 2

    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 8000)
    assert "no such checkpoint" in api.refused(
        "weights_info", {"tinker_path": one.replace("one", "two")}, 404
    )
    base = f"/api/v1/training_runs/{model}/checkpoints/weights/one"
    assert api.http.put(f"{base}/ttl", json={"ttl_seconds": 60}).status_code == 204
    assert api.http.put(f"{base}/ttl", json={"ttl_seconds": None}).status_code == 204
    assert api.http.delete(base).status_code == 204
    assert api.http.delete(base).status_code == 404


def test_a_name_is_taken_once_unless_it_is_to_be_overwritten(api: ApiClient) -> None:
    model = api.model()
    path = saved(api, model, "one")
    again = api.result(api.begin("save_weights", model, path="one"))
    assert "overwrite=True replaces it" in again["error"]
    losses(api, model, 2)
    expected = api.forward(model, [datum(IDS)])
    assert saved(api, model, "one", overwrite=True) == path
    api.result(api.begin("load_weights", model, path=path, optimizer=False))
    assert api.forward(model, [datum(IDS)]) == expected


@pytest.mark.slow
def test_a_download_is_what_peft_loads(api: ApiClient, tmp_path: Path) -> None:
    model = api.model()
    losses(api, model, 3)
    saved(api, model, "one")
    expected = api.forward(model, [datum(IDS)])[0]
    url = f"/api/v1/training_runs/{model}/checkpoints/weights/one/archive"
    answer = api.http.get(url, follow_redirects=True)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        tar.extractall(tmp_path, filter="data")
    module = AutoModelForCausalLM.from_pretrained(resolve_model("tiny"), dtype=torch.float32)
    module = PeftModel.from_pretrained(module, str(tmp_path))
    with torch.no_grad():
        logprobs = module(input_ids=torch.tensor([IDS[:-1]])).logits[0].log_softmax(-1)
    found = logprobs.gather(1, torch.tensor(IDS[1:])[:, None])[:, 0].tolist()
    assert found == pytest.approx(expected, abs=1e-4)


def test_a_server_with_a_key_asks_for_it(tmp_path: Path) -> None:
    with running_api(tmp_path, "sk-right") as api:
        model = api.model()
        saved(api, model, "one")
        url = f"/api/v1/training_runs/{model}/checkpoints/weights/one/archive"
        link = api.http.get(url).headers["location"]
        token = api.post("auth/token", {})["jwt"]
        with httpx.Client(base_url=api.http.base_url) as other:
            for headers in ({}, {"X-API-Key": "sk-wrong"}, {"X-API-Key": token[:-1] + "?"}):
                refused = other.get("/api/v1/sessions", headers=headers)
                assert refused.status_code == 401
                assert "the key is wrong or missing" in refused.json()["error"]["message"]
            assert other.get(link).status_code == 200
            assert other.get(link[:-4] + "0000").status_code == 401
            assert other.get("/api/v1/sessions?signature=x").status_code == 401
            assert other.get("/api/v1/sessions", headers={"X-API-Key": token}).status_code == 200
            bearer = {"Authorization": "Bearer sk-right"}
            assert other.get("/api/v1/sessions", headers=bearer).status_code == 200


def test_a_token_outlives_a_server_with_the_same_key_and_no_more_than_a_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from starlette.requests import Request

    def accepts(keys: Keys, given: str) -> bool:
        scope = {"type": "http", "headers": [(b"x-api-key", given.encode())], "query_string": b""}
        return keys.accept(Request(scope))

    token = Keys("tml-a").token()
    assert accepts(Keys("tml-a"), token)
    assert not accepts(Keys("tml-b"), token)
    assert not accepts(Keys("tml-a"), "a.b")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 25 * 3600)
    assert not accepts(Keys("tml-a"), token)


@pytest.mark.parametrize("path", REFUSED)
def test_what_is_not_offered_is_refused_by_name(api: ApiClient, path: str) -> None:
    assert "does not offer" in api.refused(path, {}, 404)


def test_unknown_paths_and_wrong_bodies_are_refused(api: ApiClient) -> None:
    assert "has no POST /api/v1/nothing" in api.refused("nothing", {}, 404)
    assert "is unknown" in api.refused("retrieve_future", {"request_id": "x"}, 404)
    headers = {"Content-Type": "application/x-protobuf"}
    for raw in (b"\x0a", b"\xff\xff", b"\x0a\x02\xff\xff", b"\x0f"):
        answer = api.http.post("/api/v1/forward_backward", content=raw, headers=headers)
        assert answer.status_code == 400
    answer = api.http.post(
        "/api/v1/create_session", content=b"{", headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422
    large = b'{"tags": ["' + b"x" * (65 * 2**20) + b'"]}'
    answer = api.http.post(
        "/api/v1/create_session", content=large, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413
    assert "the body has more than 67,108,864 bytes" in answer.json()["error"]["message"]
    assert api.http.get("/api/v1/training_runs", params={"limit": "x"}).status_code == 422


def test_a_session_that_is_silent_ends(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    session = api.session()
    model = api.model(session)
    monkeypatch.setattr("vf.trainer.tinker_api.registry.SESSION_SECONDS", -1.0)
    other = api.session()
    monkeypatch.undo()
    assert "is unknown" in api.refused("session_heartbeat", {"session_id": session}, 404)
    assert "its session ended" in api.refused("get_info", {"model_id": model}, 404)
    assert api.post("session_heartbeat", {"session_id": other})


def test_a_model_can_be_unloaded(api: ApiClient) -> None:
    model = api.model()
    assert api.done("unload_model", {"model_id": model})["model_id"] == model
    assert "it was unloaded" in api.refused("get_info", {"model_id": model}, 404)


def test_metrics_have_a_line_for_each_model(api: ApiClient) -> None:
    model = api.model()
    losses(api, model, 2)
    text = api.http.get("/metrics").text
    assert f'vf:trained_steps_total{{model="{model}"}} 2' in text
    assert f'vf:trained_tokens_total{{model="{model}"}} {2 * (len(IDS) - 1)}' in text
    [line] = [line for line in api.registry.lines() if line.startswith(model)]
    assert ": 2 steps, " in line
