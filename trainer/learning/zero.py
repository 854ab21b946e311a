"""Optimizer state, gradients and parameters spread over the trainer processes: DeepSpeed's ZeRO.

Stage 1 spreads Adam's moments, stage 2 gradients too, stage 3 parameters too (Rajbhandari et al.
2020, arXiv:1910.02054). Stages 1 and 2 keep the model whole in every process; in stage 3 a layer is
put together for as long as it computes.

An Accelerate config has the settings, DeepSpeed's engine does the work. It sees parameters through
hooks on modules and gathers only what runs inside of its own ``forward``, so whatever the trainer
does with the model goes through :meth:`Zero.run`. It averages gradients over processes, and clips
while it steps: :meth:`Zero.step` makes that the sum times a factor by way of its loss scale.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from vf.runtime.errors import ConfigError
from vf.trainer.learning.sharding import Copies
from vf.trainer.processes.launch import check_deepspeed

MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch's AdamW calls them


class Zero(Copies):
    """Processes share the work of the optimizer, and in stage 3 the parameters.

    See :class:`Copies` for the methods.

    Raises:
        ConfigError: DeepSpeed is missing or too old.
    """

    together = True

    def __init__(self) -> None:
        check_deepspeed()
        self._engine: Any = None
        self._modules: set[int] = set()  # ids of those that the engine holds

    def accelerator(self, timeout: timedelta) -> Any:
        """Join the other processes; see :class:`Copies`.

        Raises:
            ConfigError: The settings ask for what cannot be.
        """
        from accelerate import Accelerator
        from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs

        cuda = torch.cuda.is_available()
        if not cuda:
            # DeepSpeed would compile an extension for sums in shared memory; gloo does without.
            operations = importlib.import_module("deepspeed.ops")
            operations.__compatible_ops__["deepspeed_shm_comm"] = False
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        # It calls what newer releases of torch have under other names.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        try:
            plugin = DeepSpeedPlugin(zero3_init_flag=False)
        except (ValueError, TypeError, AssertionError, OSError) as error:
            raise ConfigError(f"the DeepSpeed settings of Accelerate: {error}") from error
        _settle(plugin.deepspeed_config)
        accelerator = Accelerator(
            deepspeed_plugin=plugin,
            step_scheduler_with_optimizer=False,
            kwargs_handlers=[
                InitProcessGroupKwargs(backend="nccl" if cuda else "gloo", timeout=timeout)
            ],
        )
        _load_models_whole()
        if accelerator.mixed_precision == "fp16":
            raise ConfigError(NO_FP16)
        return accelerator

    def spread(self, model: Any, device: torch.device, *, trained: bool = True) -> None:
        """Leave to :meth:`prepare` what is trained; another model is whole in every process."""
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
        # Made now and not in the first step, so that a checkpoint can be loaded before that.
        state, inner = optimizer.state, self._engine.optimizer
        for part in self._parts:
            state[part] = {
                "step": torch.tensor(0.0),
                **{name: torch.zeros_like(part) for name in MOMENTS},
            }
        if self._engine.zero_optimization_stage() < 3:
            inner._lazy_init_hp_params_optimizer_state()

    @property
    def _parts(self) -> list[torch.Tensor]:
        """What the optimizer steps: this process's parts of the parameters, laid end to end."""
        inner = self._engine.optimizer
        if self._engine.zero_optimization_stage() == 3:
            return list(inner.fp32_partitioned_groups_flat)
        return list(inner.single_partition_of_fp32_groups)

    def run(self, function: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
        """Run a function inside of the engine, if the model is the trained one."""
        if id(model) not in self._modules:
            return function(model, *args, **options)
        return self._engine(lambda: function(model, *args, **options))

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of a loss, on all processes at once."""
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        factor: float,
        max_norm: float,
    ) -> float:
        """Take an optimizer step; clips to what :meth:`prepare` was told."""
        inner = self._engine.optimizer
        # What was gathered is the mean over the processes, and it divides by the loss's scale.
        inner.external_loss_scale = inner.loss_scale / (factor * dist.get_world_size())
        inner.custom_loss_scaler = True
        try:
            self._engine.step()
        finally:
            inner.custom_loss_scaler, inner.external_loss_scale = False, None
        if not self._engine.was_step_applied():
            return float("inf")
        return float(self._engine.get_global_grad_norm())

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """Put a parameter together; in float32, as it is stepped, if its pass has less."""
        from deepspeed.runtime.zero import GatheredParameters
        from deepspeed.utils import safe_get_full_fp32_param

        if tensor.dtype != torch.float32 and _is_trained(tensor):
            exact: torch.Tensor = safe_get_full_fp32_param(tensor)
            return exact.detach()
        if not hasattr(tensor, "ds_id"):
            return tensor.detach()
        with GatheredParameters([tensor]):
            return tensor.detach().clone()

    def shape(self, tensor: Any) -> torch.Size:
        """Return the shape of a parameter put together."""
        shape: torch.Size = getattr(tensor, "ds_shape", tensor.shape)
        return shape

    def put(self, parameter: torch.Tensor, value: torch.Tensor) -> None:
        """Overwrite this process's part, and the float32 copy that is stepped."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

        value = value.to(parameter.device)
        spread = hasattr(parameter, "ds_id")
        with torch.no_grad():
            if not spread or parameter.numel():
                parameter.copy_(value)
            if spread:
                part = _part(value, parameter)
                parameter.ds_tensor.copy_(part)  # type: ignore[attr-defined]
            if not _is_trained(parameter):
                return
            if spread:
                safe_set_local_fp32_param(parameter, part)
            else:
                safe_set_full_fp32_param(parameter, value)

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
    ) -> dict[str, Any]:
        """Return the state that one process's optimizer would have, on the CPU."""
        from deepspeed.utils import safe_get_full_optimizer_state

        step = optimizer.state[self._parts[0]]["step"]
        state = {
            number: {"step": step.detach().cpu().clone()}
            | {
                name: safe_get_full_optimizer_state(parameter, name).cpu().clone()
                for name in MOMENTS
            }
            for number, parameter in enumerate(parameters)
        }
        if not float(step):
            state = {}
        [group] = optimizer.param_groups
        return {"state": state, "param_groups": [{**group, "params": list(range(len(parameters)))}]}

    def load_optimizer_state(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        state: Mapping[str, Any],
    ) -> None:
        """Take this process's part of a whole state."""
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        [group], [saved] = optimizer.param_groups, state["param_groups"]
        group.update({name: value for name, value in saved.items() if name != "params"})
        steps = [entry["step"] for entry in state["state"].values()]
        for part in self._parts:
            optimizer.state[part]["step"].fill_(float(max(steps, default=0.0)))
        for number, parameter in enumerate(parameters):
            entry = state["state"].get(number, {})
            for name in MOMENTS:
                value = entry.get(name, torch.zeros(self.shape(parameter)))
                if hasattr(parameter, "ds_id"):
                    safe_set_local_optimizer_state(parameter, _part(value, parameter), name)
                else:
                    safe_set_full_optimizer_state(parameter, value, name)


class _Root(torch.nn.Module):
    """The module whose ``forward`` is anything that the trainer does with the model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config = model.config  # sizes that the settings leave to "auto"

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


NO_FP16 = (
    "the DeepSpeed settings of Accelerate ask for fp16, whose loss scale would skip steps; "
    'use bf16, or mixed_precision: "no"'
)


def _settle(settings: dict[str, Any]) -> None:
    """Change DeepSpeed's settings to those that the trainer needs.

    Raises:
        ConfigError: They ask for what cannot be.
    """
    zero = settings["zero_optimization"]
    if zero["stage"] not in (1, 2, 3):
        raise ConfigError("the DeepSpeed settings of Accelerate: zero_stage must be 1, 2 or 3")
    if settings.get("fp16", {}).get("enabled") is True:
        raise ConfigError(NO_FP16)
    for what in ("offload_optimizer", "offload_param"):
        if zero.get(what, {}).get("device") == "nvme":
            raise ConfigError(
                f"the DeepSpeed settings of Accelerate: {what} to nvme has no checkpoints here; "
                "use cpu or none"
            )
    # The trainer's: its optimizer, its schedule, and as many micro-batches as a step has.
    for name in ("train_batch_size", "optimizer", "scheduler"):
        settings.pop(name, None)
    settings.update(
        train_micro_batch_size_per_gpu=1,
        gradient_accumulation_steps=1,
        managed_gradient_accumulation=False,
        zero_force_ds_cpu_optimizer=False,
    )
    if zero["stage"] == 1:
        zero["overlap_comm"] = False  # not while each backward pass sums by itself


def _load_models_whole() -> None:
    """Let transformers forget the settings: in stage 3 it would spread models while it loads."""
    from transformers.integrations import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()


def _is_trained(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and (hasattr(tensor, "ds_id") or hasattr(tensor, "_hp_mapping"))


def _part(value: torch.Tensor, parameter: Any) -> torch.Tensor:
    """Return this process's part of a whole value; the last one's may be padded."""
    size = parameter.ds_tensor.numel()
    flat = value.detach().reshape(-1)
    flat = torch.nn.functional.pad(flat, (0, size * dist.get_world_size() - len(flat)))
    return flat.narrow(0, size * dist.get_rank(), size)
