"""The reference that a KL penalty measures against: who it is, and how it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from vf.traces.errors import ConfigError
from vf.trainer.learning.sharding import spread_like, whole

State = dict[str, torch.Tensor]


class Reference(Protocol):
    """A model that answers for the reference."""

    def active(self) -> Any:
        """Return a context manager that yields the model to ask; the policy is as it was after."""
        ...

    def follow(self) -> None:
        """Become the policy as it is now."""
        ...

    def state(self) -> State | None:
        """Return what a checkpoint has to keep; None while it is what the run began with."""
        ...

    def load_state(self, state: Mapping[str, torch.Tensor] | None) -> None:
        """Go back to what :meth:`state` returned."""
        ...


class AdapterReference:
    """The policy's own model: without its adapter, or with an earlier one in its place.

    There is no second copy of the model.

    Args:
        model: The module with the adapter.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._adapter: State | None = None  # of the reference; None is none

    @contextmanager
    def active(self) -> Iterator[Any]:
        """Yield the model as the reference; see :class:`Reference`."""
        if self._adapter is None:
            with self._model.disable_adapter():
                yield self._model
            return
        mine = self._trained_copy()
        self._put(self._adapter)
        try:
            yield self._model
        finally:
            self._put(mine)

    def follow(self) -> None:
        """Keep a copy of the adapter as it is now."""
        self._adapter = self._trained_copy()

    def state(self) -> State | None:
        """Return the reference's adapter, on the CPU."""
        if self._adapter is None:
            return None
        return {name: whole(tensor).cpu() for name, tensor in self._adapter.items()}

    def load_state(self, state: Mapping[str, torch.Tensor] | None) -> None:
        """Take an adapter back; see :class:`Reference`."""
        if state is None:
            self._adapter = None
            return
        self._adapter = self._trained_copy()
        for name, tensor in self._adapter.items():
            tensor.copy_(spread_like(state[name], tensor))

    def _trained_copy(self) -> State:
        return {
            name: parameter.detach().clone()
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        }

    def _put(self, adapter: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                if name in adapter:
                    parameter.copy_(adapter[name])


class FrozenReference:
    """A model of its own, held beside the policy.

    Args:
        model: The reference.
        policy: The module that it follows, if it ever does.
        follows: Whether it does.

    Raises:
        ConfigError: Their vocabularies differ, or it is to follow a model of another shape.
    """

    def __init__(self, model: Any, policy: Any, *, follows: bool) -> None:
        theirs = model.config.get_text_config().vocab_size
        ours = policy.config.get_text_config().vocab_size
        if theirs != ours:
            raise ConfigError(
                f"trainer.args.reference_model has a vocabulary of {theirs} tokens, and model one "
                f"of {ours}; they must share their tokenizer"
            )
        if follows and _shapes(model) != _shapes(policy):
            raise ConfigError(
                "trainer.args.reference_update_steps: the reference_model is of another shape than "
                "model and cannot become it; name the same one"
            )
        self._model = model.requires_grad_(False).eval()
        self._policy = policy
        self._follows = follows

    @contextmanager
    def active(self) -> Iterator[Any]:
        """Yield the reference; see :class:`Reference`."""
        yield self._model

    def follow(self) -> None:
        """Copy the policy's weights."""
        self._model.load_state_dict(self._policy.state_dict())

    def state(self) -> State | None:
        """Return the weights, on the CPU, if they ever change."""
        if not self._follows:
            return None
        mine = self._model.state_dict()
        return {name: whole(tensor.detach()).cpu() for name, tensor in mine.items()}

    def load_state(self, state: Mapping[str, torch.Tensor] | None) -> None:
        """Take the weights back; see :class:`Reference`."""
        if state is not None:
            mine = self._model.state_dict()
            spread = {name: spread_like(tensor, mine[name]) for name, tensor in state.items()}
            self._model.load_state_dict(spread)


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
