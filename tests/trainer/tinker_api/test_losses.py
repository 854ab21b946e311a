"""The losses against formulas written out in numpy's float64, and their gradients likewise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vf.runtime.errors import ConfigError
from vf.trainer.tinker_api.losses import find_loss

Arrays = dict[str, np.ndarray]
COUNT = 400


def drawn(seed: int) -> tuple[np.ndarray, Arrays]:
    """Return log p and inputs; p and q are so far apart that every clip is reached."""
    rng = np.random.default_rng(seed)
    logprobs = -rng.exponential(2.0, COUNT)
    return logprobs, {
        "logprobs": np.minimum(logprobs + rng.normal(0.0, 0.8, COUNT), 0.0),
        "advantages": rng.normal(0.0, 1.5, COUNT),
        "weights": rng.choice([0.0, 1.0, 0.25], COUNT),
    }


def reference(name: str, p: np.ndarray, x: Arrays, config: dict[str, float]) -> tuple[Any, Any]:
    """Return the losses and their derivatives by log p, token by token."""
    losses, slopes = np.zeros(COUNT), np.zeros(COUNT)
    for i in range(COUNT):
        w, log_p = x["weights"][i], p[i]
        if name == "cross_entropy":
            losses[i], slopes[i] = -w * log_p, -w
            continue
        a, gap = x["advantages"][i], log_p - x["logprobs"][i]
        r = np.exp(gap)
        low, high = config.get("clip_low_threshold", 0.0), config.get("clip_high_threshold", 0.0)
        if name == "importance_sampling":
            losses[i], slopes[i] = -w * r * a, -w * r * a
        elif name == "ppo":
            held = min(max(r, low), high)
            kept = r * a <= held * a
            losses[i] = -w * min(r * a, held * a)
            slopes[i] = -w * r * a if kept else 0.0
        elif name == "cispo":
            held = min(max(r, low), high)
            losses[i], slopes[i] = -w * held * a * log_p, -w * held * a
        else:
            beta = config["beta"]
            losses[i] = -w * (a * log_p - 0.5 * beta * gap**2)
            slopes[i] = -w * (a - beta * gap)
    return losses, slopes


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("cross_entropy", {}),
        ("importance_sampling", {}),
        ("ppo", {}),
        ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.05}),
        ("cispo", {}),
        ("cispo", {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5}),
        ("dro", {}),
        ("dro", {"beta": 0.7}),
    ],
)
def test_a_loss_and_its_gradient_are_those_of_the_formula(
    name: str, given: dict[str, float]
) -> None:
    loss = find_loss(name)
    config = dict(loss.configured(given))
    p, x = drawn(seed=7)
    leaf = torch.from_numpy(p).requires_grad_()
    losses = loss(leaf, {key: torch.from_numpy(value) for key, value in x.items()}, config)
    torch.autograd.backward(losses.sum())
    expected, slopes = reference(name, p, x, config)
    assert leaf.grad is not None
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(leaf.grad.numpy(), slopes, rtol=0, atol=1e-6)
    assert np.count_nonzero(slopes) > COUNT / 4


def test_thresholds_may_be_given_for_each_token() -> None:
    loss = find_loss("cispo")
    p, x = drawn(seed=8)
    high = np.linspace(0.5, 2.0, COUNT)
    tensors = {key: torch.from_numpy(value) for key, value in x.items()}
    own = loss(
        torch.from_numpy(p),
        tensors | {"clip_high_threshold": torch.from_numpy(high)},
        loss.defaults,
    )
    for i in range(0, COUNT, 40):
        config = {"clip_low_threshold": 0.0, "clip_high_threshold": float(high[i])}
        expected = loss(torch.from_numpy(p), tensors, config)[i]
        assert float(own[i]) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("ppo", {"clip": 0.2}, "loss_fn_config.clip: there is no such option"),
        ("ppo", {"clip_low_threshold": 1.5}, "clip_low_threshold: above clip_high_threshold"),
        ("dro", {"beta": -1.0}, "loss_fn_config.beta = -1.0: must be at least 0"),
        ("dro", {"beta": float("nan")}, "loss_fn_config.beta = nan"),
        ("dro", {"beta": "0.1"}, "loss_fn_config.beta = 0.1: must be"),
    ],
)
def test_a_wrong_option_is_named(name: str, config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_loss(name).configured(config)


def test_an_unknown_loss_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'pop'.*cross_entropy.*Did you mean 'ppo'"):
        find_loss("pop")
