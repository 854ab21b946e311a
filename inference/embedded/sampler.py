"""Sampling one token per request, each with its own parameters and its own random stream.

It plugs into transformers' continuous batching as a logits processor: it draws the token itself
and hands back scores that leave only that token. So a request's tokens depend on its seed and
not on what else is in the batch, the logprobs are those of the distribution that was sampled
from, and each token knows the version of the weights that made it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)

from vf.inference.model import Sampling


@dataclass(slots=True)
class Stream:
    """What one request samples by, and what it has sampled.

    Attributes:
        sampling: The request's parameters.
        prompt_ids: The prompt; only read by the repetition penalty.
        logprobs: Natural-log probability of each sampled token.
        versions: Version of the weights that sampled each token.
    """

    sampling: Sampling
    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.sampling.seed)


class SeededSampler(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Draws the next token of every request in a batch.

    Attributes:
        streams: The open requests by id.
        version: Version of the weights now in the model; stamped on every token.
    """

    supported_kwargs: dict[str, type] = {}
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.version = 0
        self._rows: list[Stream | None] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Nothing is kept in the tensor: the parameters live in ``streams``."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Note whose logits the next call gets, row by row."""
        self._rows = [self.streams.get(entry.state.request_id) for entry in requests_with_new_token]
        return torch.zeros(len(self._rows), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Sample from ``scores``.

        Args:
            scores: Logits, float32 ``[at least rows, vocabulary]``.
            tensor_arg: Unused.

        Returns:
            Scores of the same shape: 0 for the sampled token, -inf for all others.
        """
        # A cancelled request may still be in the batch: its row is sampled and thrown away. Rows
        # beyond those are of prompts that are still being read: nothing is sampled for them.
        rows = [stream or Stream(Sampling(temperature=0.0), []) for stream in self._rows]
        if not rows:
            return scores
        logprobs = processed_logprobs(scores[: len(rows)], rows)
        drawn = _draw(logprobs, rows)
        chosen = logprobs.gather(1, drawn[:, None])[:, 0].tolist()
        for stream, token, logprob in zip(rows, drawn.tolist(), chosen, strict=True):
            stream.token_ids.append(token)
            stream.logprobs.append(logprob)
            stream.versions.append(self.version)
        only = torch.full_like(scores, float("-inf"))
        only[: len(rows)].scatter_(1, drawn[:, None], 0.0)
        return only


def processed_logprobs(scores: torch.Tensor, rows: list[Stream]) -> torch.Tensor:
    """Return the log-distribution each row is sampled from.

    In vLLM's order: repetition penalty, temperature, min-p, top-k, top-p; then normalised. A
    temperature of 0 stands for greedy choice, and gets the logprobs of temperature 1.

    Args:
        scores: Logits, float32 ``[rows, vocabulary]``.
        rows: One stream per row.

    Returns:
        float32 ``[rows, vocabulary]``; -inf for what was filtered out.
    """
    params = [stream.sampling for stream in rows]
    if any(p.repetition_penalty != 1.0 for p in params):
        scores = _penalise_repetition(scores, rows)

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=scores.dtype, device=scores.device)[:, None]

    logprobs = torch.log_softmax(scores / column([p.temperature or 1.0 for p in params]), dim=-1)
    if any(p.min_p > 0.0 for p in params):
        floor = logprobs.amax(-1, keepdim=True) + column([p.min_p for p in params]).log()
        logprobs = logprobs.masked_fill(logprobs < floor, float("-inf"))
    if any(p.top_k > 0 or p.top_p < 1.0 for p in params):
        logprobs = _top_k_top_p(logprobs, params)
    return torch.log_softmax(logprobs, dim=-1)


def _top_k_top_p(logprobs: torch.Tensor, params: list[Sampling]) -> torch.Tensor:
    """Drop all but the k likeliest, then all beyond the nucleus (its last token is kept)."""
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    vocabulary = logprobs.shape[-1]
    k = torch.tensor([p.top_k or vocabulary for p in params], device=logprobs.device)
    rank = torch.arange(vocabulary, device=logprobs.device)
    ordered = ordered.masked_fill(rank >= k[:, None], float("-inf"))
    probs = ordered.softmax(-1)
    top_p = torch.tensor([p.top_p for p in params], dtype=probs.dtype, device=probs.device)
    before = probs.cumsum(-1) - probs  # mass of the likelier tokens
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (rank > 0), float("-inf"))
    return torch.empty_like(logprobs).scatter_(1, order, ordered)


def _penalise_repetition(scores: torch.Tensor, rows: list[Stream]) -> torch.Tensor:
    """Divide positive and multiply negative logits of seen tokens (CTRL, arXiv:1909.05858, 4.1)."""
    scores = scores.clone()
    for row, stream in enumerate(rows):
        penalty = stream.sampling.repetition_penalty
        if penalty == 1.0:
            continue
        seen = torch.tensor(sorted({*stream.prompt_ids, *stream.token_ids}), device=scores.device)
        values = scores[row, seen]
        scores[row, seen] = torch.where(values > 0, values / penalty, values * penalty)
    return scores


def _draw(logprobs: torch.Tensor, rows: list[Stream]) -> torch.Tensor:
    """Draw one token per row by inverting its cumulative distribution (int64 ``[rows]``)."""
    uniform = torch.tensor(
        [stream.rng.random() for stream in rows], dtype=torch.float64, device=logprobs.device
    )
    cumulative = logprobs.double().exp().cumsum(-1)
    targets = uniform[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    drawn = drawn.clamp(max=logprobs.shape[-1] - 1)
    greedy = torch.tensor(
        [stream.sampling.temperature == 0.0 for stream in rows], device=logprobs.device
    )
    return torch.where(greedy, logprobs.argmax(-1), drawn)
