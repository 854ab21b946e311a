"""What bounds a server: turns, queues, a full disk, and models that cannot be packed."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.inference.tiny_serving import load_model
from tests.trainer.tinker_api.api_client import ApiClient, datum, prompt
from tests.trainer.tinker_api.test_sampling_requests import base, request, snapshot
from tests.trainer.tinker_api.test_training_requests import IDS
from vf.runtime.errors import ConfigError
from vf.trainer.learning.model.forward import Forward
from vf.trainer.tinker_api.adapter import Adapter, AdapterShape
from vf.trainer.tinker_api.datums import Datum
from vf.trainer.tinker_api.losses import find_loss
from vf.trainer.tinker_api.passes import Passes


def held(api: ApiClient) -> threading.Event:
    """Have the thread that computes wait until the event is set."""
    event = threading.Event()
    api.registry._thread.submit(event.wait)
    return event


def test_models_take_turns(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has submitted ten requests does not keep another waiting for all of them."""
    busy, other = (api.model() for _ in range(2))
    order: list[str] = []
    real = Adapter.step

    def step(adapter: Adapter, params: Any) -> Any:
        [name] = [one.id for one in api.registry.tenants.values() if one.adapter is adapter]
        order.append(name)
        return real(adapter, params)

    monkeypatch.setattr(Adapter, "step", step)
    event = held(api)
    params = {"learning_rate": 0.0}
    begun = [api.begin("optim_step", busy, adam_params=params) for _ in range(10)]
    begun += [api.begin("optim_step", other, adam_params=params) for _ in range(3)]
    event.set()
    for request_id in begun:
        assert "metrics" in api.result(request_id)
    assert order.count(busy) == 10
    assert [place for place, name in enumerate(order) if name == other] == [1, 3, 5]


def test_a_step_goes_before_the_passes_of_others(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client samples meanwhile."""
    one, other = (api.model() for _ in range(2))
    order: list[str] = []
    run, step = Passes.run, Adapter.step

    def noted(name: str, real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            order.append(name)
            return real(*args, **options)

        return call

    monkeypatch.setattr(Passes, "run", noted("pass", run))
    monkeypatch.setattr(Adapter, "step", noted("step", step))
    event = held(api)
    body = {"data": [datum(IDS)], "loss_fn": "cross_entropy"}
    begun = [
        api.begin("forward_backward", name, forward_backward_input=body) for name in (one, other)
    ]
    begun.append(api.begin("optim_step", one, adam_params={}))
    event.set()
    for request_id in begun:
        assert "metrics" in api.result(request_id)
    assert order == ["pass", "step", "pass"]


def test_a_model_with_too_many_requests_is_to_wait(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf.trainer.tinker_api.registry.MOST_WAITING", 2)
    model = api.model()
    event = held(api)
    begun = [api.begin("optim_step", model, adam_params={}) for _ in range(2)]
    body = {"model_id": model, "seq_id": 3, "adam_params": {}}
    assert "wait already" in api.refused("optim_step", body, 429)
    event.set()
    for request_id in begun:
        api.result(request_id)
    assert api.done("optim_step", body)["metrics"] == {"grad_norm:mean": 0.0}


def test_models_and_samples_are_bounded(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = base(api)
    monkeypatch.setattr("vf.trainer.tinker_api.samplers.MOST_WAITING", 0)
    assert "to sample wait already" in api.refused("asample", request(sampler), 429)
    monkeypatch.setattr("vf.trainer.tinker_api.training.MOST_MODELS", 0)
    body = {"session_id": api.session(), "model_seq_id": 0, "base_model": "tiny"}
    message = api.refused("create_model", body | {"lora_config": {"rank": 1}})
    assert "unload one or end its session" in message
    monkeypatch.setattr("vf.trainer.tinker_api.registry.MOST_SESSIONS", 0)
    assert "sessions; end one first" in api.refused("create_session", {})


def alive(api: ApiClient) -> dict[str, int]:
    """Return how many objects there are of what tenants leave behind, after a wait for the thread.

    Other tests' tenants are among them.
    """
    registry = api.registry
    registry._thread.submit(gc.collect).result()
    counts = Counter(type(each).__name__ for each in gc.get_objects())
    kinds = ("Adapter", "Lora", "Tenant", "Sampler", "Session", "AdamW", "_Entry")
    return {kind: counts[kind] for kind in kinds} | {
        "resident": len(registry.snapshots._resident),
        "written": len(registry.snapshots._written),
        "files": len([*registry.snapshots._folder.iterdir()]),
        "runs": len([*registry.checkpoints.folder.iterdir()]),
    }


@pytest.mark.slow
@pytest.mark.gate
def test_a_hundred_tenants_leave_no_memory_behind(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf.trainer.tinker_api.registry.RESIDENT", 1)
    before = alive(api)
    for number in range(100):
        session = api.session()
        model = api.model(session, rank=2, train_unembed=False)
        api.pass_(model, [datum(IDS)])
        api.step(model)
        for seq in range(2):  # one of them goes to the disk
            sampler = snapshot(api, model, seq)
        if number % 10 == 0:
            api.done("asample", request(sampler, params={"max_tokens": 2}))
            api.done("unload_model", {"model_id": model})
        api.post(f"sessions/{session}/finish", {})
    assert alive(api) == before

    # A session that ends while a sampler of it is made.
    begun, ended = threading.Event(), threading.Event()
    real = Adapter.snapshot

    def late(adapter: Adapter) -> Any:
        begun.set()
        assert ended.wait(60)
        return real(adapter)

    monkeypatch.setattr(Adapter, "snapshot", late)
    session = api.session()
    model = api.model(session, rank=2, train_unembed=False)
    api.begin("save_weights_for_sampler", model, sampling_session_seq_id=0)
    assert begun.wait(60)
    api.post(f"sessions/{session}/finish", {})
    ended.set()
    api.registry._thread.submit(lambda: None).result()
    api.session()  # whatever was begun on the loop has ended
    assert alive(api)["resident"] == before["resident"]


def test_a_disk_that_is_full_is_an_answer(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    model = api.model()
    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", full)
        failed = api.result(api.begin("save_weights", model, path="one"))
    assert failed["category"] == "server"
    assert "No space left on device" in failed["error"]
    saved = api.result(api.begin("save_weights", model, path="one"))
    assert saved["path"].endswith("/weights/one")


def test_a_checkpoint_of_another_model_is_not_loaded(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = api.model()
    path = api.result(api.begin("save_weights", model, path="one"))["path"]
    monkeypatch.setattr(api.registry, "fingerprint", "another")
    body = {"model_id": model, "seq_id": 9, "path": path, "optimizer": False}
    assert "this server has another" in api.refused("load_weights", body)
    sampler = {"session_id": api.session(), "sampling_session_seq_id": 0, "model_path": path}
    assert "this server has another" in api.refused("create_sampling_session", sampler)
    monkeypatch.undo()
    other = api.model(rank=2)
    failed = api.result(api.begin("load_weights", other, path=path, optimizer=False))
    assert "of another rank or other layers" in failed["error"]


def test_a_sample_of_a_deleted_checkpoint_says_so(api: ApiClient) -> None:
    model = api.model()
    path = api.result(api.begin("save_weights_for_sampler", model, path="one"))["path"]
    body = {"session_id": api.session(), "sampling_session_seq_id": 0, "model_path": path}
    sampler = api.post("create_sampling_session", body)["sampling_session_id"]
    url = f"/api/v1/training_runs/{model}/checkpoints/sampler_weights/one"
    assert api.http.delete(url).status_code == 204
    failed = api.done("asample", request(sampler))
    assert failed["category"] == "user"
    assert "there is no such checkpoint" in failed["error"]


def test_a_model_that_cannot_be_packed_predicts_next_tokens_only() -> None:
    model = load_model()
    passes, packed = Passes(model, 64), Passes(model, 64)
    passes._forward = Forward(model, "padded")
    adapter, loss = Adapter(model, AdapterShape(2), 1), find_loss("cross_entropy")
    ids = np.array(IDS)
    data = [Datum(ids[:-1], ids[1:], {}), Datum(ids[:4], ids[1:5], {})]
    one = passes.run(adapter.live, data, loss, {}, gradient=False)
    other = packed.run(adapter.live, data, loss, {}, gradient=False)
    for row, expected in zip(one.logprobs, other.logprobs, strict=True):
        np.testing.assert_allclose(row, expected, atol=2e-5)
    with pytest.raises(ConfigError, match="predicts only the next tokens"):
        passes.run(adapter.live, [Datum(ids[:-1], ids[:-1], {})], loss, {}, gradient=False)


def test_a_repeated_request_to_sample_is_done_once(api: ApiClient) -> None:
    body = request(base(api), 3)
    first, second = (api.post("asample", body)["request_id"] for _ in range(2))
    assert first == second
    joined = {"sampling_session_id": body["sampling_session_id"]}
    counters = [api.post("join_sampling_session", joined)["client_counter"] for _ in range(2)]
    assert counters == [1, 2]
    direct = {"base_model": "tiny", "prompt": prompt(IDS), "sampling_params": {"max_tokens": 1}}
    assert len(api.done("asample", direct)["sequences"]) == 1
    assert "model_path: missing" in api.refused("asample", direct | {"base_model": None})


def test_a_forward_pass_leaves_no_gradient(api: ApiClient) -> None:
    one, other = (api.model() for _ in range(2))
    api.forward(one, [datum(IDS)])
    for model in (one, other):
        assert api.step(model)["metrics"] == {"grad_norm:mean": 0.0}
