"""Optimizer state, gradients and parameters sharded over the trainer processes: DeepSpeed's ZeRO.

Stage 1 shards Adam's moments, stage 2 gradients too, stage 3 parameters too (Rajbhandari et al.
2020, arXiv:1910.02054). In stages 1 and 2 every process holds the whole model; in stage 3 a layer
is gathered while it computes.

The settings come from an Accelerate config, and DeepSpeed's engine does the work. It gathers only
what runs inside its own ``forward``, so everything that runs the model goes through
:meth:`Zero.run`. It averages gradients over processes and clips while it steps: :meth:`Zero.step`
turns that average into the sum times a factor by overriding the loss scale.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from vf.runtime.errors import ConfigError
from vf.trainer.learning.sharding.checkpoint_shards import OPTIMIZER, PARAMETERS, Stored
from vf.trainer.learning.sharding.copies import Copies, check_precision
from vf.trainer.processes.launch import check_deepspeed, zero_stage

MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch's AdamW calls them
SETTINGS = "the DeepSpeed settings of Accelerate"
NO_FP16 = (
    f"{SETTINGS} ask for fp16, whose loss scale would skip steps; leave it out, for "
    "trainer.args.bf16 decides"
)


class Zero(Copies):
    """Processes share the work of the optimizer, and in stage 3 the parameters.

    See :class:`Copies` for the methods.

    Raises:
        ConfigError: If DeepSpeed is missing or too old.
    """

    together = True

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        check_deepspeed()
        self._engine: Any = None
        self._modules: set[int] = set()  # ids of the modules that the engine holds
        self._trained: set[int] = set()  # ids of the parameters that it trains

    def accelerator(self, timeout: timedelta) -> Any:
        """Join the other processes; see :class:`Copies`.

        Raises:
            ConfigError: If the settings are not possible.
        """
        from accelerate import Accelerator
        from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs

        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        # It calls torch functions that newer releases have renamed.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        try:
            plugin = DeepSpeedPlugin(zero3_init_flag=False)
        except (ValueError, TypeError, AssertionError, OSError) as error:
            raise ConfigError(f"{SETTINGS}: {error}") from error
        _settle(plugin.deepspeed_config, self.dtype)
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        accelerator = Accelerator(
            deepspeed_plugin=plugin,
            mixed_precision="bf16" if self.dtype == torch.bfloat16 else "no",
            step_scheduler_with_optimizer=False,
            kwargs_handlers=[InitProcessGroupKwargs(backend=backend, timeout=timeout)],
        )
        _load_models_whole()
        return accelerator

    def spread(self, model: Any, device: torch.device, *, trained: bool = True) -> None:
        """Leave the trained model to :meth:`prepare`; another one is whole in every process."""
        if not trained:
            model.to(device)

    def prepare(
        self, accelerator: Any, model: Any, optimizer: torch.optim.Optimizer, max_norm: float
    ) -> None:
        """Hand model and optimizer to DeepSpeed; see :class:`Copies`."""
        accelerator.state.deepspeed_plugin.deepspeed_config["gradient_clipping"] = max_norm
        try:
            self._engine, _ = accelerator.prepare(_Root(model), optimizer)
        except (ValueError, AssertionError, NotImplementedError, RuntimeError) as error:
            raise ConfigError(f"DeepSpeed refuses its settings: {error}") from error
        _load_models_whole()  # a reference too
        self._modules = {id(module) for module in model.modules()}
        self._trained = {
            id(parameter) for parameter in model.parameters() if parameter.requires_grad
        }
        self._make_optimizer_state(model, optimizer)

    def _make_optimizer_state(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """Take a step that changes nothing: a checkpoint can only be loaded into a state."""
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        token = torch.zeros(1, 1, dtype=torch.long, device=self._engine.device)
        logits = self.run(lambda model: model(input_ids=token).logits, model.eval())
        self.backward(0.0 * logits.sum())
        self._engine.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for entry in optimizer.state.values():
            entry["step"].zero_()

    def run(self, function: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
        """Run a function inside the engine, if the model is the trained one."""
        if id(model) not in self._modules:
            return function(model, *args, **options)
        return self._engine(lambda: function(model, *args, **options))

    def most_calls(self, count: int) -> int:
        """Return the most calls of any process: in stage 3 each of them gathers parameters."""
        if zero_stage() != 3:
            return count
        most = torch.tensor(count, device=self._engine.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return int(most)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of a loss, on all processes together."""
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        factor: float,
        max_norm: float,
    ) -> float:
        """Take an optimizer step; clips to the ``max_norm`` that :meth:`prepare` received."""
        inner = self._engine.optimizer
        # The gradient is the mean over the processes, and gets divided by the loss scale.
        inner.override_loss_scale(1.0 / (factor * dist.get_world_size()))
        try:
            self._engine.step()
        finally:
            inner.override_loss_scale(1.0)  # of the next backward passes
        if not self._engine.was_step_applied():
            return float("inf")
        return float(self._engine.get_global_grad_norm())

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gather a parameter; a trained one in float32, as it is stepped."""
        from deepspeed import zero
        from deepspeed.utils import safe_get_full_fp32_param

        if tensor.dtype != torch.float32 and id(tensor) in self._trained:
            exact: torch.Tensor = safe_get_full_fp32_param(tensor)
            return exact.detach()
        if not hasattr(tensor, "ds_id"):
            return tensor.detach()
        with zero.GatheredParameters([tensor]):
            return tensor.detach().clone()

    def served(self, parameter: torch.Tensor) -> torch.Tensor:
        """Gather a parameter, rounded as the engine computes with it."""
        return self.whole(parameter).to(parameter.dtype)

    def shape(self, tensor: Any) -> torch.Size:
        """Return the shape of a parameter once gathered."""
        shape: torch.Size = getattr(tensor, "ds_shape", tensor.shape)
        return shape

    def put(self, parameter: Any, value: torch.Tensor) -> None:
        """Overwrite this process's part, and the float32 copy that is stepped."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

        value = value.to(parameter.device)
        with torch.no_grad():
            if not hasattr(parameter, "ds_id"):
                parameter.copy_(value)
                if id(parameter) in self._trained:
                    safe_set_full_fp32_param(parameter, value)
                return
            if parameter.numel():  # small ones stay whole
                parameter.copy_(value)
            part = _part(value, parameter)
            parameter.ds_tensor.copy_(part)
            safe_set_local_fp32_param(parameter, part)

    def states(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[str, Any]]:
        """Gather one tensor after the other; see :class:`Copies`."""
        from deepspeed.utils import safe_get_full_optimizer_state

        step = next(iter(optimizer.state.values()))["step"]
        for name, parameter in parameters.items():
            yield f"{PARAMETERS}/{name}", self.whole(parameter)
            if not float(step):
                continue
            yield f"{OPTIMIZER}/{name}/step", step
            for moment in MOMENTS:
                whole = safe_get_full_optimizer_state(parameter, moment)
                yield f"{OPTIMIZER}/{name}/{moment}", whole

    def load_states(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, torch.Tensor],
        stored: Stored,
    ) -> None:
        """Take this process's parts, of one whole parameter and its moments after the other."""
        steps = torch.zeros(())
        for name, parameter in parameters.items():
            entry = f"{OPTIMIZER}/{name}"
            values = {
                key: torch.zeros(self.shape(parameter))
                for key in (f"{PARAMETERS}/{name}", *(f"{entry}/{moment}" for moment in MOMENTS))
            }
            if stored.below(entry):
                stored.read({**values, f"{entry}/step": steps})
            else:
                stored.read({f"{PARAMETERS}/{name}": values[f"{PARAMETERS}/{name}"]})
            self.put(parameter, values[f"{PARAMETERS}/{name}"])
            for moment in MOMENTS:
                self._put_moment(parameter, moment, values[f"{entry}/{moment}"])
        for mine in optimizer.state.values():
            mine["step"].fill_(float(steps))

    def _put_moment(self, parameter: Any, moment: str, value: torch.Tensor) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        if hasattr(parameter, "ds_id"):
            safe_set_local_optimizer_state(parameter, _part(value, parameter), moment)
        else:
            safe_set_full_optimizer_state(parameter, value, moment)


class _Root(torch.nn.Module):
    """The module whose ``forward`` is anything that the trainer does with the model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config = model.config  # DeepSpeed reads sizes for settings that are "auto"

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


def _settle(settings: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """Change DeepSpeed's settings to those that the trainer needs.

    Args:
        settings: Its own.
        dtype: In what the model computes.

    Raises:
        ConfigError: If DeepSpeed's settings are not possible here.
    """
    zero = settings["zero_optimization"]
    if zero["stage"] not in (1, 2, 3):
        raise ConfigError(f"{SETTINGS}: zero_stage must be 1, 2 or 3")
    if settings.get("fp16", {}).get("enabled") is True:
        raise ConfigError(NO_FP16)
    check_precision("bf16" if settings.get("bf16", {}).get("enabled") is True else "no", dtype)
    if dtype == torch.bfloat16:
        if zero["stage"] == 1:
            raise ConfigError(
                f"{SETTINGS}: zero_stage 1 has no sums of gradients in float32 for "
                "trainer.args.bf16 = true; take stage 2 or 3"
            )
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    for what in ("offload_optimizer", "offload_param"):
        if zero.get(what, {}).get("device") == "nvme":
            raise ConfigError(
                f"{SETTINGS}: {what} to nvme cannot be saved in checkpoints; use cpu or none"
            )
    # The trainer has its own optimizer and schedule, and any number of micro-batches in a step.
    for name in ("train_batch_size", "optimizer", "scheduler"):
        settings.pop(name, None)
    settings.update(
        train_micro_batch_size_per_gpu=1,
        gradient_accumulation_steps=1,
        managed_gradient_accumulation=False,
        zero_force_ds_cpu_optimizer=False,
    )
    if zero["stage"] == 1:
        zero["overlap_comm"] = False  # each backward pass sums by itself


def _load_models_whole() -> None:
    """Let transformers forget the settings: in stage 3 it would shard models while it loads."""
    from transformers.integrations import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()


def _part(value: torch.Tensor, parameter: Any) -> torch.Tensor:
    """Return this process's part of a whole value; the last one's may be padded."""
    size = parameter.ds_tensor.numel()
    flat = value.detach().reshape(-1)
    flat = torch.nn.functional.pad(flat, (0, size * dist.get_world_size() - len(flat)))
    return flat.narrow(0, size * dist.get_rank(), size)
