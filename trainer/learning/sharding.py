"""How the trainer processes hold the model between them: here, each the whole of it.

:mod:`vf.trainer.learning.fsdp` and :mod:`vf.trainer.learning.zero` are the other ways, which
:func:`~vf.trainer.learning.ranks.choose_sharding` takes where the launcher asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch

from vf.trainer.processes.launch import world


class Copies:
    """Every process holds all parameters; :class:`~vf.trainer.learning.ranks.Ranks` sums gradients.

    What it does, another way of holding does its own way: whoever runs the model, steps, or looks
    at parameters asks this class.

    Attributes:
        together: Whether every pass, and every look at parameters, is made by all processes at
            once, and gradients are summed on the way.
    """

    together = False

    def accelerator(self, timeout: timedelta) -> Any:
        """Join the other processes.

        Args:
            timeout: After which a sum has failed.

        Returns:
            Accelerate's handle on this process and its device.
        """
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs

        return Accelerator(
            # Several processes on a machine without CUDA: Accelerate must be told.
            cpu=True if world().size > 1 and not torch.cuda.is_available() else None,
            # It would step the schedule once for every process.
            step_scheduler_with_optimizer=False,
            kwargs_handlers=[InitProcessGroupKwargs(timeout=timeout)],
        )

    def spread(self, model: Any, device: torch.device, *, trained: bool = True) -> None:
        """Put a model where it computes, in place.

        Args:
            model: A causal language model of transformers' on the CPU, with adapters inside its
                layers if any. All processes have the same.
            device: This process's.
            trained: Whether gradients will be asked for.

        Raises:
            ConfigError: The launcher's settings do not fit the model.
        """
        model.to(device)

    def prepare(
        self, accelerator: Any, model: Any, optimizer: torch.optim.Optimizer, max_norm: float
    ) -> None:
        """Take over what is trained, before its first pass.

        Args:
            accelerator: What :meth:`accelerator` returned.
            model: The module that was spread, or the one with the adapter around it.
            optimizer: Of its trained parameters.
            max_norm: What :meth:`step` will clip to.

        Raises:
            ConfigError: The launcher's settings do not fit.
        """

    def run(self, function: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
        """Return ``function(model, *args, **options)``, with the model's parameters at hand."""
        return function(model, *args, **options)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of a loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        factor: float,
        max_norm: float,
    ) -> float:
        """Take an optimizer step, unless the gradient is not finite, and forget the gradient.

        Args:
            optimizer: With its learning rate set.
            parameters: The optimizer's.
            factor: Multiplies the gradient, which is a sum.
            max_norm: Most of the product; it is scaled down to that.

        Returns:
            The norm of the product before it was clipped. Not finite: no step was taken.
        """
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        norm = float(self.whole(torch.nn.utils.clip_grad_norm_(parameters, max_norm)))
        if norm < float("inf"):
            optimizer.step()
        optimizer.zero_grad()
        return norm

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a parameter or buffer put together, detached; it may share the model's memory.

        Where :attr:`together`, all processes call it for the same tensors in the same order.
        """
        return tensor.detach()

    def shape(self, tensor: torch.Tensor) -> torch.Size:
        """Return the shape that :meth:`whole` will have."""
        return tensor.shape

    def put(self, parameter: torch.Tensor, value: torch.Tensor) -> None:
        """Overwrite a parameter or buffer with a whole value, of which each process has a copy."""
        with torch.no_grad():
            parameter.copy_(value)

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
    ) -> dict[str, Any]:
        """Return the optimizer's state; it does not depend on how many processes there are."""
        state: dict[str, Any] = optimizer.state_dict()
        return state

    def load_optimizer_state(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        state: Mapping[str, Any],
    ) -> None:
        """Take back what :meth:`optimizer_state` returned."""
        optimizer.load_state_dict(dict(state))
