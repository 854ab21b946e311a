"""Log-probabilities and gradients of adapters against PEFT's own module and autograd."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import save_file

from tests.inference.tiny_serving import load_model
from vf.inference.embedded.lora_mixture import Part
from vf.inference.model_files import resolve_model
from vf.trainer.tinker_api.adapter import Adapter, AdapterShape
from vf.trainer.tinker_api.datums import Datum
from vf.trainer.tinker_api.losses import find_loss
from vf.trainer.tinker_api.passes import Passes, same_weights
from vf.trainer.tinker_api.requests import AdamParams

STEM = np.random.default_rng(3).integers(3, 500, 24)
# Two passes in float32 add in different orders, and how differently depends on the processor.
RTOL, ATOL = 1e-5, 2e-5


@pytest.fixture(scope="module")
def model() -> Any:
    model = load_model()
    model.requires_grad_(False)
    return model


@pytest.fixture(scope="module")
def passes(model: Any) -> Passes:
    return Passes(model, 256)


def moved(model: Any, shape: AdapterShape, seed: int) -> Adapter:
    """Return an adapter that changes every log-probability."""
    adapter = Adapter(model, shape, seed)
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in adapter.weights().items()
    }
    adapter.load(weights, None, 0)
    return adapter


def as_peft(model: Any, adapter: Adapter, folder: Path) -> Any:
    """Return PEFT's module, made from the files of a checkpoint."""
    config = adapter.shape.peft_config(adapter.shape.layers(model), resolve_model("tiny"))
    (folder / "adapter_config.json").write_text(json.dumps(config | {"inference_mode": False}))
    save_file(adapter.weights(), folder / "adapter_model.safetensors")
    return PeftModel.from_pretrained(load_model(), str(folder), is_trainable=True)


def data(*, targets: str = "shifted") -> list[Datum]:
    """Return three sequences, two of which begin alike."""
    rng = np.random.default_rng(4)
    sequences = [np.concatenate([STEM, rng.integers(3, 500, count)]) for count in (9, 14)]
    sequences.append(rng.integers(3, 500, 12))
    found = []
    for ids in sequences:
        chosen = ids[1:] if targets == "shifted" else rng.integers(3, 500, len(ids) - 1)
        inputs = {
            "advantages": rng.normal(0.0, 1.0, len(chosen)).astype(np.float32),
            "weights": rng.choice([0.0, 1.0, 0.5], len(chosen)).astype(np.float32),
        }
        found.append(Datum(ids[:-1].astype(np.int64), chosen.astype(np.int64), inputs))
    return found


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return a relative difference."""
    return float((one - other).norm() / other.norm())


def near(one: Datum, logprobs: np.ndarray) -> Datum:
    """Return a datum whose sampler's log-probabilities are near those of the model."""
    noise = np.random.default_rng(5).normal(0.0, 0.3, len(logprobs))
    return replace(one, inputs={**one.inputs, "logprobs": (logprobs + noise).astype(np.float32)})


def expected_logprobs(module: Any, one: Datum) -> torch.Tensor:
    logits = module(input_ids=torch.from_numpy(one.tokens)[None]).logits[0].double()
    chosen: torch.Tensor = logits.log_softmax(-1).gather(1, torch.from_numpy(one.targets)[:, None])
    return chosen[:, 0]


@pytest.mark.parametrize("targets", ["shifted", "arbitrary"])
@pytest.mark.parametrize(
    "shape",
    [AdapterShape(4), AdapterShape(8, train_mlp=False, train_unembed=False)],
    ids=["all", "attention"],
)
def test_logprobs_and_gradients_are_those_of_peft(
    model: Any, passes: Passes, tmp_path: Path, shape: AdapterShape, targets: str
) -> None:
    adapter = moved(model, shape, seed=5)
    module = as_peft(model, adapter, tmp_path)
    given = [
        near(one, expected_logprobs(module, one).detach().numpy()) for one in data(targets=targets)
    ]
    loss = find_loss("importance_sampling")
    result = passes.run(adapter.live, given, loss, {}, gradient=True)
    own = {name: tensor.grad for name, tensor in adapter._named().items()}

    total = torch.zeros((), dtype=torch.float64)
    for one, logprobs in zip(given, result.logprobs, strict=True):
        expected = expected_logprobs(module, one)
        np.testing.assert_allclose(logprobs, expected.detach().numpy(), rtol=RTOL, atol=ATOL)
        inputs = {name: torch.from_numpy(value).double() for name, value in one.inputs.items()}
        ratio = (expected - inputs["logprobs"]).exp()
        total = total - (inputs["weights"] * ratio * inputs["advantages"]).sum()
    torch.autograd.backward(total)
    assert result.loss == pytest.approx(total.item(), rel=1e-4, abs=1e-4)
    theirs = {
        name.replace(".default", ""): parameter.grad
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    assert own.keys() == theirs.keys()
    for name, gradient in own.items():
        assert gradient is not None
        assert theirs[name] is not None
        assert apart(gradient, theirs[name]) < 1e-4, name


def test_several_targets_of_a_token_weigh_as_they_are_given(
    model: Any, passes: Passes, tmp_path: Path
) -> None:
    """Cross-entropy with a distribution over K tokens, as in distillation; one datum has one."""
    adapter, rng = moved(model, AdapterShape(4), seed=5), np.random.default_rng(6)
    module = as_peft(model, adapter, tmp_path)
    plain, *others = data()
    given = [replace(plain, inputs={"weights": plain.inputs["weights"]})]
    for one in others:
        shape = (len(one.tokens), 3)
        weights = rng.dirichlet(np.ones(3), shape[0]).astype(np.float32)
        given.append(Datum(one.tokens, rng.integers(3, 500, shape), {"weights": weights}))
    result = passes.run(adapter.live, given, find_loss("cross_entropy"), {}, gradient=True)
    own = {name: tensor.grad for name, tensor in adapter._named().items()}

    total = torch.zeros((), dtype=torch.float64)
    for one, logprobs in zip(given, result.logprobs, strict=True):
        logits = module(input_ids=torch.from_numpy(one.tokens)[None]).logits[0].double()
        targets = torch.from_numpy(one.targets.reshape(len(one.tokens), -1))
        expected = logits.log_softmax(-1).gather(1, targets).reshape(one.targets.shape)
        assert logprobs.shape == one.targets.shape
        np.testing.assert_allclose(logprobs, expected.detach().numpy(), rtol=RTOL, atol=ATOL)
        total = total - (torch.from_numpy(one.inputs["weights"]) * expected).sum()
    torch.autograd.backward(total)
    assert result.loss == pytest.approx(total.item(), rel=1e-4)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            gradient = own[name.replace(".default", "")]
            assert gradient is not None
            assert apart(gradient, parameter.grad) < 1e-4, name


def test_the_model_alone_is_as_it_was(model: Any, passes: Passes) -> None:
    [one, *_] = data()
    before = expected_logprobs(model, one)
    passes.run(
        moved(model, AdapterShape(4), 1).live, [one], find_loss("cross_entropy"), {}, gradient=True
    )
    after = expected_logprobs(model, one)
    torch.testing.assert_close(before, after, rtol=0, atol=0)


def test_a_module_of_the_same_weights_computes_the_same(model: Any, passes: Passes) -> None:
    """It shares every tensor, and no hook or setting."""
    other = same_weights(model)
    assert {id(p) for p in other.parameters()} == {id(p) for p in model.parameters()}
    assert not {*map(id, other.modules())} & {*map(id, model.modules())}
    found, same = [], data()
    for each in (passes, Passes(other, 256)):
        adapter = moved(model, AdapterShape(4), 7)
        given = [replace(one, inputs={}) for one in same]
        each.run(adapter.live, given, find_loss("cross_entropy"), {}, gradient=True)
        found.append([tensor.grad for tensor in adapter._named().values()])
    for one, own in zip(*found, strict=True):
        assert one is not None
        assert torch.equal(one, own)


def test_gradients_of_calls_add_up_and_a_step_is_adamw(model: Any, passes: Passes) -> None:
    shape, given, loss = AdapterShape(4), data(), find_loss("cross_entropy")
    given = [replace(one, inputs={}) for one in given]
    params = AdamParams(
        learning_rate=0.01, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1, grad_clip_norm=0.5
    )
    adapter, reference = moved(model, shape, 2), moved(model, shape, 2)
    named = reference._named()
    leaves = [tensor.detach().clone().requires_grad_() for tensor in named.values()]
    optimizer = torch.optim.AdamW(leaves, lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    for _ in range(3):
        for one in given:
            passes.run(adapter.live, [one], loss, {}, gradient=True)
            adapter.take_gradient(keep=True)
        passes.run(reference.live, given, loss, {}, gradient=True)
        for leaf, tensor in zip(leaves, named.values(), strict=True):
            leaf.grad = tensor.grad
        reference.take_gradient(keep=False)
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        norm = torch.cat([own.flatten() for own in gradients]).norm()
        for own in gradients:
            own *= min(1.0, 0.5 / (float(norm) + 1e-6))
        optimizer.step()
        assert adapter.step(params)["grad_norm:mean"] == pytest.approx(float(norm), rel=1e-4)
        for (name, tensor), leaf in zip(adapter._named().items(), leaves, strict=True):
            assert apart(tensor.detach(), leaf.detach()) < 1e-4, name
            with torch.no_grad():  # the next step begins at the same weights, to the last bit
                leaf.copy_(tensor)
                named[name].copy_(tensor)


def test_a_prompt_has_logprobs_and_the_likeliest_tokens(model: Any, passes: Passes) -> None:
    adapter = moved(model, AdapterShape(4), 9).snapshot()
    values, likeliest = passes.prompt(adapter, STEM.astype(np.int64), 5)
    with passes._mixture.using([Part(adapter)]):
        logits = model(input_ids=torch.from_numpy(STEM)[None]).logits[0, :-1]
    expected = logits.log_softmax(-1)
    chosen = expected.gather(1, torch.from_numpy(STEM[1:])[:, None])[:, 0]
    np.testing.assert_allclose(values, chosen.numpy(), rtol=RTOL, atol=ATOL)
    assert likeliest is not None
    torch.testing.assert_close(likeliest.logprobs, expected.topk(5).values, rtol=RTOL, atol=ATOL)
    assert passes.prompt(None, STEM[:1], 5)[1] is None
