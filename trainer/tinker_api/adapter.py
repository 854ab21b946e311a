"""One tenant's adapter: its weights, its gradient, and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from vf.inference.embedded.lora_mixture import Lora
from vf.runtime.errors import ConfigError, TrainingError
from vf.trainer.learning.model.lora_targets import linear_layers
from vf.trainer.tinker_api.requests import AdamParams

ALPHA = 32  # the scale of an adapter of rank r is ALPHA / r, as Tinker's
PEFT = "base_model.model."  # before a layer's name in PEFT's files
MOMENTS = ("exp_avg", "exp_avg_sq")
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """What of a model an adapter is for.

    Attributes:
        rank: r.
        train_attn: Whether attention layers are adapted.
        train_mlp: Whether the MLP is.
        train_unembed: Whether the head is.
    """

    rank: int
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True

    def layers(self, model: Any) -> list[str]:
        """Return the names of the linear layers that are adapted.

        Raises:
            ConfigError: If a kind is wanted that the model lacks, or none is.
        """
        kinds = {"attention": self.train_attn, "mlp": self.train_mlp, "head": self.train_unembed}
        if not any(kinds.values()):
            raise ConfigError("one of train_attn, train_mlp and train_unembed must be true")
        return linear_layers(model, **kinds)

    def peft_config(self, layers: list[str], base: str) -> dict[str, Any]:
        """Return PEFT's ``adapter_config.json``."""
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": layers,
            "inference_mode": True,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the same as JSON."""
        return asdict(self)


class Adapter:
    """An adapter that is trained.

    Args:
        model: The model that it is for; it stays as it is.
        shape: The shape of the adapter.
        seed: The seed of A; None draws one. B is 0, so that the adapter begins by changing nothing.

    Attributes:
        shape: As given.
        steps: Optimizer steps that were taken.
    """

    def __init__(self, model: Any, shape: AdapterShape, seed: int | None = None) -> None:
        self.shape = shape
        self.steps = 0
        generator = torch.Generator()
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        self._weights: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name in shape.layers(model):
            layer = model.get_submodule(name)
            # PEFT's: uniform in ±1/√in (He et al. 2015, arXiv:1502.01852, with a slope of √5).
            bound = 1.0 / math.sqrt(layer.in_features)
            a = torch.empty(shape.rank, layer.in_features)
            a.uniform_(-bound, bound, generator=generator)
            b, device = torch.zeros(layer.out_features, shape.rank), layer.weight.device
            self._weights[name] = (_trained(a, device), _trained(b, device))
        self._parameters = [tensor for pair in self._weights.values() for tensor in pair]
        self._gradient: list[torch.Tensor] | None = None
        self._optimizer = self._new_optimizer()

    def _new_optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self._parameters, lr=0.0)

    @property
    def size(self) -> int:
        """How many numbers are trained."""
        return sum(tensor.numel() for tensor in self._parameters)

    @property
    def live(self) -> Lora:
        """The adapter as it is now, with its gradients; training changes it."""
        return Lora(self._weights, ALPHA / self.shape.rank)

    def snapshot(self) -> Lora:
        """Return a copy of the adapter, which nothing changes."""
        weights = {
            name: (a.detach().clone(), b.detach().clone()) for name, (a, b) in self._weights.items()
        }
        return Lora(weights, ALPHA / self.shape.rank)

    def take_gradient(self, *, keep: bool) -> None:
        """Add what backward passes have left to the gradient of the step, or drop it."""
        added = [tensor.grad for tensor in self._parameters]
        for tensor in self._parameters:
            tensor.grad = None
        if not keep:
            return
        zeros = [torch.zeros_like(tensor) for tensor in self._parameters]
        parts = [zero if own is None else own for own, zero in zip(added, zeros, strict=True)]
        if self._gradient is None:
            self._gradient = parts
        else:
            torch._foreach_add_(self._gradient, parts)

    def step(self, params: AdamParams) -> dict[str, float]:
        """Take a step of AdamW (arXiv:1711.05101) with the gradient so far, and begin another.

        Without a gradient it is 0. Clipping is by the gradient's L2 norm over all of the adapter,
        where ``grad_clip_norm`` is above 0.

        Returns:
            ``grad_norm:mean``, the norm before clipping.

        Raises:
            TrainingError: If the gradient is not finite; it is dropped.
        """
        gradient, self._gradient = self._gradient, None
        if gradient is None:
            gradient = [torch.zeros_like(tensor) for tensor in self._parameters]
        for tensor, own in zip(self._parameters, gradient, strict=True):
            tensor.grad = own
        limit = params.grad_clip_norm or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, limit))
        if not math.isfinite(norm):
            self.take_gradient(keep=False)
            raise TrainingError(
                "optim_step: the gradient is not finite, so no step was taken and it was dropped; "
                "check the data's logprobs and advantages"
            )
        for group in self._optimizer.param_groups:
            group["lr"], group["eps"] = params.learning_rate, params.eps
            group["betas"] = (params.beta1, params.beta2)
            group["weight_decay"] = params.weight_decay
        self._optimizer.step()
        self.take_gradient(keep=False)
        self.steps += 1
        return {"grad_norm:mean": norm}

    def weights(self) -> Tensors:
        """Return the weights by PEFT's names, on the CPU."""
        return peft_tensors(self._weights)

    def moments(self) -> Tensors:
        """Return the optimizer's state by parameter, on the CPU; nothing before its first step."""
        tensors: Tensors = {}
        for name, tensor in self._named().items():
            if state := self._optimizer.state.get(tensor):
                tensors |= {f"{name}.{key}": state[key].cpu() for key in MOMENTS}
                tensors[f"{name}.step"] = state["step"].cpu()
        return tensors

    def load(self, weights: Tensors, moments: Tensors | None, steps: int) -> None:
        """Take back what :meth:`weights` and :meth:`moments` returned; a gradient is dropped.

        Args:
            weights: The weights.
            moments: The optimizer's state; None begins a new one.
            steps: The number of steps taken before.

        Raises:
            ConfigError: If they are of another adapter.
        """
        named = self._named()
        shapes = {name: tensor.shape for name, tensor in named.items()}
        if shapes != {name: tensor.shape for name, tensor in weights.items()}:
            raise ConfigError(
                "path: the checkpoint is of an adapter of another rank or other layers; create a "
                "training client from it instead"
            )
        with torch.no_grad():
            for name, tensor in named.items():
                tensor.copy_(weights[name])
        self._gradient, self._optimizer = None, self._new_optimizer()
        self.steps = steps if moments is not None else 0
        for name, tensor in named.items():
            if moments and f"{name}.step" in moments:
                state = {key: moments[f"{name}.{key}"].to(tensor.device) for key in MOMENTS}
                self._optimizer.state[tensor] = {**state, "step": moments[f"{name}.step"]}

    def _named(self) -> Tensors:
        return {
            f"{PEFT}{layer}.lora_{which}.weight": tensor
            for layer, pair in self._weights.items()
            for which, tensor in zip("AB", pair, strict=True)
        }


def _trained(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device).requires_grad_()


def peft_tensors(weights: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> Tensors:
    """Return an adapter's tensors by PEFT's names, on the CPU."""
    return {
        f"{PEFT}{layer}.lora_{which}.weight": tensor.detach().cpu()
        for layer, pair in weights.items()
        for which, tensor in zip("AB", pair, strict=True)
    }


def lora_from_peft(tensors: Tensors, rank: int, device: torch.device) -> Lora:
    """Return the adapter of a file of PEFT's."""
    weights: dict[str, list[torch.Tensor]] = {}
    for name, tensor in sorted(tensors.items()):  # A comes before B
        layer = name.removeprefix(PEFT).rpartition(".lora_")[0]
        weights.setdefault(layer, []).append(tensor.to(device))
    return Lora({layer: (pair[0], pair[1]) for layer, pair in weights.items()}, ALPHA / rank)
