"""Randomness of a model during training: only what was requested.

An engine samples without dropout, so an update with it learns from another policy than the one that
sampled: ratios are far from 1 before the first step. Transformers' models have more of the kind:
noise on the inputs of routers, experts that are drawn, layers that are left out. All of it is
bound to a module's training mode or to a probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def disable_dropout(model: Any) -> None:
    """Set the base model's probabilities of dropout to 0, for good; those of adapters stay.

    Args:
        model: A causal language model of transformers', with adapters inside its layers if any.
    """
    for module in set(model.modules()) - set(_of_adapters(model)):
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name in _probabilities(module):
            setattr(module, name, 0.0)


def modes_of_training(model: Any, *, base: bool) -> list[torch.nn.Module]:
    """Return the modules to be in training mode during updates; all others evaluate.

    Args:
        model: A causal language model of transformers', with adapters inside its layers if any.
        base: Whether the base model's dropout is wanted.
    """
    if base:
        return list(model.modules())
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = (
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    )
    # They recompute activations in training mode only.
    return [*(layer for layer in layers if layer.gradient_checkpointing), *_of_adapters(model)]


@contextmanager
def training_mode(model: torch.nn.Module, modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Put modules into training mode for an update; generation has no dropout."""
    for module in modules:
        module.training = True
    try:
        yield
    finally:
        model.eval()


def has_dropout(modules: Iterable[torch.nn.Module]) -> bool:
    """Return whether any module drops activations in training mode."""
    for module in modules:
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0.0:
            return True
        if any(True for _ in _probabilities(module)):
            return True
    return False


def _of_adapters(model: Any) -> list[torch.nn.Module]:
    return [module for name, module in model.named_modules() if "lora_dropout" in name.split(".")]


def _probabilities(module: torch.nn.Module) -> Iterator[str]:
    """Yield the names of a module's own probabilities that are above 0."""
    for name, value in list(vars(module).items()):
        if "drop" in name and isinstance(value, float) and value > 0.0:
            yield name
