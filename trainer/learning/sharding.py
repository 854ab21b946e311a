"""Parameters spread over the trainer processes: FSDP2, as an Accelerate config asks for it.

Each process keeps a part of every parameter, of its gradient and of the optimizer's state. A layer
is put together for as long as it computes, and gradients are summed and spread again behind it. So
all processes must run the same layers in the same order: see
:meth:`~vf.trainer.learning.policy.Policy.add_gradient`.

Accelerate has the settings, torch's ``fully_shard`` does the work (Zhao et al. 2023,
arXiv:2304.11277, in its second version). Accelerate's own preparation would give the head a unit of
its own, whose weight :mod:`vf.trainer.learning.head` could not reach in chunks; here it belongs to
the whole model's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import MethodType
from typing import Any

import torch

from vf.traces.errors import ConfigError
from vf.trainer.launch import is_sharded
from vf.trainer.learning.forward import METHOD, tree_logprobs


def sharding_plugin() -> Any | None:
    """Return Accelerate's settings for FSDP if the launcher asked for it, else None.

    Raises:
        ConfigError: It asked for FSDP's first version, or for what Accelerate does not take.
    """
    if not is_sharded():
        return None
    from accelerate import FullyShardedDataParallelPlugin

    try:
        plugin = FullyShardedDataParallelPlugin()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the FSDP settings of Accelerate: {error}") from error
    if plugin.fsdp_version != 2:
        raise ConfigError(
            "the FSDP settings of Accelerate are for its first version; set fsdp_version: 2"
        )
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision != "no":
        plugin.set_mixed_precision(precision)
    return plugin


def shard(model: Any, plugin: Any, *, trained: bool = True) -> None:
    """Spread a model's parameters over the processes, in place.

    Args:
        model: A causal language model of transformers', with adapters inside its layers if any. It
            may be on the CPU: only this process's part moves to its device.
        plugin: Accelerate's settings (:func:`sharding_plugin`).
        trained: Whether gradients will be asked for.

    Raises:
        ConfigError: The settings name layers that the model does not have.
    """
    from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    settings: dict[str, Any] = {
        "offload_policy": plugin.cpu_offload or OffloadPolicy(),
        "mp_policy": plugin.mixed_precision_policy or MixedPrecisionPolicy(),
        "reshard_after_forward": plugin.reshard_after_forward,
    }
    try:
        plugin.set_auto_wrap_policy(model)
        layer = fsdp2_prepare_auto_wrap_policy(plugin, model)
    except ValueError as error:
        raise ConfigError(f"the FSDP settings of Accelerate: {error}") from error
    for module in list(model.modules())[:0:-1] if layer is not None else ():
        if layer(module):
            fully_shard(module, **settings)
    # What lies outside of the layers, the head with it, is whole for all of a pass.
    fully_shard(model, **settings | {"reshard_after_forward": False})
    for module in model.modules():
        if isinstance(module, FSDPModule) and trained:
            # A rank's loss is a sum already. gloo knows no multiplied sum, so no factor either.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    setattr(model, METHOD, MethodType(tree_logprobs, model))
    register_fsdp_forward_method(model, METHOD)


def whole(tensor: Any) -> Any:
    """Return a tensor put together from all processes' parts; what is none, as it is.

    All processes must call it for the same tensors in the same order.
    """
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread_like(value: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a whole tensor, where another tensor is spread; else itself."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(model, DTensor) or value.shape != model.shape:
        return value
    moved = value.to(model.device, copy=True)
    # Every process has the same: none has to send it.
    return distribute_tensor(moved, model.device_mesh, model.placements, src_data_rank=None)


def whole_state(state: Any) -> Any:
    """Return an optimizer's state, or any nest of tensors, put together and on the CPU."""
    if isinstance(state, torch.Tensor):
        return whole(state).detach().cpu()
    if isinstance(state, Mapping):
        return {key: whole_state(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(whole_state, state))
    return state


def spread_state(state: Mapping[str, Any], parameters: Iterable[torch.Tensor]) -> dict[str, Any]:
    """Return a whole optimizer state as this process's optimizer holds it.

    Args:
        state: What ``optimizer.state_dict()`` gave, put together (:func:`whole_state`).
        parameters: The optimizer's, in its order.
    """
    models = list(parameters)
    spread = {
        number: {
            name: spread_like(value, models[number]) if isinstance(value, torch.Tensor) else value
            for name, value in entry.items()
        }
        for number, entry in state["state"].items()
    }
    return {**state, "state": spread}
