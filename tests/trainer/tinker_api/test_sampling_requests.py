"""Samples over HTTP: of the base model, of snapshots and of checkpoints, several at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from tests.trainer.tinker_api.api_client import ApiClient, datum, prompt
from tests.trainer.tinker_api.test_training_requests import IDS, losses
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer

RENDERER = Renderer.from_pretrained(resolve_model("tiny"))
TEXT = [*RENDERER.tokenizer.encode("Q: What is 3 + 5?\nA:")]


def base(api: ApiClient) -> str:
    """Return a sampling session of the base model."""
    body = {"session_id": api.session(), "sampling_session_seq_id": 0, "base_model": "tiny"}
    sampler_id: str = api.post("create_sampling_session", body)["sampling_session_id"]
    return sampler_id


def snapshot(api: ApiClient, model: str, seq: int = 0) -> str:
    """Return a sampling session of a model's weights."""
    begun = api.begin("save_weights_for_sampler", model, sampling_session_seq_id=seq)
    sampler_id: str = api.result(begun)["sampling_session_id"]
    return sampler_id


def request(sampler: str, seq: int = 0, n: int = 1, **more: Any) -> dict[str, Any]:
    """Return the body of a request."""
    params = {"max_tokens": 12} | more.pop("params", {})
    return {
        "sampling_session_id": sampler,
        "seq_id": seq,
        "num_samples": n,
        "prompt": prompt(more.pop("ids", TEXT)),
        "sampling_params": params,
    } | more


def tokens(samples: list[dict[str, Any]]) -> list[list[int]]:
    """Return the ids of samples; their log-probabilities depend in the last bits on the batch."""
    return [sample["tokens"] for sample in samples]


def test_models_are_trained_while_a_small_model_samples(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sampler = api.model(), base(api)
    assert api.registry.engine._thread is not None
    scheduler = api.registry.engine._thread.scheduler
    begun, trained = threading.Event(), threading.Event()
    step = scheduler.step

    def wait_within_a_pass() -> Any:
        begun.set()
        assert trained.wait(60)
        return step()

    monkeypatch.setattr(scheduler, "step", wait_within_a_pass)
    sampling = api.post("asample", request(sampler))["request_id"]
    assert begun.wait(60)
    losses(api, model, 1)
    trained.set()
    assert api.result(sampling)["sequences"][0]["tokens"]


def test_samples_have_the_logprobs_of_the_model_that_was_saved(api: ApiClient) -> None:
    model = api.model()
    losses(api, model, 4)
    sampler = snapshot(api, model)
    [sample] = api.done("asample", request(sampler, params={"seed": 1}))["sequences"]
    logprobs = api.forward(model, [datum([*TEXT, *sample["tokens"]])])[0]
    assert sample["logprobs"] == pytest.approx(logprobs[len(TEXT) - 1 :], abs=1e-4)
    losses(api, model, 4)
    [again] = api.done("asample", request(sampler, 1, params={"seed": 1}))["sequences"]
    assert again["tokens"] == sample["tokens"]  # what was saved is not what is trained
    assert again["logprobs"] == pytest.approx(sample["logprobs"], abs=1e-4)
    moved = api.done("asample", request(snapshot(api, model, 1), params={"seed": 1}))["sequences"]
    assert tokens(moved) != tokens([sample])


def test_samples_of_several_adapters_at_once_are_those_of_each_alone(api: ApiClient) -> None:
    session = api.session()
    samplers = [base(api)]
    for seq, rank in enumerate((2, 8)):
        model = api.model(session, seq, rank=rank, seed=seq)
        losses(api, model, 4, rate=0.03)
        samplers.append(snapshot(api, model, seq))
    bodies = [request(sampler, 1, n=3, params={"seed": 5}) for sampler in samplers]
    begun = [api.post("asample", body)["request_id"] for body in bodies]
    together = [api.result(request_id)["sequences"] for request_id in begun]
    alone = [api.done("asample", body | {"seq_id": 2})["sequences"] for body in bodies]
    for some, others in zip(together, alone, strict=True):
        assert tokens(some) == tokens(others)
    assert tokens(together[0]) != tokens(together[1]) != tokens(together[2])


def test_a_seed_gives_the_same_samples_and_different_ones_of_a_prompt(api: ApiClient) -> None:
    sampler = base(api)
    first = api.done("asample", request(sampler, 1, n=4, params={"seed": 3}))["sequences"]
    second = api.done("asample", request(sampler, 2, n=4, params={"seed": 3}))["sequences"]
    other = api.done("asample", request(sampler, 3, n=4, params={"seed": 4}))["sequences"]
    assert tokens(first) == tokens(second) != tokens(other)
    assert len({tuple(one) for one in tokens(first)}) > 1
    greedy = request(sampler, 4, n=2, params={"temperature": 0.0})
    one, two = tokens(api.done("asample", greedy)["sequences"])
    assert one == two


def test_an_answer_ends_at_a_stop(api: ApiClient) -> None:
    sampler = base(api)
    whole = api.done(
        "asample", request(sampler, 1, params={"seed": 2, "stop": [], "max_tokens": 40})
    )
    ids = whole["sequences"][0]["tokens"]
    assert (len(ids), whole["sequences"][0]["stop_reason"]) == (40, "length")
    stop = ids[7]
    by_id = {"seed": 2, "max_tokens": 40, "stop": [stop]}
    [sample] = api.done("asample", request(sampler, 2, params=by_id))["sequences"]
    assert sample["stop_reason"] == "stop"
    assert sample["tokens"] == ids[: ids.index(stop) + 1]
    text = RENDERER.decode(ids)
    sought = text[9:11]
    by_text = {"seed": 2, "max_tokens": 40, "stop": sought}
    [sample] = api.done("asample", request(sampler, 3, params=by_text))["sequences"]
    ended = RENDERER.decode(sample["tokens"])
    assert sample["stop_reason"] == "stop"
    assert sought in ended
    assert sought not in RENDERER.decode(sample["tokens"][:-1])
    assert text.startswith(ended)


def test_a_prompt_has_logprobs(api: ApiClient) -> None:
    model = api.model()
    losses(api, model, 3)
    body = request(snapshot(api, model), ids=IDS, prompt_logprobs=True, topk_prompt_logprobs=3)
    found = api.done("asample", body)
    expected = api.forward(model, [datum(IDS)])[0]
    assert found["prompt_logprobs"][0] is None
    assert found["prompt_logprobs"][1:] == pytest.approx(expected, abs=1e-5)
    assert found["topk_prompt_logprobs"][0] is None
    for row in found["topk_prompt_logprobs"][1:]:
        assert len({token for token, _ in row}) == 3
        assert [value for _, value in row] == sorted((value for _, value in row), reverse=True)
    last = body | {"seq_id": 7, "prompt_logprobs_last_n": 2, "topk_prompt_logprobs": 0}
    shown = api.done("asample", last)["prompt_logprobs"]
    assert shown[:-2] == [None] * (len(IDS) - 2)
    assert shown[-2:] == found["prompt_logprobs"][-2:]


def test_a_checkpoint_is_sampled_by_its_path(api: ApiClient) -> None:
    model = api.model()
    losses(api, model, 4)
    saved = api.result(api.begin("save_weights_for_sampler", model, path="step-4"))["path"]
    body = {"session_id": api.session(), "sampling_session_seq_id": 0, "model_path": saved}
    by_path = api.post("create_sampling_session", body)["sampling_session_id"]
    held = request(snapshot(api, model), params={"seed": 3})
    mine = api.done("asample", held)["sequences"]
    found = api.done("asample", request(by_path, params={"seed": 3}))["sequences"]
    assert tokens(found) == tokens(mine)
    about = api.http.get(f"/api/v1/samplers/{by_path}").json()
    assert (about["model_path"], about["sampler_id"]) == (saved, by_path)


def test_adapters_that_were_put_on_the_disk_are_read_again(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf.trainer.tinker_api.registry.RESIDENT", 1)
    model = api.model()
    losses(api, model, 3)
    samplers = [snapshot(api, model)]
    expected = api.done("asample", request(samplers[0], 1, params={"seed": 1}))["sequences"]
    for seq in (1, 2):
        losses(api, model, 2)
        samplers.append(snapshot(api, model, seq))
    assert api.registry.samplers[samplers[0]].lora is None
    again = api.done("asample", request(samplers[0], 2, params={"seed": 1}))["sequences"]
    assert tokens(again) == tokens(expected)


def test_a_sample_can_be_cancelled(api: ApiClient) -> None:
    sampler = base(api)
    body = request(sampler, 1, params={"max_tokens": 200, "stop": []})
    request_id = api.post("asample", body)["request_id"]
    api.post("cancel_future", {"request_id": request_id})
    assert api.result(request_id) == {"error": "the request was cancelled", "category": "user"}


def test_a_client_that_vanishes_while_it_waits_leaves_the_server_as_it_was(api: ApiClient) -> None:
    sampler = base(api)
    body = request(sampler, 1, n=2, params={"max_tokens": 40, "stop": []})
    request_id = api.post("asample", body)["request_id"]

    async def vanish() -> None:
        async with httpx.AsyncClient(base_url=api.http.base_url) as http:
            waiting = http.post("/api/v1/retrieve_future", json={"request_id": request_id})
            task = asyncio.create_task(waiting)
            await asyncio.sleep(0)
            task.cancel()

    asyncio.run(vanish())
    assert len(api.result(request_id)["sequences"]) == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"num_samples": 10_000}, "num_samples: Input should be less than or equal to 1024"),
        ({"num_samples": 0}, "num_samples"),
        ({"prompt": prompt([])}, "prompt: it has no tokens"),
        ({"prompt": prompt([512])}, "prompt: token ids must be in [0, 512)"),
        (
            {"prompt": {"chunks": [{"type": "image", "data": "", "format": "png"}]}},
            "a chunk of 'image'",
        ),
        (
            {"sampling_params": {"max_tokens": 300}},
            "max_tokens = 300, but the context here has 256",
        ),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"sampling_session_id": "nobody"}, "sampling session 'nobody' is not here"),
        ({"topk_sample_logprobs": 3}, "topk_sample_logprobs"),
        ({"prompt_logprobs_last_n": 3}, "prompt_logprobs_last_n: it needs prompt_logprobs"),
    ],
)
def test_a_wrong_request_is_refused(api: ApiClient, more: dict[str, Any], message: str) -> None:
    answer = api.http.post("/api/v1/asample", json=request(base(api)) | more)
    assert answer.status_code in (400, 404, 422)
    assert message in answer.json()["error"]["message"]
