"""What a pass is asked for: from a body's bytes to checked arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vf.runtime.errors import ConfigError
from vf.trainer.tinker_api import protobuf as wire
from vf.trainer.tinker_api.losses import Config, LossFn, find_loss
from vf.trainer.tinker_api.requests import MOST_TOP, Forward, ForwardBackward, ModelInput, Tensor

TARGETS = "target_tokens"
IMAGES = ("an encoded_text chunk", "an image chunk", "an audio chunk")  # by number, from 1
FLOAT, INTEGER = 1, 2  # numbers of dtypes in protocol buffers
DTYPES = {FLOAT: "float32", INTEGER: "int64"}


@dataclass(frozen=True, slots=True)
class Datum:
    """A sequence of N tokens to compute a loss on.

    Attributes:
        tokens: The input, int64 ``[N]``.
        targets: The token that each position is to predict, int64 ``[N]``; or several of each
            position, ``[N, K]``.
        inputs: The loss's other inputs by name, float32, of the targets' shape.
    """

    tokens: np.ndarray
    targets: np.ndarray
    inputs: Mapping[str, np.ndarray]

    @property
    def shifted(self) -> bool:
        """Whether the targets are the input's next tokens."""
        return bool((self.tokens[1:] == self.targets[:-1]).all())

    def columns(self) -> list[Datum]:
        """Return a datum of one target a position for each of K."""
        if self.targets.ndim == 1:
            return [self]
        return [
            Datum(self.tokens, own, {name: array[:, k] for name, array in self.inputs.items()})
            for k, own in enumerate(self.targets.T)
        ]


@dataclass(frozen=True, slots=True)
class PassRequest:
    """A forward pass, with or without a backward pass.

    Attributes:
        model_id: The model's.
        seq_id: Its place in the model's order of requests, if the client says.
        data: The data.
        loss: The loss.
        config: The loss's options, all of them.
        gradient: Whether it adds to the model's gradient.
    """

    model_id: str
    seq_id: int | None
    data: list[Datum]
    loss: LossFn
    config: Config
    gradient: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """What a datum must keep to.

    Attributes:
        vocabulary: Token ids are below it.
        longest: Most tokens of a sequence.
        tokens: Most target tokens of a call.
    """

    vocabulary: int
    longest: int
    tokens: int = 2**22


def read_json(raw: bytes, limits: Limits, *, forward: bool) -> PassRequest:
    """Return the request of a JSON body.

    Args:
        raw: The body.
        limits: The limits that the data must keep to.
        forward: Whether it is one of ``forward``.

    Raises:
        ValidationError: If it is not one.
        ConfigError: If its data are wrong.
    """
    body: Forward | ForwardBackward
    if forward:
        body = Forward.model_validate_json(raw)
        given, gradient = body.forward_input, False
    else:
        body = ForwardBackward.model_validate_json(raw)
        given, gradient = body.forward_backward_input, not body.forward_only
    loss = find_loss(given.loss_fn)
    data = [
        _datum(
            f"data[{index}]",
            input_tokens(datum.model_input, f"data[{index}].model_input"),
            {name: _array(tensor, name) for name, tensor in datum.loss_fn_inputs.items()},
            loss,
            limits,
        )
        for index, datum in enumerate(given.data)
    ]
    config = loss.configured(given.loss_fn_config)
    return _checked(PassRequest(body.model_id, body.seq_id, data, loss, config, gradient), limits)


def read_protobuf(raw: bytes, limits: Limits) -> PassRequest:
    """Return the request of a ``ForwardBackwardRequest``; see :func:`read_json`."""
    model_id, name, seq_id, gradient = "", "", None, True
    options: dict[str, float | str] = {}
    messages = []
    for number, value in wire.fields(memoryview(raw)):
        if number == 1:
            model_id = wire.text(value)
        elif number == 2:
            seq_id = wire.number(value)
        elif number == 3:
            messages.append(wire.content(value))
        elif number == 4:
            name = wire.text(value)
        elif number in (5, 7):
            key, held = _entry(value)
            options[key] = _option(held, wrapped=number == 7)
        elif number == 6:
            gradient = not wire.number(value)
    loss = find_loss(name)
    data = [_read_datum(message, index, loss, limits) for index, message in enumerate(messages)]
    config = loss.configured(options)
    return _checked(PassRequest(model_id, seq_id, data, loss, config, gradient), limits)


def _checked(request: PassRequest, limits: Limits) -> PassRequest:
    if not request.data:
        raise ConfigError("data: it is empty; give at least one datum")
    targets = sum(datum.targets.size for datum in request.data)
    if targets > limits.tokens:
        raise ConfigError(f"data: {targets:,} targets; a call may have {limits.tokens:,}")
    return request


def _read_datum(message: memoryview, index: int, loss: LossFn, limits: Limits) -> Datum:
    name = f"data[{index}]"
    chunks, tensors = [], {}
    for number, value in wire.fields(message):
        if number == 1:
            for kind, chunk in wire.fields(wire.content(value)):
                if kind != 1:
                    what = IMAGES[kind - 1] if kind <= len(IMAGES) else "a chunk of an unknown kind"
                    raise ConfigError(f"{name}.model_input: {what}; only token ids are served here")
                for _, ids in wire.fields(wire.content(chunk)):
                    chunks.append(_from_buffer(wire.content(ids), "<i4", f"{name}.model_input"))
        elif number == 2:
            key, held = _entry(value)
            tensors[key] = _read_tensor(wire.content(held), f"{name}.{key}")
    tokens = np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int64)
    return _datum(name, tokens.astype(np.int64), tensors, loss, limits)


def _read_tensor(message: memoryview, name: str) -> np.ndarray:
    dense, dtype = memoryview(b""), 0
    shape: list[int] = []
    for number, value in wire.fields(message):
        if number == 1:
            dense = wire.content(value)
        elif number == 2:
            raise ConfigError(f"{name}: a sparse tensor; only dense ones are served here")
        elif number == 3:
            dtype = wire.number(value)
        elif number == 4:
            shape += wire.whole_numbers(value)
    if dtype not in DTYPES:
        raise ConfigError(f"{name}: dtype number {dtype}; it must be float32 or int64")
    return _shaped(_from_buffer(dense, "<f4" if dtype == FLOAT else "<i8", name), shape, name)


def _from_buffer(raw: memoryview, dtype: str, name: str) -> np.ndarray:
    if len(raw) % np.dtype(dtype).itemsize:
        raise ConfigError(f"{name}: its bytes are not whole numbers of dtype {dtype}")
    return np.frombuffer(raw, dtype=dtype)


def _entry(value: wire.Value) -> tuple[str, wire.Value]:
    """Return key and value of a map's entry."""
    key, held = "", memoryview(b"")
    for number, part in wire.fields(wire.content(value)):
        if number == 1:
            key = wire.text(part)
        elif number == 2:
            held = part  # type: ignore[assignment]
    return key, held


def _option(value: wire.Value, *, wrapped: bool) -> float | str:
    if not wrapped:
        return wire.double(value) if value else 0.0
    for number, part in wire.fields(wire.content(value)):
        return wire.double(part) if number == 1 else wire.text(part)
    return 0.0


def input_tokens(given: ModelInput, name: str) -> np.ndarray:
    """Return the token ids of a model's input, int64 ``[N]``.

    Raises:
        ConfigError: If it holds anything else.
    """
    tokens: list[int] = []
    for chunk in given.chunks:
        if chunk.type != "encoded_text" or chunk.tokens is None:
            raise ConfigError(f"{name}: a chunk of {chunk.type!r}; only token ids are served here")
        tokens += chunk.tokens
    return whole(tokens, name)


def whole(values: Sequence[Any], name: str) -> np.ndarray:
    """Return whole numbers, int64 ``[N]``.

    Raises:
        ConfigError: If one has more than 64 bits.
    """
    try:
        return np.asarray(values, dtype=np.int64)
    except OverflowError:
        raise ConfigError(f"{name}: a number has more than 64 bits") from None


def _array(tensor: Tensor, name: str) -> np.ndarray:
    if tensor.sparse_crow_indices is not None:
        raise ConfigError(f"{name}: a sparse tensor; only dense ones are served here")
    dtype = np.float32 if tensor.dtype == "float32" else np.int64
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(tensor.data, dtype=np.float64).astype(dtype)
    return _shaped(values, tensor.shape or [len(values)], name)


def _shaped(values: np.ndarray, shape: Sequence[int], name: str) -> np.ndarray:
    """Return a tensor's numbers in its shape, ``[N]`` or ``[N, K]``.

    Raises:
        ConfigError: If that is another, or has not as many.
    """
    if len(shape) > 2 or (len(shape) == 2 and not 0 < shape[1] <= MOST_TOP):
        raise ConfigError(
            f"{name}: shape {list(shape)}; it must be [N] or [N, K] with K of at most {MOST_TOP}"
        )
    if shape and math.prod(shape) != len(values):
        raise ConfigError(f"{name}: shape {list(shape)}, but there are {len(values)} numbers")
    return values.reshape(shape) if len(shape) == 2 else values


def _datum(
    name: str,
    tokens: np.ndarray,
    tensors: Mapping[str, np.ndarray],
    loss: LossFn,
    limits: Limits,
) -> Datum:
    """Return a datum if it is whole.

    Raises:
        ConfigError: If it is not; names the field.
    """
    count = len(tokens)
    if not count:
        raise ConfigError(f"{name}.model_input: it has no tokens")
    if count > limits.longest:
        raise ConfigError(
            f"{name}.model_input: {count:,} tokens; the context here has {limits.longest:,}"
        )
    names = {TARGETS, "weights", *loss.required, *loss.optional}
    if missing := [key for key in (TARGETS, *loss.required) if key not in tensors]:
        raise ConfigError(f"{name}.loss_fn_inputs: {', '.join(missing)} missing")
    if unknown := sorted(set(tensors) - names):
        raise ConfigError(
            f"{name}.loss_fn_inputs: {', '.join(unknown)} unknown to this loss; it reads "
            f"{', '.join(sorted(names))}"
        )
    targets = tensors[TARGETS]
    if targets.ndim == 2 and (loss.required or "weights" not in tensors):
        raise ConfigError(
            f"{name}.loss_fn_inputs.{TARGETS}: several targets of a token are for cross_entropy, "
            "with a weight for each"
        )
    for key, values in tensors.items():
        if values.shape[1:] != targets.shape[1:]:
            raise ConfigError(
                f"{name}.loss_fn_inputs.{key}: shape {list(values.shape)}, but that of {TARGETS} "
                f"is {list(targets.shape)}"
            )
        if len(values) != count:
            raise ConfigError(
                f"{name}.loss_fn_inputs.{key}: {len(values)} numbers for {count} input tokens; "
                "give one for each"
            )
        if key != TARGETS and not np.isfinite(values).all():
            raise ConfigError(f"{name}.loss_fn_inputs.{key}: a number is not finite")
    for key, ids in (("model_input", tokens), (f"loss_fn_inputs.{TARGETS}", targets)):
        if not ((ids >= 0) & (ids < limits.vocabulary)).all():
            raise ConfigError(f"{name}.{key}: token ids must be in [0, {limits.vocabulary})")
    inputs = {key: array.astype(np.float32) for key, array in tensors.items() if key != TARGETS}
    return Datum(tokens, targets.astype(np.int64), inputs)
