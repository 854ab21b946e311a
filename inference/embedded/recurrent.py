"""States of recurrent layers: linear attention, state spaces and short convolutions.

Such a layer keeps no keys. What it remembers of a context is a state of fixed size, which each
token changes; transformers' layers read and write it in a ``DynamicCache``. In a forward pass, the
tokens of each request go through the layer with the state of their context, and requests with one
token go together.

A state cannot be cut to fewer tokens. So a context can be continued from its end, or from the
last token but one of its prompt, where its state is kept for others with the same prompt.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from vf.inference.embedded.contexts import Context
from vf.inference.embedded.lora_mixture import Lora, LoraMixture, Part

CACHES = ("cache_params", "past_key_values")  # names of a layer's parameter for the cache
STATES = ("conv_states", "recurrent_states")  # attributes of a recurrent layer's cache


@dataclass(frozen=True, slots=True)
class State:
    """What all recurrent layers remember of one context.

    Attributes:
        cache: The ``DynamicCache`` with its state, and with those of the contexts that go together
            with it.
        row: Its row in the tensors.
    """

    cache: Any
    row: int = 0


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one request in a forward pass.

    Attributes:
        context: What the request holds.
        lora: Its adapter.
        count: The number of tokens.
        keep: Whether the state before them is kept for other requests.
    """

    context: Context
    lora: Lora | None
    count: int
    keep: bool


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a pass that go through a layer together: of one request, or one row of each."""

    lora: Lora | None
    rows: torch.Tensor
    cache: Any
    together: bool


class RecurrentStates:
    """Gives each request's tokens the state of their context in every recurrent layer.

    Args:
        model: A causal language model of transformers'.
        mixture: Its adapters by row.

    Raises:
        ValueError: If transformers computes single tokens and sequences of a layer differently.
    """

    def __init__(self, model: Any, mixture: LoraMixture) -> None:
        self._config = model.config.get_text_config()
        self._device = model.get_input_embeddings().weight.device
        self._mixture = mixture
        self._layers = {
            module: name for module in model.modules() if (name := _cache_parameter(module))
        }
        # A Mamba layer's lower bound, which transformers 5.23 leaves out in the step of one token.
        if any(
            getattr(layer, "time_step_limit", None) and layer.time_step_limit[0] > 0
            for layer in self._layers
        ):
            raise ValueError("transformers bounds its time steps in whole sequences alone")
        self._pieces: list[_Piece] = []

    def __bool__(self) -> bool:
        """Return whether the model has recurrent layers."""
        return bool(self._layers)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Run the recurrent layers in this way until the block ends."""
        for layer, name in self._layers.items():
            layer.forward = partial(self._forward, layer.forward, name)
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward

    def begin(self, requests: Sequence[Tokens]) -> None:
        """Prepare a pass over the tokens of these requests, in this order."""
        self._pieces, first = [], 0
        singles: dict[Lora | None, list[tuple[int, State, Tokens]]] = {}
        for tokens in requests:
            states, length = _states(tokens.context), len(tokens.context.ids)
            if tokens.keep:
                states = tokens.context.states = {length: states[length]}
                state: State | None = self.copy(states[length])
            else:
                state = states.pop(length, None)
            if tokens.count == 1 and state is not None:
                singles.setdefault(tokens.lora, []).append((first, state, tokens))
            else:
                state = self._alone(state)
                states[length + tokens.count] = state
                rows = torch.arange(first, first + tokens.count, device=self._device)
                self._pieces.append(_Piece(tokens.lora, rows, state.cache, together=False))
            first += tokens.count
        for lora, members in singles.items():
            cache = self._together([state for _, state, _ in members])
            for row, (_, _, tokens) in enumerate(members):
                _states(tokens.context)[len(tokens.context.ids) + 1] = State(cache, row)
            rows = torch.tensor([row for row, _, _ in members], device=self._device)
            self._pieces.append(_Piece(lora, rows, cache, together=True))

    def share(self, source: Context | None, target: Context, length: int) -> None:
        """Give a new context a copy of another one's state, after so many tokens; 0 for none."""
        target.states = {}
        if source is not None and length:
            target.states[length] = self.copy(_states(source)[length])

    def rest(self, context: Context) -> None:
        """Keep the state of a context that no request is under way on, without those beside it."""
        states, length = _states(context), len(context.ids)
        if length in states:
            states[length] = self._alone(states[length])

    def copy(self, state: State) -> State:
        """Return a copy that nothing else changes."""
        return State(self._gathered([state]))

    def _alone(self, state: State | None) -> State:
        """Return a state whose cache has no other row; a fresh one for None."""
        if state is None:
            from transformers import DynamicCache

            return State(DynamicCache(config=self._config))
        return state if _count(state.cache) == 1 else self.copy(state)

    def _together(self, states: Sequence[State]) -> Any:
        """Return a cache with these states as its rows: their own where it has just these."""
        cache = states[0].cache
        same = all(state.cache is cache and state.row == row for row, state in enumerate(states))
        return cache if same and _count(cache) == len(states) else self._gathered(states)

    def _gathered(self, states: Sequence[State]) -> Any:
        """Return a new cache with copies of these states as its rows."""
        from transformers import DynamicCache

        gathered = DynamicCache(config=self._config)
        sources = [(state.cache.layers, state.row) for state in states]
        for index, layer in enumerate(gathered.layers):
            if not hasattr(layer, STATES[0]):
                continue
            like = sources[0][0][index]
            for name in STATES:
                for number, tensor in getattr(like, name).items():
                    if tensor is None:
                        continue
                    rows = [getattr(own[index], name)[number][row] for own, row in sources]
                    getattr(layer, name)[number] = torch.stack(rows)
            for flag, value in vars(like).items():
                if flag not in STATES:
                    setattr(layer, flag, dict(value) if isinstance(value, dict) else value)
        return gathered

    def _forward(
        self, forward: Any, cache: str, hidden_states: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        """Run a layer on ``[1, T, H]``, each piece with its own states."""
        whole = hidden_states.new_zeros(hidden_states.shape)
        for piece in self._pieces:
            rows = hidden_states[0, piece.rows]
            rows = rows[:, None] if piece.together else rows[None]
            with self._mixture.using([] if piece.lora is None else [Part(piece.lora)]):
                output = forward(rows, **{cache: piece.cache})
            whole[0, piece.rows] = output.flatten(0, 1)
        return whole


def _cache_parameter(module: Any) -> str | None:
    """Return the parameter of a recurrent layer's forward that takes the cache; None for others.

    Layers of this kind have a convolution over the tokens; attention and decoder layers, which take
    a cache as well, have none.
    """
    if not hasattr(module, "layer_idx") or not any(
        isinstance(child, torch.nn.Conv1d) for child in module.children()
    ):
        return None
    parameters = inspect.signature(module.forward).parameters
    return next((name for name in CACHES if name in parameters), None)


def _states(context: Context) -> dict[int, State]:
    if context.states is None:
        context.states = {}
    return context.states


def _count(cache: Any) -> int:
    """Return the number of contexts in a cache."""
    for layer in cache.layers:
        for name in STATES:
            for tensor in getattr(layer, name, {}).values():
                if tensor is not None:
                    return len(tensor)
    return 1
