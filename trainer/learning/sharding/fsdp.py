"""Parameters spread over the trainer processes: FSDP2, as an Accelerate config asks for it.

Each process keeps a part of every parameter, of its gradient and of the optimizer's state. A layer
is put together for as long as it computes, and gradients are summed and spread again behind it. So
all processes must run the same layers in the same order: see
:meth:`~vf.trainer.learning.policy.Policy.add_gradient`.

Rank 0 alone reads the model's files, and sends the other processes their parts.

Accelerate has the settings, torch's ``fully_shard`` does the work (Zhao et al. 2023,
arXiv:2304.11277, in its second version). Accelerate's own preparation would give the head a unit of
its own, whose weight :mod:`vf.trainer.learning.model.head` could not reach in chunks; here it
belongs to the whole model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist

from vf.runtime.errors import ConfigError
from vf.trainer.learning.sharding.copies import Copies

METHOD = "vf_run"  # of a model that is spread: FSDP gathers around it


class Fsdp(Copies):
    """Every process holds a part of each parameter; see :class:`Copies` for the methods.

    Trained parameters, their gradients and the optimizer's state are float32. Where the model
    computes in bfloat16, parameters are rounded before they are gathered, and gradients are summed
    over the processes in float32.

    Raises:
        ConfigError: If the launcher asked for FSDP's first version, for a precision that is not the
            trainer's, or for what Accelerate does not take.
    """

    together = True
    one_loads = True

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        from accelerate import FullyShardedDataParallelPlugin

        try:
            self.plugin = FullyShardedDataParallelPlugin()
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the FSDP settings of Accelerate: {error}") from error
        if self.plugin.fsdp_version != 2:
            raise ConfigError(
                "the FSDP settings of Accelerate are for its first version; set fsdp_version: 2"
            )

    def spread(self, model: Any, device: torch.device, *, trained: bool = True) -> None:
        """Spread rank 0's model over the processes: only this one's part is on its device."""
        from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
        from torch.distributed.fsdp import (
            FSDPModule,
            MixedPrecisionPolicy,
            OffloadPolicy,
            fully_shard,
            register_fsdp_forward_method,
        )

        whole = _tensors(model)  # of rank 0, kept until the others have their parts
        if dist.get_rank():
            _make_room(model)
        plugin = self.plugin
        settings: dict[str, Any] = {
            "offload_policy": plugin.cpu_offload or OffloadPolicy(),
            "mp_policy": MixedPrecisionPolicy(self.dtype, torch.float32),
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
        _send(whole, _tensors(model))
        setattr(model, METHOD, MethodType(_call, model))
        register_fsdp_forward_method(model, METHOD)

    def run(self, function: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
        """Run a function around which FSDP gathers what lies outside of the layers."""
        return getattr(model, METHOD)(function, *args, **options)

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """Put a tensor together from all processes' parts; one that is not spread is as it is."""
        whole: torch.Tensor = _whole(tensor.detach())
        return whole

    def served(self, parameter: torch.Tensor) -> torch.Tensor:
        """Put a parameter together, rounded before: less has to be sent."""
        whole: torch.Tensor = _whole(parameter.detach().to(self.dtype))
        return whole

    def put(self, parameter: torch.Tensor, value: torch.Tensor) -> None:
        """Overwrite this process's part."""
        with torch.no_grad():
            parameter.copy_(_spread_like(value, parameter))


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return a model's parameters and buffers by name, detached."""
    named = chain(model.named_parameters(), model.named_buffers())
    return {name: tensor.detach() for name, tensor in named}


def _make_room(model: Any) -> None:
    """Replace what is on the meta device by memory on the CPU, and keep what is shared shared.

    The memory is never written to, so none is really taken, except for the part that FSDP copies.
    """
    made: dict[torch.Tensor, torch.Tensor] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter.is_meta and parameter not in made:
                empty = torch.empty_like(parameter, device="cpu")
                made[parameter] = torch.nn.Parameter(empty, parameter.requires_grad)
            setattr(module, name, made.get(parameter, parameter))
        for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            if buffer.is_meta and buffer not in made:
                made[buffer] = torch.empty_like(buffer, device="cpu")
            setattr(module, name, made.get(buffer, buffer))


def _send(whole: Mapping[str, torch.Tensor], spread: Mapping[str, torch.Tensor]) -> None:
    """Give every process its part of rank 0's tensors, one tensor after the other.

    Args:
        whole: Rank 0's values; on the other ranks only the shapes count.
        spread: The tensors to fill, in the same order on all ranks.
    """
    from torch.distributed.tensor import DTensor, distribute_tensor

    for name, tensor in spread.items():
        if not isinstance(tensor, DTensor):
            value = tensor.contiguous()
            dist.broadcast(value, src=0)
            tensor.copy_(value)
            continue
        mesh = tensor.device_mesh
        value = torch.empty(tensor.shape, dtype=tensor.dtype, device=mesh.device_type)
        if not dist.get_rank():
            value = whole[name].to(value.device)
        part = distribute_tensor(value, mesh, tensor.placements, src_data_rank=0)
        tensor.to_local().copy_(part.to_local())


def _call(model: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(model, *args, **options)


def _whole(tensor: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _spread_like(value: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a whole tensor, where another tensor is spread; else itself."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(model, DTensor) or value.shape != model.shape:
        return value
    moved = value.to(model.device, copy=True)
    # Every process has the same: none has to send it.
    return distribute_tensor(moved, model.device_mesh, model.placements, src_data_rank=None)
