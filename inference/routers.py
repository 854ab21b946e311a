"""Which experts a mixture sends a token to: recorded where it samples, and forced where it learns.

A router is what is named ``gate`` or ``router`` beside ``experts``, as transformers has it: it
returns the experts' logits, the weights of the chosen ones, and their numbers.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

FREE = -1  # a place for an expert that is not known: the router chooses itself
_generating = threading.local()


def routers_of(model: Any) -> list[torch.nn.Module]:
    """Return the routers of a model's text part, in the order of the layers.

    Args:
        model: A causal language model of transformers'; one on the device ``meta`` will do.
    """
    return [
        router
        for module in model.get_decoder().modules()
        if hasattr(module, "experts")
        for name, router in module.named_children()
        if name in ("gate", "router")
    ]


def layers_of_routers(model: Any) -> list[int]:
    """Return the number of each router's layer among all layers, dense ones included."""
    by_id = {id(router) for router in routers_of(model)}
    names = [name for name, module in model.get_decoder().named_modules() if id(module) in by_id]
    return [int(next(part for part in name.split(".") if part.isdigit())) for name in names]


def score_matrix(router: torch.nn.Module) -> torch.nn.Parameter:
    """Return a router's only matrix ``[E, H]``, which scores E experts."""
    return next(weight for weight in router.parameters() if weight.dim() == 2)


def check_routers(model: Any) -> None:
    """Check that the choices of a model's routers can be recorded and replayed.

    Each kind of router is called once, with hidden states of zeros.

    Args:
        model: A causal language model of transformers'; one on the device ``meta`` will do.

    Raises:
        ValueError: If there are no routers, or if one does not return ``(logits, weights,
            numbers)``, or does not choose by ``torch.topk`` over all experts.
    """
    routers = {type(router): router for router in routers_of(model)}
    if not routers:
        raise ValueError(f"{type(model).__name__} has no routers of experts")
    for kind, router in routers.items():
        weight = score_matrix(router)
        required = [
            parameter
            for parameter in inspect.signature(router.forward).parameters.values()
            if parameter.default is inspect.Parameter.empty
        ]
        biases = [weight.new_zeros(len(weight)) for _ in required[1:]]
        choices = _Choices(len(weight))
        with torch.no_grad(), choices:
            output = router(weight.new_zeros(1, weight.shape[1]), *biases)
        if not choices.seen or len(output) != 3:
            raise ValueError(
                f"the choices of {kind.__name__}, the router of {type(model).__name__}, cannot be "
                "replayed: it does not choose experts by torch.topk, or does not return them"
            )


class _Choices(TorchFunctionMode):
    """Sees whether ``torch.topk`` is called with the scores ``[T, E]`` of all experts."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self._experts = experts
        self.seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and see whether it is that."""
        if func in (torch.topk, torch.Tensor.topk):
            self.seen |= args[0].dim() == 2 and args[0].shape[-1] == self._experts
        return func(*args, **(kwargs or {}))


class Recorder:
    """Sees what the routers choose in an engine's passes.

    Args:
        model: A causal language model of transformers'.

    Attributes:
        layers: How many there are with experts.
    """

    def __init__(self, model: Any) -> None:
        self._seen: list[torch.Tensor] = []
        routers = routers_of(model)
        self.layers = len(routers)
        for router in routers:
            router.register_forward_hook(self._see)

    def _see(self, router: Any, given: Any, output: Any) -> None:
        if getattr(_generating, "by", None) is self:
            self._seen.append(output[2])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See the passes of this thread until the block ends. None of them is forced."""
        _generating.by = self
        try:
            yield
        finally:
            _generating.by = None

    def take(self, tokens: int) -> np.ndarray:
        """Return what was chosen in the last pass for its first tokens, uint16 ``[tokens, L·k]``.

        Raises:
            ValueError: If the routers did not say.
        """
        seen, self._seen = self._seen, []
        if len(seen) != self.layers or any(choice.dim() != 2 for choice in seen):
            raise ValueError("its routers do not return the numbers of the experts that they chose")
        return torch.cat([choice[:tokens] for choice in seen], -1).cpu().numpy().astype("<u2")


class Forcing(TorchFunctionMode):
    """Has routers choose given experts: their ``torch.topk`` over all experts returns those.

    Whatever else a router does stays as it is: its weights are those that it has for the given
    experts, with their gradient (Ma et al. 2025, "Stabilizing MoE Reinforcement Learning by
    Aligning Training and Inference Routers", arXiv:2510.11370, section 4).

    Args:
        model: A causal language model of transformers'.
        force: Whether choices are replaced, or only compared.

    Attributes:
        compared: How many choices of a layer for a token were compared, since :meth:`use`.
    """

    def __init__(self, model: Any, *, force: bool) -> None:
        super().__init__()
        self._force = force
        self._given: torch.Tensor | None = None
        self._router = -1  # index of the router that is called
        self._replaced = False
        self._counts: list[torch.Tensor] = []
        self.compared = 0
        self._layers = layers_of_routers(model)
        self._experts = [len(score_matrix(router)) for router in routers_of(model)]
        for index, router in enumerate(routers_of(model)):
            router.register_forward_pre_hook(lambda *_, index=index: self._enter(index))
            router.register_forward_hook(self._leave, always_call=True)

    def use(self, experts: torch.Tensor | None) -> None:
        """Use these until others are given, also where activations are computed a second time.

        Args:
            experts: Integers ``[T, L·k]``, of each of the tokens that the model runs on, in their
                order, for all layers with experts or for all layers; ``FREE`` where the router
                chooses itself. None if it always does.
        """
        self._given = experts
        self.compared, self._counts = 0, []

    def take_counts(self) -> tuple[int, int]:
        """Return how many choices were compared since the last call, and how many differed."""
        different = sum((int(count) for count in self._counts), 0)
        compared, self.compared, self._counts = self.compared, 0, []
        return compared, different

    def _enter(self, index: int) -> None:
        if self._given is not None and getattr(_generating, "by", None) is None:
            self._router, self._replaced = index, False
            self.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, router: Any, given: Any, output: Any) -> None:
        if self._router < 0:
            return
        self._router = -1
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if output is not None and not self._replaced:
            raise ValueError(f"{type(router).__name__} does not choose experts by torch.topk")

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace the choice of the layer's experts."""
        top = func(*args, **(kwargs or {}))
        if func not in (torch.topk, torch.Tensor.topk):
            return top
        assert self._given is not None
        scores, chosen = args[0], top[1]
        given = self._of_layer(chosen.shape[-1])
        if given is None or scores.dim() != 2 or scores.shape[-1] != self._experts[self._router]:
            return top  # of groups of experts
        self._replaced = True
        given = given.to(chosen)
        if missing := len(chosen) - len(given):  # rows that pad a pass
            given = torch.nn.functional.pad(given, (0, 0, 0, missing), value=FREE)
        fixed = given >= 0
        same = (chosen.sort(-1).values == given.sort(-1).values).all(-1)
        self._counts.append((fixed.all(-1) & ~same).sum())
        self.compared += int(fixed.all(-1).sum())
        if not self._force:
            return top
        forced = torch.where(fixed, given, chosen)
        return torch.return_types.topk((scores.gather(-1, forced), forced))

    def _of_layer(self, chosen: int) -> torch.Tensor | None:
        """Return the given experts of the layer that is called; None if they are not so many."""
        assert self._given is not None
        count, rest = divmod(self._given.shape[-1], chosen)
        if rest or count < len(self._layers):
            return None
        layer = self._router if count == len(self._layers) else self._layers[self._router]
        return self._given[:, layer * chosen : (layer + 1) * chosen]
