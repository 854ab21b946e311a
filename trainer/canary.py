"""Proof, before the first step, that an engine applies every part of the adapter it is given.

A fresh adapter changes nothing, so a server that ignores it, or drops a part of it because it
expects another name, answers right until the part has been trained for a while. So each kind of
adapted layer in turn is given an effect that is large and known, and published; the engine's
log-probabilities have to move as the trainer's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from vf.inference.settings import VllmSettings
from vf.runtime.errors import ConfigError

if TYPE_CHECKING:
    from vf.trainer.learning.policy import Policy
    from vf.trainer.run.setup import ProbePrompt
    from vf.trainer.settings.config import Config

EFFECT = 0.5  # nats per token at least, in which an adapter's part shows
SHARE = 0.25  # of its effect, by which the engine may differ: what is half as strong is found out
WEAKEST, STRONGEST = 2.0**-7, 2.0**7  # standard deviations of what stands in for the factor B
_FACTOR = ".lora_B."


@dataclass(frozen=True, slots=True)
class Probed:
    """What an engine answered to the prompt that it is probed with.

    Attributes:
        gap: The mean of \\|log q − log p\\| over the sampled tokens, in nats.
        token_ids: What was sampled, by the first server.
    """

    gap: float
    token_ids: tuple[int, ...]


def wants_canary(config: Config, policy: Policy) -> bool:
    """Return whether a run tries its adapter: one that is published to vLLM, by one process."""
    settings = config.inference
    return (
        isinstance(settings, VllmSettings)
        and settings.canary
        and config.args.use_lora
        and policy.ranks.count == 1
    )


def try_adapter(
    policy: Policy,
    prompt: ProbePrompt,
    token_ids: Sequence[int],
    publish: Callable[[], Probed],
    training: Callable[[], AbstractContextManager[None]],
    *,
    tolerance: float,
    say: Callable[[str], None],
) -> None:
    """Publish each kind of adapted layer with a large effect, and compare the log-probabilities.

    The adapter is as before when this returns, but the engine may have the last one that was tried.

    Args:
        policy: The policy that is trained.
        prompt: The prompt that the engine is probed with.
        token_ids: The engine's answer with the adapter as it is.
        publish: Brings the weights as they are to the engine, and probes it.
        training: Makes room for the trainer.
        tolerance: Nats by which the engine may differ from the trainer.
        say: Called with what is being tried.

    Raises:
        ConfigError: If the engine does not apply the adapter, or a part of it; names the layers.
    """
    ignored: dict[str, str] = {}
    adapted = adapted_kinds(policy.model)

    def logprobs() -> list[float]:
        return policy.logprobs(prompt.token_ids, [*token_ids], prompt.images)

    with training():
        before = logprobs()
    for number, (kind, factors) in enumerate(adapted.items(), 1):
        say(f"trying the adapter in the engine: {kind} ({number} of {len(adapted)})")
        with restored(factors):
            with training():
                effect = _strengthen(factors, before, logprobs)
            gap = publish().gap
        if not gap <= max(tolerance, SHARE * effect):
            ignored[kind] = (
                f"{kind} (its effect: {effect:.2f} nats; the engine is off by {gap:.2f})"
            )
    if not ignored:
        return
    layers = ", ".join(ignored.values())
    late = publish().gap > tolerance  # the adapter as it was: an older one is still sampled with
    if late or len(ignored) == len(adapted):
        raise ConfigError(
            f"the engine does not sample with the adapter that it is given: {layers}. Its server "
            "must load adapters, apply them at their own scale, and serve the newest"
        )
    kept = [kind for kind in adapted if kind not in ignored]
    modules = [kind for kind in kept if "." not in kind]
    parameters = [kind for kind in kept if "." in kind]
    targets = f"trainer.args.lora_target_modules = {modules}"
    if parameters:
        targets += f" and lora_target_parameters = {parameters}"
    raise ConfigError(
        "the engine does not apply a part of the adapter as the trainer does, so that it would be "
        f"trained and never sampled with: {layers}. Train what it applies, {targets}, or all "
        "weights (use_lora = false)"
    )


def adapted_kinds(model: Any) -> dict[str, list[torch.nn.Parameter]]:
    """Return the second factors of the adapter, ``B [out, r]``, by the kind of their layer.

    That is the last name of a layer; of a tensor that PEFT adapts by its name, as those of experts,
    the last two.
    """
    kinds: dict[str, list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        layer, factor, _ = name.partition(_FACTOR)
        if factor and parameter.requires_grad:
            kind = layer.removesuffix(".base_layer").rpartition(".")[2]
            tensor = getattr(model.get_submodule(layer), "parameter_name", None)
            kinds.setdefault(kind if tensor is None else f"{kind}.{tensor}", []).append(parameter)
    return kinds


@contextmanager
def restored(parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """Put parameters back as they were at the end of the block."""
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)


def _strengthen(
    factors: Sequence[torch.nn.Parameter],
    before: Sequence[float],
    logprobs: Callable[[], list[float]],
) -> float:
    """Fill factors with noise, twice as strong each time, until it shows; return the effect."""
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(factor.shape, generator=generator) for factor in factors]
    strength, effect = WEAKEST, 0.0
    while effect < EFFECT and strength <= STRONGEST:
        with torch.no_grad():
            for factor, values in zip(factors, noise, strict=True):
                factor.copy_(strength * values)
        effect = fmean(abs(now - p) for now, p in zip(logprobs(), before, strict=True))
        strength *= 2
    return effect
