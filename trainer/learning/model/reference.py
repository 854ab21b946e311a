"""The reference of a KL penalty: which model it is, and how it follows the policy.

Every so many optimizer steps a reference may move towards the policy, ref ← α·policy + (1 − α)·ref:
with α = 1 it becomes the policy, with less it is an exponential moving average of its weights
(TR-DPO's hard and soft update, Gorbatovski et al. 2024, arXiv:2404.09656, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from vf.runtime.errors import ConfigError
from vf.trainer.learning.sharding.checkpoint_shards import REFERENCE, Stored
from vf.trainer.learning.sharding.copies import Copies

State = dict[str, torch.Tensor]


class Reference(Protocol):
    """A model that answers for the reference."""

    def active(self) -> Any:
        """Return a context manager that yields the model to ask; the policy is as it was after."""
        ...

    def follow(self) -> None:
        """Move towards the policy as it is now."""
        ...

    def state(self) -> State:
        """Return what a checkpoint has to keep: nothing while it is what the run began with."""
        ...

    def load_state(self, stored: Stored) -> None:
        """Go back to what :meth:`state` returned; each process does so for itself."""
        ...


class AdapterReference:
    """The policy's own model: without its adapter, or with an earlier one in its place.

    There is no second copy of the model. An average is of the adapter's matrices, and is kept in
    float32. It begins with those of before training, whose product is 0: with the base model.

    Args:
        model: The module with the adapter.
        sharding: The way in which the trainer processes hold it.
        rate: α.
    """

    def __init__(self, model: Any, sharding: Copies, rate: float = 1.0) -> None:
        self._model = model
        self._sharding = sharding
        self._rate = rate
        self._adapter: State | None = None  # of the reference; None is none
        if rate < 1.0:
            self._adapter = self._precise_copy()

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
        """Keep a copy of the adapter as it is now, or average it into the one that is kept."""
        if self._rate == 1.0 or self._adapter is None:
            self._adapter = self._trained_copy()
            return
        now = self._precise_copy()
        # Not in place: a checkpoint may still be writing the tensors that were there.
        self._adapter = {
            name: mine.lerp(now[name], self._rate) for name, mine in self._adapter.items()
        }

    def state(self) -> State:
        """Return the reference's adapter, which every process holds whole."""
        return _named(self._adapter or {})

    def load_state(self, stored: Stored) -> None:
        """Take an adapter back; see :class:`Reference`."""
        device = next(self._model.parameters()).device
        adapter = {
            name: torch.empty(shape, device=device)
            for name, shape in stored.shapes(REFERENCE).items()
        }
        stored.read(_named(adapter))
        if adapter or self._rate == 1.0:  # else an average still is what it began with
            self._adapter = adapter or None

    def _trained_copy(self) -> State:
        return {
            name: self._sharding.whole(parameter).clone()
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        }

    def _precise_copy(self) -> State:
        return _precise(self._trained_copy())

    def _put(self, adapter: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in self._model.named_parameters():
            if name in adapter:
                self._sharding.put(parameter, adapter[name])


class FrozenReference:
    """A model of its own, held beside the policy.

    Args:
        model: The reference.
        policy: The module that it follows, if it ever does.
        rate: α, if it does; in bfloat16 an average would lose its small steps.
        sharding: The way in which the trainer processes hold the two.

    Raises:
        ConfigError: If their vocabularies differ, or it is to follow a model of another shape.
    """

    def __init__(
        self, model: Any, policy: Any, sharding: Copies, *, rate: float | None = None
    ) -> None:
        check_vocabulary(model, policy, "trainer.args.reference_model")
        if rate is not None and _shapes(model, sharding) != _shapes(policy, sharding):
            raise ConfigError(
                "trainer.args.reference_update_steps: the reference_model is of another shape than "
                "model and cannot become it; name the same one"
            )
        self._model = model.requires_grad_(False).eval()
        self._policy = policy
        self._rate = rate
        self._sharding = sharding

    @contextmanager
    def active(self) -> Iterator[Any]:
        """Yield the reference; see :class:`Reference`."""
        yield self._model

    def follow(self) -> None:
        """Take the policy's weights, or average them into its own."""
        theirs, whole = self._policy.state_dict(keep_vars=True), self._sharding.whole
        rate = 1.0 if self._rate is None else self._rate
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            value = whole(theirs[name])
            if rate < 1.0 and tensor.is_floating_point():
                mine = whole(tensor)
                value = mine.lerp(value.to(mine), rate)
            self._sharding.put(tensor, value)

    def state(self) -> State:
        """Return the weights as this process holds them, if they ever change."""
        return _named(self._model.state_dict() if self._rate is not None else {})

    def load_state(self, stored: Stored) -> None:
        """Take the weights back; see :class:`Reference`."""
        if stored.below(REFERENCE):
            stored.read(_named(self._model.state_dict()))


def check_vocabulary(model: Any, policy: Any, setting: str) -> None:
    """Check that a model knows as many tokens as the policy.

    Args:
        model: The model that is held beside the policy.
        policy: The module that learns.
        setting: The setting that named the model, for the error.

    Raises:
        ConfigError: If the vocabularies differ in size.
    """
    theirs, ours = (module.config.get_text_config().vocab_size for module in (model, policy))
    if theirs != ours:
        raise ConfigError(
            f"{setting} has a vocabulary of {theirs} tokens, and model one of {ours}; they must "
            "share their tokenizer"
        )


def _named(state: Mapping[str, torch.Tensor]) -> State:
    """Return tensors under their names in a checkpoint."""
    return {f"{REFERENCE}/{name}": tensor for name, tensor in state.items()}


def _precise(state: State) -> State:
    """Return tensors in float32 at least."""
    return {
        name: tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        for name, tensor in state.items()
    }


def _shapes(model: Any, sharding: Copies) -> dict[str, torch.Size]:
    tensors = model.state_dict(keep_vars=True)
    return {name: sharding.shape(tensor) for name, tensor in tensors.items()}
