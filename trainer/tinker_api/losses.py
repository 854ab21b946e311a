"""The losses of the Tinker API: sums over tokens, not means.

In the formulas p is the trained model's probability of a target token, q the sampler's, r = p / q,
A the advantage and w the weight, 1 where a datum has none. All are per token; the loss is the sum
over the tokens of a call. Source: https://tinker-docs.thinkingmachines.ai/losses and its pages for
each loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from vf.runtime.errors import ConfigError, did_you_mean

Inputs = Mapping[str, torch.Tensor]
Config = Mapping[str, float]


def cross_entropy(logprobs: torch.Tensor, inputs: Inputs, config: Config) -> torch.Tensor:
    """−w·log p."""
    return -logprobs


def importance_sampling(logprobs: torch.Tensor, inputs: Inputs, config: Config) -> torch.Tensor:
    """−w·r·A."""
    return -_ratio(logprobs, inputs) * inputs["advantages"]


def ppo(logprobs: torch.Tensor, inputs: Inputs, config: Config) -> torch.Tensor:
    """−w·min(r·A, clip(r, low, high)·A) (PPO, arXiv:1707.06347, eq. 7)."""
    ratio, advantages = _ratio(logprobs, inputs), inputs["advantages"]
    return -torch.minimum(ratio * advantages, _clipped(ratio, inputs, config) * advantages)


def cispo(logprobs: torch.Tensor, inputs: Inputs, config: Config) -> torch.Tensor:
    """−w·clip(r, low, high)·A·log p, without a gradient through the clip (arXiv:2506.13585)."""
    ratio = _ratio(logprobs, inputs).detach()
    return -_clipped(ratio, inputs, config) * inputs["advantages"] * logprobs


def dro(logprobs: torch.Tensor, inputs: Inputs, config: Config) -> torch.Tensor:
    """−w·(A·log p − ½·β·(log r)²) (arXiv:2405.19107)."""
    penalty = 0.5 * config["beta"] * (logprobs - inputs["logprobs"]).square()
    return -(inputs["advantages"] * logprobs - penalty)


def _ratio(logprobs: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return (logprobs - inputs["logprobs"]).exp()


def _clipped(ratio: torch.Tensor, inputs: Inputs, config: Config) -> torch.Tensor:
    low, high = (
        inputs.get(name, ratio.new_tensor(config[name]))
        for name in ("clip_low_threshold", "clip_high_threshold")
    )
    return torch.minimum(torch.maximum(ratio, low), high)


@dataclass(frozen=True, slots=True)
class LossFn:
    """A loss by its name in the API.

    Attributes:
        compute: From log p ``[N]`` and the inputs ``[N]`` to the loss of each token, before w.
        required: The inputs that a datum must have beside its target tokens.
        optional: Inputs that it may have beside ``weights``.
        defaults: ``loss_fn_config``, where the call does not set it.
    """

    compute: Callable[[torch.Tensor, Inputs, Config], torch.Tensor]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    defaults: Config

    def __call__(self, logprobs: torch.Tensor, inputs: Inputs, config: Config) -> torch.Tensor:
        """Return the loss of each token, ``[N]``, weights included.

        Args:
            logprobs: log p, float64 ``[N]``, with gradient.
            inputs: The data's tensors ``[N]``, float64.
            config: ``loss_fn_config``, checked by :meth:`configured`.
        """
        losses = self.compute(logprobs, inputs, config)
        return losses * inputs["weights"] if "weights" in inputs else losses

    def configured(self, given: Mapping[str, float | str] | None) -> Config:
        """Return ``loss_fn_config`` with its defaults.

        Raises:
            ConfigError: If a name is unknown, or a value is not a number of at least 0.
        """
        for name, value in (given or {}).items():
            if name not in self.defaults:
                options = ", ".join(self.defaults) or "this loss has none"
                raise ConfigError(f"loss_fn_config.{name}: there is no such option; {options}")
            if not isinstance(value, float) or not math.isfinite(value) or value < 0.0:
                raise ConfigError(f"loss_fn_config.{name} = {value}: must be at least 0")
        config = {**self.defaults, **{name: float(value) for name, value in (given or {}).items()}}
        low, high = config.get("clip_low_threshold", 0.0), config.get("clip_high_threshold", 0.0)
        if low > high:
            raise ConfigError("loss_fn_config.clip_low_threshold: above clip_high_threshold")
        return config


SAMPLED, CLIPS = ("logprobs", "advantages"), ("clip_low_threshold", "clip_high_threshold")
LOSSES: dict[str, LossFn] = {
    "cross_entropy": LossFn(cross_entropy, (), (), {}),
    "importance_sampling": LossFn(importance_sampling, SAMPLED, (), {}),
    "ppo": LossFn(ppo, SAMPLED, CLIPS, dict(zip(CLIPS, (0.8, 1.2), strict=True))),
    "cispo": LossFn(cispo, SAMPLED, CLIPS, dict(zip(CLIPS, (0.0, 4.0), strict=True))),
    "dro": LossFn(dro, SAMPLED, (), {"beta": 0.05}),
}


def find_loss(name: str) -> LossFn:
    """Return a loss.

    Raises:
        ConfigError: If there is none of this name.
    """
    if name not in LOSSES:
        near = did_you_mean(name, LOSSES)
        raise ConfigError(
            f"loss_fn = {name!r}: there are {', '.join(LOSSES)}{'.' * bool(near)}{near}"
        )
    return LOSSES[name]
