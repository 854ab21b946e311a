"""The optimizer's float32 copies of parameters that the module holds in another precision.

A weight in bfloat16 has 8 significant bits, so a step of less than 2⁻⁹ of it is lost in rounding.
Each trained parameter then has a master in float32, which owns the gradient and the optimizer's
state (Micikevicius et al. 2018, arXiv:1710.03740, section 3.1). The module holds the master,
rounded: what it computes with is what an engine samples from, and what is published and exported.

Gradients of micro-batches are added up in float32, and the module keeps none of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch


class Masters:
    """The float32 copies of a module's trained parameters.

    A parameter that is in float32 itself has no copy.

    Args:
        module: The module, on the device that it computes on; the copies take its values.
        offload: Have copies of all trained parameters, in the host's memory.
    """

    def __init__(self, module: Any, *, offload: bool = False) -> None:
        self._module = module
        self._masters: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
        for parameter in module.parameters():
            if parameter.requires_grad and (offload or parameter.dtype != torch.float32):
                device = torch.device("cpu") if offload else parameter.device
                copy = parameter.detach().to(device, torch.float32, copy=True)
                master = self._masters[parameter] = torch.nn.Parameter(copy)
                # The hook knows no more than it needs: Python's collector does not see through it,
                # so what led back to the module would keep that for as long as the process runs.
                parameter.register_post_accumulate_grad_hook(partial(_collect, master))

    def of(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """Return what the optimizer steps for a parameter: its copy, or itself."""
        return self._masters.get(parameter, parameter)

    def named(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield what the optimizer steps, by the parameters' names in the module."""
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad:
                yield name, self.of(parameter)

    def write(self) -> None:
        """Give the module its parameters' new values, rounded."""
        with torch.no_grad():
            for parameter, master in self._masters.items():
                # Rounded first: less has to be moved from the host.
                parameter.copy_(master.to(parameter.dtype))

    def forget_gradients(self) -> None:
        """Drop the gradients that were added up, and what a failed backward pass has left."""
        self._module.zero_grad()
        for master in self._masters.values():
            master.grad = None


def _collect(master: torch.nn.Parameter, parameter: torch.Tensor) -> None:
    """Add a micro-batch's gradient to the master's, in float32."""
    grad, parameter.grad = parameter.grad, None
    if grad is None:
        return
    grad = grad.to(master.device)
    if master.grad is None:
        master.grad = grad.to(master.dtype)
    else:
        master.grad.add_(grad)
