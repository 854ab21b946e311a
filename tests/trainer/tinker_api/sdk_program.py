"""What a user of an SDK of the Tinker API does, run with the SDK's own interpreter.

    python sdk_program.py tinker|mint URL KEY

It prints one JSON object: by the name of each check, "ok" or what went wrong. The library is not
importable here, and no test is: the SDK's environment has neither.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

sdk, url, key = sys.argv[1:4]
os.environ |= {"TINKER_API_KEY": key, "MINT_API_KEY": key}
os.environ |= {"TINKER_BASE_URL": url, "MINT_BASE_URL": url, "TINKER_TELEMETRY": "0"}
warnings.filterwarnings("ignore")
if sdk == "mint":
    import mint as api
    from mint import types
else:
    import tinker as api
    from tinker import types

IDS = [5, 9, 17, 33, 65, 129, 257, 6, 10, 18]
ADAM = types.AdamParams(learning_rate=0.02, beta1=0.9, beta2=0.95, eps=1e-8)


def done(value: Any) -> Any:
    """Return the result of what newer versions return as a future."""
    return value.result() if hasattr(value, "result") else value


service = api.ServiceClient(base_url=url)


def model(**lora: Any) -> Any:
    return done(service.create_lora_training_client(**{"base_model": "tiny", "rank": 4} | lora))


def datum(ids: list[int] = IDS, **inputs: Any) -> Any:
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:]} | inputs,
    )


def refused(call: Callable[[], Any], *texts: str) -> None:
    """See that a call fails with a message that has the texts."""
    try:
        done(call())
        message = "it was not refused"
    except Exception as error:
        message = str(error)
    assert all(text in message for text in texts), message


def train(client: Any, steps: int) -> list[float]:
    futures = []
    for _ in range(steps):
        futures.append(client.forward_backward([datum()], "cross_entropy"))
        client.optim_step(ADAM)
    return [future.result().metrics["loss:sum"] for future in futures]


def trains() -> None:
    client = model(seed=1, train_mlp=False)
    info = client.get_info()
    assert (info.is_lora, info.lora_rank) == (True, 4)
    assert client.get_tokenizer().encode("a")
    losses = train(client, 8)
    assert losses[-1] < losses[0] / 2, losses
    forward = client.forward([datum(), datum(IDS[:5])], "cross_entropy").result()
    assert [len(one["logprobs"].data) for one in forward.loss_fn_outputs] == [9, 4]


def samples() -> None:
    client = model(seed=1)
    train(client, 3)
    sampler = done(client.save_weights_and_get_sampling_client())
    prompt = types.ModelInput.from_ints(IDS)
    params = types.SamplingParams(max_tokens=7, seed=1, temperature=0.9)
    response = sampler.sample(
        prompt, 3, params, include_prompt_logprobs=True, topk_prompt_logprobs=2
    ).result()
    assert len(response.sequences) == 3
    assert all(len(one.logprobs) == len(one.tokens) <= 7 for one in response.sequences)
    assert response.prompt_logprobs[0] is None
    assert len(response.prompt_logprobs) == len(response.topk_prompt_logprobs) == len(IDS)
    assert len(response.topk_prompt_logprobs[1]) == 2
    again = sampler.compute_logprobs(prompt).result()
    assert (
        max(abs(a - b) for a, b in zip(again[1:], response.prompt_logprobs[1:], strict=True)) < 1e-5
    )
    base = done(service.create_sampling_client(base_model="tiny"))
    stopped = base.sample(prompt, 1, types.SamplingParams(max_tokens=5, stop=[])).result()
    assert stopped.sequences[0].stop_reason == "length"


def saves() -> None:
    client = model(seed=1)
    train(client, 2)
    saved = client.save_state("two").result().path
    sampled = client.save_weights_for_sampler("two").result().path
    expected = train(client, 3)
    client.load_state_with_optimizer(saved).result()
    assert train(client, 3) == expected
    resumed = done(service.create_training_client_from_state_with_optimizer(saved))
    assert train(resumed, 3) == expected
    assert done(service.create_sampling_client(model_path=sampled))
    rest = service.create_rest_client()
    run = saved.split("/")[2]
    listed = rest.list_checkpoints(run).result().checkpoints
    assert {one.checkpoint_id for one in listed} == {"weights/two", "sampler_weights/two"}
    assert rest.get_training_run(run).result().last_checkpoint.tinker_path == saved
    assert run in [one.training_run_id for one in rest.list_training_runs().result().training_runs]
    assert rest.get_weights_info_by_tinker_path(saved).result().lora_rank == 4
    rest.set_checkpoint_ttl_from_tinker_path(saved, 3600).result()
    [kept] = [
        one for one in rest.list_user_checkpoints().result().checkpoints if one.tinker_path == saved
    ]
    assert kept.expires_at is not None
    rest.delete_checkpoint_from_tinker_path(saved).result()
    refused(lambda: rest.get_weights_info_by_tinker_path(saved), "there is no such checkpoint")


def archives() -> None:
    if sdk != "mint":
        return  # newer versions download other formats only
    import io
    import tarfile
    import urllib.request

    path = model(seed=1).save_weights_for_sampler("one").result().path
    link = service.create_rest_client().get_checkpoint_archive_url_from_tinker_path(path).result()
    with (
        urllib.request.urlopen(link.url) as answer,
        tarfile.open(fileobj=io.BytesIO(answer.read())) as tar,
    ):
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(tar.getnames())


def computes_its_own_loss() -> None:
    client = model(seed=1)

    def squared(data: Any, logprobs: Any) -> Any:
        loss = sum((one**2).sum() for one in logprobs)
        return loss, {"squared": float(loss)}

    result = client.forward_backward_custom([datum()], squared).result()
    client.optim_step(ADAM).result()
    after = client.forward_backward_custom([datum()], squared).result()
    assert after.metrics["squared"] < result.metrics["squared"]


def distills() -> None:
    """Two targets of each token, with a weight for each."""
    client, n = model(seed=1), len(IDS) - 1
    targets = types.TensorData(
        data=[id for one in IDS[1:] for id in (one, 7)], dtype="int64", shape=[n, 2]
    )
    weights = types.TensorData(data=[0.75, 0.25] * n, dtype="float32", shape=[n, 2])
    both = datum(target_tokens=targets, weights=weights)
    # MinT's reads the shape of the first only.
    others = [datum()] if sdk == "tinker" else [both]
    losses = []
    for _ in range(8):
        result = client.forward_backward([both, *others], "cross_entropy").result()
        client.optim_step(ADAM).result()
        first, second = (one["logprobs"].to_numpy() for one in result.loss_fn_outputs)
        assert first.shape == (n, 2), first
        assert abs(first[:, 0] - second.reshape(n, -1)[:, 0]).max() < 1e-4
        losses.append(result.metrics["loss:sum"])
    assert losses[-1] < losses[0] / 2, losses


def refuses_data() -> None:
    n, client = len(IDS) - 1, model()
    nan = [float("nan")] + [0.0] * (n - 1)
    train(client, 1)
    for loss, data, text in (
        ("pop", datum(), "loss_fn"),
        ("cross_entropy", datum(weights=[1.0, 1.0]), "weights: 2 numbers for 9 input tokens"),
        ("ppo", datum(logprobs=[0.0] * n, advantages=nan), "advantages: a number is not finite"),
        ("cross_entropy", datum([5, 700]), "token ids must be in [0, 512)"),
        ("cross_entropy", datum([5]), "it has no tokens"),
    ):
        refused(partial(client.forward_backward, [data], loss), text)
    assert train(client, 1)  # and continues


def refuses_models() -> None:
    refused(lambda: model(rank=0), "lora_config.rank")
    refused(lambda: model(rank=4096), "lora_config.rank")
    refused(lambda: model(base_model="meta/none"), "'meta/none' is not served here; this is 'tiny'")
    missing = "tinker://none/weights/none"
    refused(lambda: service.create_sampling_client(model_path=missing), "no such checkpoint")
    client = model()
    refused(lambda: client.load_state("tinker://none/weights/../x"), "path")
    refused(lambda: client.save_state("../x"), "path")
    refused(lambda: service.create_sampling_client(base_model="other"), "'other' is not served")


def refuses_samples() -> None:
    sampler = done(service.create_sampling_client(base_model="tiny"))
    prompt = types.ModelInput.from_ints(IDS)
    params = types.SamplingParams(max_tokens=2)
    refused(lambda: sampler.sample(prompt, 10_000, params), "num_samples")
    long = types.SamplingParams(max_tokens=5000)
    refused(lambda: sampler.sample(prompt, 1, long), "max_tokens = 5,000")
    assert sampler.sample(prompt, 1, params).result().sequences


def refuses_a_wrong_key() -> None:
    wrong = key[:4] + "wrong"
    refused(
        lambda: api.ServiceClient(base_url=url, api_key=wrong).create_lora_training_client("tiny"),
        "401",
    )


def refuses_a_body_of_200_megabytes() -> None:
    large = {"text": "x" * 200_000_000}
    refused(
        lambda: api.ServiceClient(base_url=url, user_metadata=large).create_lora_training_client(
            base_model="tiny"
        ),
        "413",
        "the body has more than",
    )


CHECKS = (
    trains,
    samples,
    saves,
    archives,
    computes_its_own_loss,
    distills,
    refuses_data,
    refuses_models,
    refuses_samples,
    refuses_a_wrong_key,
    refuses_a_body_of_200_megabytes,
)

if __name__ == "__main__":
    outcomes = {}
    for check in CHECKS:
        try:
            check()
            outcomes[check.__name__] = "ok"
        except BaseException:
            outcomes[check.__name__] = traceback.format_exc()
        print(check.__name__, file=sys.stderr, flush=True)
    print(json.dumps(outcomes), flush=True)
    os._exit(0)  # no session is ended: this client vanishes
