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

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch

from vf.runtime.errors import ConfigError
from vf.trainer.learning.sharding import Copies

METHOD = "vf_run"  # of a model that is spread: FSDP gathers around it


class Fsdp(Copies):
    """Every process holds a part of each parameter; see :class:`Copies` for the methods.

    Trained parameters, their gradients and the optimizer's state are float32. Where the model
    computes in bfloat16, parameters are rounded before they are gathered, and gradients are summed
    over the processes in float32.

    Raises:
        ConfigError: The launcher asked for FSDP's first version, for a precision that is not the
            trainer's, or for what Accelerate does not take.
    """

    together = True

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
        """Spread a model over the processes: only this one's part moves to its device."""
        from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
        from torch.distributed.fsdp import (
            FSDPModule,
            MixedPrecisionPolicy,
            OffloadPolicy,
            fully_shard,
            register_fsdp_forward_method,
        )

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

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
    ) -> dict[str, Any]:
        """Return the whole state, on the CPU."""
        state: dict[str, Any] = _whole_state(optimizer.state_dict())
        return state

    def load_optimizer_state(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        state: Mapping[str, Any],
    ) -> None:
        """Take this process's part of a whole state."""
        spread = {
            number: {
                name: _spread_like(value, parameters[number])
                if isinstance(value, torch.Tensor)
                else value
                for name, value in entry.items()
            }
            for number, entry in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": spread})


def _call(model: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(model, *args, **options)


def _whole(tensor: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _whole_state(state: Any) -> Any:
    """Return any nest of tensors, put together and on the CPU."""
    if isinstance(state, torch.Tensor):
        return _whole(state).detach().cpu()
    if isinstance(state, Mapping):
        return {key: _whole_state(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(_whole_state, state))
    return state


def _spread_like(value: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a whole tensor, where another tensor is spread; else itself."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(model, DTensor) or value.shape != model.shape:
        return value
    moved = value.to(model.device, copy=True)
    # Every process has the same: none has to send it.
    return distribute_tensor(moved, model.device_mesh, model.placements, src_data_rank=None)
