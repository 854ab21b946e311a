"""Passes over the data of a call: log-probabilities, losses, and an adapter's gradient."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vf.inference.embedded.lora_mixture import Lora, LoraMixture, Part
from vf.runtime.errors import ConfigError, TrainingError
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import MicroBatch, Sample, micro_batches
from vf.trainer.learning.batches.packing import pack
from vf.trainer.learning.batches.top_tokens import Likeliest
from vf.trainer.learning.model.self_test import choose_forward
from vf.trainer.tinker_api.datums import Datum
from vf.trainer.tinker_api.losses import Config, LossFn

MICRO_BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass computed.

    Attributes:
        logprobs: log p of each datum's targets, in nats, float32, each of its targets' shape.
        loss: The sum of all tokens' losses.
    """

    logprobs: list[np.ndarray]
    loss: float


def same_weights(model: Any) -> Any:
    """Return another module with a model's own tensors, which can compute at the same time.

    What hooks and settings of attention do to one of them does not concern the other.
    """
    shared = itertools.chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})


class Passes:
    """Computes with one model and any adapter of it.

    One thread at a time may call it, while nothing else computes with the model.

    Args:
        model: A causal language model of transformers', in evaluation mode.
        longest: Tokens of the longest sequence.
    """

    def __init__(self, model: Any, longest: int) -> None:
        self._forward = choose_forward(model, longest)
        self._mixture = LoraMixture(model)
        self._device: torch.device = model.get_input_embeddings().weight.device

    def run(
        self, lora: Lora, data: Sequence[Datum], loss: LossFn, config: Config, *, gradient: bool
    ) -> PassResult:
        """Compute the loss of data, and leave its gradient in the adapter's tensors.

        Samples that begin alike share the computation of their beginning.

        Args:
            lora: The adapter.
            data: The data.
            loss: The loss.
            config: Its options.
            gradient: Whether to run backward passes.

        Raises:
            ConfigError: If the model's layers cannot predict targets that are not the next tokens.
            TrainingError: If the loss is not finite.
        """
        columns = [datum.columns() for datum in data]
        flat = [*itertools.chain.from_iterable(columns)]
        logprobs: list[np.ndarray] = [np.zeros(0, np.float32)] * len(flat)
        total = 0.0
        for batch, rows in self._batches(flat):
            own = [flat[row] for row in rows]
            lengths = [len(datum.tokens) for datum in own]
            with self._active(lora), nullcontext() if gradient else torch.no_grad():
                predicted = self._forward(batch, 1.0).logprobs
                losses = loss(predicted.double(), self._inputs(own, config), config)
                value = float(losses.sum().detach())
                if not np.isfinite(value):
                    raise TrainingError(
                        "the loss is not finite, so nothing was added to the gradient; check the "
                        "data's logprobs and advantages"
                    )
                if gradient:
                    torch.autograd.backward(losses.sum())
            total += value
            parts = torch.split(predicted.detach().cpu(), lengths)
            for row, part in zip(rows, parts, strict=True):
                logprobs[row] = part.numpy()
        remaining = iter(logprobs)
        joined = []
        for datum, column in zip(data, columns, strict=True):
            arrays = [next(remaining) for _ in column]
            joined.append(arrays[0] if datum.targets.ndim == 1 else np.stack(arrays, 1))
        return PassResult(joined, total)

    def prompt(
        self, lora: Lora | None, tokens: np.ndarray, top: int
    ) -> tuple[Any, Likeliest | None]:
        """Return the log-probabilities of a prompt's tokens after the first.

        Args:
            lora: The adapter; None for the model alone.
            tokens: The prompt, int64 ``[N]``.
            top: The number of likeliest tokens to return.

        Returns:
            float32 ``[N - 1]`` in nats, and the likeliest tokens at the same positions.
        """
        if len(tokens) < 2:
            return np.zeros(0, np.float32), None
        [(batch, _)] = self._batches([Datum(tokens[:-1], tokens[1:], {})])
        before, self._forward.likeliest = self._forward.likeliest, top
        try:
            with self._active(lora), torch.no_grad():
                predicted = self._forward(batch, 1.0)
        finally:
            self._forward.likeliest = before
        likeliest = predicted.likeliest
        return predicted.logprobs.cpu().numpy(), likeliest and likeliest.to("cpu")

    @contextmanager
    def _active(self, lora: Lora | None) -> Iterator[None]:
        with self._mixture.using([] if lora is None else [Part(lora)]), self._forward.active():
            yield

    def _inputs(self, data: Sequence[Datum], config: Config) -> dict[str, torch.Tensor]:
        """Return the inputs of data, concatenated, float64; the config's where a datum has none."""
        names = {name for datum in data for name in datum.inputs}
        inputs = {}
        for name in names:
            default = config.get(name, 1.0)
            parts = [
                datum.inputs.get(name, np.full(len(datum.tokens), default, np.float32))
                for datum in data
            ]
            array = torch.from_numpy(np.concatenate(parts))
            inputs[name] = array.to(self._device, torch.float64)
        return inputs

    def _batches(self, data: Sequence[Datum]) -> list[tuple[MicroBatch, list[int]]]:
        """Return data in micro-batches, and which datum each row is."""
        packed = self._forward.how == "packed"
        if not packed and not all(datum.shifted for datum in data):
            raise ConfigError(
                "target_tokens: this model predicts only the next tokens of its input; shift the "
                "input by one"
            )
        samples = [
            _sample(datum, index, 0 if packed else int(datum.targets[-1]))
            for index, datum in enumerate(data)
        ]
        if packed:
            batches = pack(samples, MICRO_BATCH_TOKENS, apart=self._forward.apart)
        else:
            batches = micro_batches(samples, MICRO_BATCH_TOKENS)
        on_device = []
        for batch in batches:
            assert batch.marks is not None
            rows = batch.marks[:, 0].tolist()
            if packed:  # the model runs on the tree, and these are what it predicts
                for index, row in enumerate(rows):
                    targets = data[row].targets
                    batch.input_ids[index, 1 : len(targets) + 1] = torch.from_numpy(targets)
            on_device.append((batch.to(self._device), rows))
        return on_device


def _sample(datum: Datum, index: int, last: int) -> Sample:
    """Return a datum as a sample whose tokens after the first are all trained.

    Args:
        datum: The datum.
        index: Its number, as the sample's mark.
        last: The token behind its input.
    """
    ids = [*datum.tokens.tolist(), last]
    count = len(ids)
    mask = [0] + [1] * (count - 1)
    branch = Branch(ids, mask, [0.0] * count, [0] * count, [0] * count)
    return Sample(branch, 0.0, mark=index)
