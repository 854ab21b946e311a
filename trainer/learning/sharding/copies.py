"""How the trainer processes hold the model: here, each holds a whole copy.

:mod:`vf.trainer.learning.sharding.fsdp` and :mod:`vf.trainer.learning.sharding.zero` are the other
ways; :func:`~vf.trainer.learning.sharding.ranks.choose_sharding` chooses what the launcher's
settings ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch

from vf.runtime.errors import ConfigError
from vf.trainer.learning.sharding.checkpoint_shards import OPTIMIZER, PARAMETERS, Stored
from vf.trainer.processes.launch import precision, world

_NAMES = {"bf16": torch.bfloat16, "no": torch.float32}


def check_precision(requested: str, dtype: torch.dtype) -> None:
    """Compare the precision that a launcher's settings ask for with the trainer's.

    Args:
        requested: Accelerate's ``mixed_precision``; ``no`` leaves it to the trainer.
        dtype: The dtype in which the trained model computes.

    Raises:
        ConfigError: If the precisions differ.
    """
    if requested != "no" and _NAMES.get(requested) != dtype:
        raise ConfigError(
            f'the Accelerate config asks for mixed_precision: "{requested}", but trainer.args.bf16 '
            f"has the model compute in {str(dtype).removeprefix('torch.')}; leave mixed_precision "
            "out, for trainer.args.bf16 decides"
        )


class Copies:
    """Every process holds all parameters; ``Ranks`` sums their gradients.

    Subclasses shard the model. Everything that runs the model, takes a step, or reads or writes
    parameters goes through this class.

    Args:
        dtype: In what the trained model computes.

    Attributes:
        together: Whether all processes must make every pass, and every access to parameters,
            together; gradients are then summed on the way, and what is trained is float32, which
            is rounded while it computes.
        one_loads: Whether rank 0 alone reads a model's files, and :meth:`spread` sends the other
            processes their parts; until then their model is on the meta device.
        dtype: In what the trained model computes.

    Raises:
        ConfigError: If the launcher's settings ask for another precision.
    """

    together = False
    one_loads = False

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        check_precision(precision(), dtype)

    def accelerator(self, timeout: timedelta) -> Any:
        """Join the other processes.

        Args:
            timeout: After which a collective operation fails.

        Returns:
            Accelerate's handle on this process and its device.
        """
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs

        return Accelerator(
            # Accelerate does not find out about several processes on a machine without CUDA.
            cpu=True if world().size > 1 and not torch.cuda.is_available() else None,
            # Otherwise it steps the schedule once for every process.
            step_scheduler_with_optimizer=False,
            kwargs_handlers=[InitProcessGroupKwargs(timeout=timeout)],
        )

    def spread(self, model: Any, device: torch.device, *, trained: bool = True) -> None:
        """Move a model to where it computes, in place.

        Args:
            model: A causal language model from transformers on the CPU, with adapters inside its
                layers if any. It is the same in all processes; see :attr:`one_loads`.
            device: This process's.
            trained: Whether it will be trained.

        Raises:
            ConfigError: If the launcher's settings do not fit the model.
        """
        model.to(device)

    def prepare(
        self, accelerator: Any, model: Any, optimizer: torch.optim.Optimizer, max_norm: float
    ) -> None:
        """Prepare the trained model and its optimizer, before the first pass.

        Args:
            accelerator: The result of :meth:`accelerator`.
            model: The module from :meth:`spread`, or the adapter's module around it.
            optimizer: The optimizer of its trained parameters.
            max_norm: The ``max_norm`` of later calls of :meth:`step`.

        Raises:
            ConfigError: If the launcher's settings do not fit.
        """

    def run(self, function: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
        """Return ``function(model, *args, **options)``, run where parameters can be gathered."""
        return function(model, *args, **options)

    def most_calls(self, count: int) -> int:
        """Return how often all processes must call a module that this one calls so often."""
        return count

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
        """Take an optimizer step, unless the gradient is not finite, and clear the gradient.

        Args:
            optimizer: The optimizer, with its learning rate set.
            parameters: The optimizer's.
            factor: Multiplies the gradient, which is a sum.
            max_norm: The product is clipped to this norm.

        Returns:
            The norm before clipping. If it is not finite, no step was taken.
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
        """Return a whole parameter or buffer, detached; it may share the model's memory.

        With :attr:`together`, all processes must call it for the same tensors in the same order.
        """
        return tensor.detach()

    def served(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a whole parameter as the model computes with it; see :meth:`whole`."""
        return self.whole(parameter)

    def shape(self, tensor: torch.Tensor) -> torch.Size:
        """Return the shape of what :meth:`whole` returns."""
        return tensor.shape

    def put(self, parameter: torch.Tensor, value: torch.Tensor) -> None:
        """Overwrite a parameter or buffer with a whole value, which each process has."""
        with torch.no_grad():
            parameter.copy_(value)

    def states(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[str, Any]]:
        """Yield what a checkpoint keeps of the training, by name (:mod:`.shards`).

        Values are the tensors themselves, or, with :attr:`together`, parts of them or copies: then
        all processes must call it.

        Args:
            optimizer: The optimizer of the parameters.
            parameters: The optimizer's parameters, by their names in the model, in its order.
        """
        for name, parameter in parameters.items():
            yield f"{PARAMETERS}/{name}", parameter.detach()
            for moment, value in optimizer.state.get(parameter, {}).items():
                yield f"{OPTIMIZER}/{name}/{moment}", value

    def load_states(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, torch.Tensor],
        stored: Stored,
    ) -> None:
        """Take back what :meth:`states` yielded, in place; each process does so for itself.

        What a setting decides, such as the weight decay, stays as it is.
        """
        values: dict[str, Any] = {
            f"{PARAMETERS}/{name}": parameter.detach() for name, parameter in parameters.items()
        }
        names: dict[int, list[tuple[str, str]]] = {}
        for number, (name, parameter) in enumerate(parameters.items()):
            for moment in stored.below(f"{OPTIMIZER}/{name}"):
                key = f"{OPTIMIZER}/{name}/{moment}"
                values[key] = stored.room(key, parameter)
                names.setdefault(number, []).append((moment, key))
        stored.read(values)
        state = {
            number: {moment: values[key] for moment, key in keys} for number, keys in names.items()
        }
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
