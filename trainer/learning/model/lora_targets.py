"""What LoRA adapts in a model, and the adapter that does so.

Mixtures of experts hold the weights of all experts of a layer in one tensor ``[E, ., .]``, which no
linear layer owns. PEFT adapts such a tensor by its name (``target_parameters``), with r rows of A
and columns of B for each expert.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from vf.runtime.errors import ConfigError, did_you_mean
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.settings.shared import SharedArgs

# Parts of the path of what chooses experts, and of what weighs the one that all tokens share.
ROUTERS = frozenset({"router", "gate", "shared_expert_gate"})
_SETTINGS = {"attention": "train_attn", "MLP": "train_mlp", "head": "train_unembed"}


@dataclass(frozen=True, slots=True)
class _Weight:
    """A matrix, or the matrices of all experts, that could be adapted.

    Attributes:
        name: The name of the linear layer, or of the stacked parameter itself.
        kind: ``attention``, ``MLP``, ``experts``, ``head`` or ``router``.
        shape: ``[out, in]``, or ``[E, ., .]``.
    """

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def setting(self) -> str | None:
        """The setting that has it adapted."""
        return _SETTINGS.get("MLP" if self.kind == "experts" else self.kind)

    @property
    def parameter(self) -> str:
        """The name of the tensor."""
        return self.name if self.kind == "experts" else f"{self.name}.weight"

    def adapter(self, rank: int) -> int:
        """Return the number of parameters that an adapter has for it."""
        *stacked, rows, columns = self.shape
        return rank * (rows + columns) * (stacked[0] if stacked else 1)


@dataclass(frozen=True, slots=True)
class LoraTargets:
    """What is adapted.

    Attributes:
        modules: PEFT's ``target_modules``: names of linear layers, or ends of names.
        parameters: PEFT's ``target_parameters``: names of tensors, or ends of names.
        parts: The same in words, like ``attention (q_proj, v_proj)``; empty where settings name it.
        routers: Whether there are routers, which are left alone.
        trained: Parameters of the adapter, if they can be known from the model's shapes.
    """

    modules: list[str]
    parameters: list[str]
    parts: tuple[str, ...] = ()
    routers: bool = False
    trained: int | None = None

    def describe(self) -> str:
        """Return what is adapted, in one line."""
        text = ", ".join(self.parts or (*self.modules, *self.parameters))
        if self.routers:
            text += "; router left alone"
        return text if self.trained is None else f"{text}; {self.trained / 1e6:,.2f} M trained"


def lora_targets(model: Any, args: TrainerArgs) -> LoraTargets:
    """Return what is adapted in the text part of a model, or in all of it, and never a router.

    A linear layer is the head if it gives the logits, attention if its path has a part that
    contains ``attn`` or ``attention`` or it is in a module of a class that does; otherwise it
    counts with the MLP (state-space mixers too), as experts do. What ``lora_target_modules`` and
    ``lora_target_parameters`` name is returned as it is.

    Args:
        model: A causal language model of transformers', before it is adapted; one on the device
            ``meta`` will do.
        args: ``[trainer.args]``.

    Raises:
        ConfigError: If the model has nothing of a wanted kind or of a name in the settings, or if
            there is to be dropout where there can be none.
    """
    targets = _named(model, args) or _by_setting(model, args)
    if targets.parameters and args.lora_dropout:
        raise ConfigError(
            f"trainer.args.lora_dropout = {args.lora_dropout:g}: PEFT has no dropout for experts "
            f"and other tensors that it adapts by name ({', '.join(targets.parameters)}); set it "
            "to 0, or name layers in lora_target_modules"
        )
    return targets


def _named(model: Any, args: TrainerArgs) -> LoraTargets | None:
    if args.lora_target_modules is not None or args.lora_target_parameters is not None:
        named = args.lora_target_parameters or []
        _check_modules(model, args.lora_target_modules or [])
        _check_parameters(model, named)
        return LoraTargets(args.lora_target_modules or [], named)
    return None


def _by_setting(model: Any, args: TrainerArgs) -> LoraTargets:
    weights = list(_weights(model, everywhere=args.train_vision))
    targets = []
    requested = {
        "train_attn": args.train_attn,
        "train_mlp": args.train_mlp,
        "train_unembed": args.train_unembed,
    }
    for setting, is_asked in requested.items():
        if is_asked:
            chosen = [weight for weight in weights if weight.setting == setting]
            if not chosen:
                raise ConfigError(
                    f"trainer.args.{setting}: {type(model).__name__} has no such layer that can be "
                    "adapted; set it to false, or name layers in lora_target_modules"
                )
            targets += chosen
    stacked = {weight for weight in targets if weight.kind == "experts"}
    # PEFT takes a linear layer "gate_proj" of some mixtures of experts for those of the experts,
    # as models had them before transformers 5. By its tensor it is adapted as what it is.
    if stacked:
        stacked |= {weight for weight in targets if weight.kind == "MLP"}
    if args.load_in_4bit:  # such a tensor is packed
        targets = [
            weight for weight in targets if weight.kind == "experts" or weight not in stacked
        ]
        stacked &= set(targets)
    modules = _ends(
        [weight.name for weight in targets if weight not in stacked],
        [name for name, _ in model.named_modules()],
        parts=1,
    )
    parameters = _ends(
        [weight.parameter for weight in targets if weight in stacked],
        [name for name, _ in model.named_parameters(remove_duplicate=False)],
        parts=2,
    )
    return LoraTargets(
        modules,
        parameters,
        tuple(_in_words(targets)),
        any(weight.kind == "router" for weight in weights),
        sum(weight.adapter(args.lora_rank) for weight in targets),
    )


def lora_config(args: SharedArgs, targets: LoraTargets) -> Any:
    """Return PEFT's config of an adapter.

    Args:
        args: ``[trainer.args]``, or those of a warm start.
        targets: The layers and tensors to adapt.
    """
    from peft import LoraConfig

    return LoraConfig(
        r=args.lora_rank,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules=targets.modules,
        target_parameters=targets.parameters or None,
        task_type="CAUSAL_LM",
    )


def linear_layers(model: Any, *, attention: bool, mlp: bool, head: bool) -> list[str]:
    """Return the names of a model's linear layers of the wanted kinds; see :func:`lora_targets`.

    Raises:
        ConfigError: If there is no layer of a wanted kind, or the MLP is of experts whose weights
            are one tensor.
    """
    weights = list(_weights(model))
    names: list[str] = []
    for kind, setting in _SETTINGS.items():
        chosen = {"attention": attention, "MLP": mlp, "head": head}[kind]
        own = [weight for weight in weights if weight.setting == setting]
        if chosen and not own:
            raise ConfigError(
                f"{setting}: {type(model).__name__} has no such layer; set it to false"
            )
        if chosen and any(weight.kind == "experts" for weight in own):
            raise ConfigError(
                f"{setting}: the experts of {type(model).__name__} are one tensor per layer, which "
                "is not adapted here; set it to false"
            )
        names += [weight.name for weight in own] if chosen else []
    return names


def _weights(model: Any, *, everywhere: bool = False) -> Iterator[_Weight]:
    """Yield the linear layers, the stacked experts and the routers of a model, in its order.

    Args:
        model: The model.
        everywhere: Whether those beside its text part count, too.
    """
    head = model.get_output_embeddings()
    text = set((model if everywhere else model.get_decoder()).modules())
    for name, module in model.named_modules():
        parts = name.split(".")
        if module is head:
            yield _Weight(name, "head", _shape(module))
        elif module not in text:
            continue
        elif ROUTERS & set(parts):
            yield _Weight(name, "router", ())
        elif isinstance(module, torch.nn.Linear):
            parent = model.get_submodule(".".join(parts[:-1]))
            # The kernels of a state-space mixer read this layer's weight and never call the layer.
            if parts[-1] == "out_proj" and hasattr(parent, "A_log") and hasattr(parent, "D"):
                continue
            attention = any("attn" in part or "attention" in part for part in parts)
            attention = attention or "Attention" in type(parent).__name__
            yield _Weight(name, "attention" if attention else "MLP", _shape(module))
        else:
            for own, parameter in module.named_parameters(recurse=False):
                # A depthwise convolution has as many dimensions, but one of size 1.
                if parameter.dim() == 3 and min(parameter.shape) > 1:
                    yield _Weight(f"{name}.{own}", "experts", tuple(parameter.shape))


def _shape(linear: Any) -> tuple[int, int]:
    # Not the weight's own, which is packed in 4 bits.
    return linear.out_features, linear.in_features


def _ends(targets: list[str], names: Collection[str], parts: int) -> list[str]:
    """Return the ends of targets if no other name ends so, otherwise the targets.

    Args:
        targets: Names of targets.
        names: All names, including those of targets.
        parts: The parts of an end.
    """

    def end(name: str) -> str:
        return ".".join(name.split(".")[-parts:])

    own = {end(name) for name in targets}
    others = {end(name) for name in set(names) - set(targets)}
    return sorted(targets if own & others else own)


def _in_words(weights: list[_Weight]) -> Iterator[str]:
    kinds: dict[str, dict[str, None]] = {}
    for weight in weights:
        kinds.setdefault(weight.kind, {})[weight.name.rpartition(".")[2]] = None
    for kind, names in kinds.items():
        yield f"{kind} ({', '.join(names)})"


def _check_modules(model: Any, names: list[str]) -> None:
    layers = [
        name
        for name, module in model.named_modules()
        if "weight" in dict(module.named_parameters(recurse=False))
    ]
    experts = [weight.parameter for weight in _weights(model) if weight.kind == "experts"]
    for name in names:
        if any(f".{layer}".endswith(f".{name}") for layer in layers):
            continue
        advice = did_you_mean(name, {layer.rpartition(".")[2] for layer in layers})
        if experts:
            ends = sorted({".".join(path.split(".")[-2:]) for path in experts})
            advice += f" Its experts are named in lora_target_parameters: {', '.join(ends)}."
        raise ConfigError(
            f"trainer.args.lora_target_modules: {type(model).__name__} has no layer {name!r}, "
            f"which would be left out in silence.{advice}"
        )


def _check_parameters(model: Any, named: list[str]) -> None:
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    for name in named:
        if not any(f".{full_name}".endswith(f".{name}") for full_name in names):
            raise ConfigError(
                f"trainer.args.lora_target_parameters: {type(model).__name__} has no parameter "
                f"{name!r}; its names end like {names[-1]!r}"
            )
