"""Models in training over HTTP: order, repeats, tenants, checkpoints, and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tinker_api.api_client import ApiClient, datum, prompt, running_api
from vf.viewer.watch import Watch

IDS = [5, 9, 17, 33, 65, 129, 257, 6, 10, 18]
OTHER = [7, 11, 19, 35, 67, 131, 259, 8]


def losses(api: ApiClient, model: str, count: int, rate: float = 0.02) -> list[float]:
    """Train on one sequence, and return the loss before each step."""
    found = []
    for _ in range(count):
        found.append(api.pass_(model, [datum(IDS)])["metrics"]["loss:sum"])
        api.step(model, rate)
    return found


def test_a_model_learns_what_it_is_shown(api: ApiClient) -> None:
    model = api.model()
    before = api.forward(model, [datum(IDS)])[0]
    values = losses(api, model, 12)
    assert values[0] == pytest.approx(-sum(before), rel=1e-5)
    assert values[-1] < values[0] / 4
    assert len(before) == len(IDS) - 1


def test_the_page_of_runs_shows_its_steps(api: ApiClient) -> None:
    model = api.model()
    shown = losses(api, model, 2)
    api.forward(model, [datum(IDS)])  # no gradient: no part of a step's loss
    shown += [2 * api.pass_(model, [datum(IDS)])["metrics"]["loss:sum"]]
    api.pass_(model, [datum(IDS)])
    api.step(model, 0.01)
    watch = Watch([api.registry.checkpoints.folder])
    [run] = [about for name, about in watch.scan() if name == "run" and about["name"] == model]
    assert run["columns"]["step"] == [1, 2, 3]
    assert run["columns"]["loss"] == pytest.approx(shown, rel=1e-4)
    assert run["columns"]["learning_rate"] == [0.02, 0.02, 0.01]
    assert min(run["columns"]["grad_norm"]) > 0
    assert min(run["columns"]["tokens_per_s/train"]) > 0


def test_requests_of_a_model_run_in_their_order_without_waiting(api: ApiClient) -> None:
    """What is submitted at once gives what is submitted one after the other."""
    one, other = (api.model() for _ in range(2))
    expected = losses(api, one, 4)
    begun = []
    body = {"data": [datum(IDS)], "loss_fn": "cross_entropy"}
    for _ in range(4):
        begun.append(api.begin("forward_backward", other, forward_backward_input=body))
        api.begin("optim_step", other, adam_params={"learning_rate": 0.02})
    found = [api.result(request)["metrics"]["loss:sum"] for request in begun]
    assert found == expected


def test_a_request_that_is_repeated_is_done_once(api: ApiClient) -> None:
    model = api.model()
    api.pass_(model, [datum(IDS)])
    body = {"model_id": model, "seq_id": 2, "adam_params": {"learning_rate": 0.1}}
    first, second = (api.post("optim_step", body)["request_id"] for _ in range(2))
    assert first == second
    assert api.result(first) == api.result(second)
    assert api.registry.tenants[model].steps == 1


def test_models_of_several_ranks_do_not_see_one_another(api: ApiClient) -> None:
    session = api.session()
    ranks: list[dict[str, Any]] = [
        {"rank": 1},
        {"rank": 16, "train_mlp": False},
        {"rank": 3, "train_unembed": False},
    ]
    models = [api.model(session, seq, **lora) for seq, lora in enumerate(ranks)]
    losses(api, models[0], 3)
    before = api.forward(models[0], [datum(IDS)])
    losses(api, models[1], 3)
    losses(api, models[2], 3)
    assert api.forward(models[0], [datum(IDS)]) == before
    infos = [api.post("get_info", {"model_id": model}) for model in models]
    assert [info["lora_rank"] for info in infos] == [1, 16, 3]
    alone = api.model(**ranks[1])
    losses(api, alone, 3)
    assert api.forward(alone, [datum(OTHER)]) == api.forward(models[1], [datum(OTHER)])


def test_a_failed_pass_adds_nothing_to_the_gradient(api: ApiClient) -> None:
    one, other = (api.model() for _ in range(2))
    n = len(IDS) - 1
    wild = datum(IDS, logprobs=[-1e30] * n, advantages=[1.0] * n)
    for model in (one, other):
        api.pass_(model, [datum(IDS)])
        if model == one:
            failed = api.pass_(model, [wild], "importance_sampling")
            assert failed["category"] == "user"
            assert "the loss is not finite" in failed["error"]
        api.step(model)
    assert api.forward(one, [datum(OTHER)]) == api.forward(other, [datum(OTHER)])


@pytest.mark.slow
@pytest.mark.gate
def test_a_checkpoint_continues_bit_for_bit_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    with running_api(folder) as api:
        model = api.model()
        losses(api, model, 2)
        saved = api.result(api.begin("save_weights", model, path="two"))["path"]
        assert saved == f"tinker://{model}/weights/two"
        sampled = api.result(api.begin("save_weights_for_sampler", model, path="two"))["path"]
        expected = losses(api, model, 3)
        again = api.begin("load_weights", model, path=saved, optimizer=True)
        assert api.result(again)["path"] == saved
        assert losses(api, model, 3) == expected
    with running_api(folder) as api:
        assert "was restarted" in api.refused("get_info", {"model_id": model}, 404)
        session = api.session()
        body = {"session_id": session, "model_seq_id": 0, "path": saved, "optimizer": True}
        found = api.done("load_weights", body)
        assert found["model_id"] == f"{session}:train:0"
        assert losses(api, found["model_id"], 3) == expected
        fresh = api.done("load_weights", body | {"model_seq_id": 1, "optimizer": False})
        values = losses(api, fresh["model_id"], 3)
        assert values[0] == expected[0]
        assert values[1:] != expected[1:]
        body |= {"model_seq_id": 2, "path": sampled}
        assert "no optimizer's state" in api.done("load_weights", body)["error"]


@pytest.mark.slow
@pytest.mark.gate
def test_a_session_that_ends_leaves_nothing_behind(api: ApiClient, folder: Path) -> None:
    import gc

    import torch

    def tensors() -> int:
        gc.collect()
        return sum(isinstance(item, torch.Tensor) for item in gc.get_objects())

    def tenant() -> str:
        session = api.session()
        model = api.model(session)
        losses(api, model, 1)
        sampler = api.result(
            api.begin("save_weights_for_sampler", model, sampling_session_seq_id=0)
        )["sampling_session_id"]
        body = {
            "sampling_session_id": sampler,
            "seq_id": 0,
            "prompt": prompt(IDS),
            "sampling_params": {"max_tokens": 2},
        }
        assert len(api.done("asample", body)["sequences"]) == 1
        api.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})
        return model

    model = tenant()
    api.model()  # what the thread was given before is done
    runs, futures, count = len([*folder.iterdir()]), len(api.registry.futures), tensors()
    for _ in range(5):
        tenant()
    api.model()
    assert model not in api.registry.tenants
    assert len([*folder.iterdir()]) == runs + 1
    assert len(api.registry.futures) <= futures + 2
    assert tensors() - count < 200  # of the model that was made last


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("create_model", {"lora_config": {"rank": 0}}, "lora_config.rank"),
        ("create_model", {"lora_config": {"rank": 4096}}, "lora_config.rank"),
        ("create_model", {"base_model": "other/model"}, "base_model 'other/model' is not served"),
        (
            "create_model",
            {
                "lora_config": {
                    "rank": 4,
                    "train_mlp": False,
                    "train_attn": False,
                    "train_unembed": False,
                }
            },
            "one of train_attn, train_mlp and train_unembed must be true",
        ),
        ("create_model", {"optimizer_config": {"type": "dimuon"}}, "optimizer_config.type"),
        ("create_model", {"speed": 3}, "speed: Extra inputs"),
        ("create_model", {"session_id": "none"}, "session 'none' is unknown"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused(
    api: ApiClient, path: str, body: dict[str, Any], message: str
) -> None:
    whole = {
        "session_id": api.session(),
        "model_seq_id": 0,
        "base_model": "tiny",
        "lora_config": {"rank": 4},
    }
    answer = api.http.post(f"/api/v1/{path}", json=whole | body)
    assert answer.status_code in (400, 404, 422)
    assert message in answer.json()["error"]["message"]


N = len(IDS) - 1


def several(others: dict[str, list[int]]) -> dict[str, Any]:
    """Return a datum of two tokens with two targets each, and other inputs by their shapes."""
    shapes = {"target_tokens": [2, 2], **others}
    inputs = {
        name: {
            "data": [5] * (shape[0] * shape[-1]),
            "dtype": "int64" if name == "target_tokens" else "float32",
            "shape": shape if shape[-1] > 1 else shape[:1],
        }
        for name, shape in shapes.items()
    }
    chunks = [{"type": "encoded_text", "tokens": [5, 9]}]
    return {"model_input": {"chunks": chunks}, "loss_fn_inputs": inputs}


@pytest.mark.parametrize(
    ("given", "loss", "message"),
    [
        ([datum(IDS)], "dpo", "loss_fn = 'dpo': there are cross_entropy"),
        ([], "cross_entropy", "data: it is empty"),
        ([datum([5])], "cross_entropy", "data[0].model_input: it has no tokens"),
        ([datum(IDS, weights=[1.0])], "cross_entropy", "weights: 1 numbers for 9 input tokens"),
        ([datum(IDS)], "ppo", "data[0].loss_fn_inputs: logprobs, advantages missing"),
        ([datum(IDS, mask=[1.0] * N)], "cross_entropy", "mask unknown to this loss"),
        ([datum([5, 600])], "cross_entropy", "target_tokens: token ids must be in [0, 512)"),
        ([datum([-1, 6])], "cross_entropy", "model_input: token ids must be in [0, 512)"),
        ([datum(list(range(3, 263)))], "cross_entropy", "259 tokens; the context here has 256"),
        ([datum([2**70, 3])], "cross_entropy", "a number has more than 64 bits"),
        ([several({})], "cross_entropy", "for cross_entropy, with a weight for each"),
        ([several({"weights": [2, 1]})], "cross_entropy", "weights: shape [2], but that of target"),
        ([several({"weights": [2, 2]})], "dro", "logprobs, advantages missing"),
    ],
)
def test_data_that_cannot_be_used_are_refused(
    api: ApiClient, given: list[Any], loss: str, message: str
) -> None:
    model = api.model()
    body = {"model_id": model, "seq_id": 1}
    answer = api.http.post(
        "/api/v1/forward_backward",
        json=body | {"forward_backward_input": {"data": given, "loss_fn": loss}},
    )
    assert answer.status_code in (400, 422)
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("value", "message"),
    [("NaN", "advantages: a number is not finite"), ("1e60", "advantages: a number is not finite")],
)
def test_numbers_that_are_not_finite_are_refused(api: ApiClient, value: str, message: str) -> None:
    import json

    one = datum(IDS, logprobs=[0.0] * N, advantages=[12345.0] + [0.0] * (N - 1))
    body = {"data": [one], "loss_fn": "importance_sampling"}
    text = json.dumps({"model_id": api.model(), "seq_id": 1, "forward_backward_input": body})
    answer = api.http.post(
        "/api/v1/forward_backward",
        content=text.replace("12345.0", value),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code in (400, 422)
    assert message in answer.json()["error"]["message"]


def test_a_name_cannot_leave_the_folder(api: ApiClient) -> None:
    model = api.model()
    for name in ("../x", "..", "a/b", "", "x" * 300, ".hidden"):
        body = {"model_id": model, "seq_id": 1, "path": name}
        answer = api.http.post("/api/v1/save_weights", json=body)
        assert answer.status_code in (400, 422)
        assert "path" in answer.json()["error"]["message"]
    for path in (
        "tinker://../weights/x",
        "tinker://run/weights/../x",
        "tinker://run/weights/..",
        "/etc/passwd",
        "tinker://run/other/x",
    ):
        body = {"model_id": model, "seq_id": 1, "path": path, "optimizer": False}
        assert "path" in api.refused("load_weights", body)
    body = {"model_id": model, "seq_id": 1, "path": "tinker://run/weights/x", "optimizer": False}
    assert "there is no such checkpoint" in api.refused("load_weights", body, 404)
