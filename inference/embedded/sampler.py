"""Sampling one token per request, each with its own parameters and its own random stream.

So a request's tokens depend on its seed and not on what else is in the batch, and the logprobs are
those of the distribution that was sampled from. Which tokens a filter left for it is kept beside
them, so that the trainer can compute the same distribution.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from vf.inference.model import Sampling

BLOCK = 256  # tokens of the vocabulary that are summed up before one of them is drawn
BELOW_ONE = 1.0 - 2.0**-40  # so that no rounding takes a draw to a token of no probability


@dataclass(slots=True)
class Stream:
    """What one request samples by, and what it has sampled.

    Attributes:
        sampling: The request's parameters.
        prompt_ids: The prompt; only read by the repetition penalty.
        token_ids: The sampled tokens.
        logprobs: Natural-log probability of each.
        versions: Version of the weights that sampled each.
        experts: Those that were asked for, once it has ended.
        supports: Ascending ids of the tokens that each was sampled from, or an empty list for the
            whole vocabulary; nothing at all without filters.
        rng: Draws its tokens.
        filtered: Whether some tokens may be left out before one is drawn.
    """

    sampling: Sampling
    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    experts: list[bytes] = field(default_factory=list)
    supports: list[list[int]] = field(default_factory=list)
    rng: random.Random = field(init=False)
    filtered: bool = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.sampling.seed)
        self.filtered = self.sampling.filtered


def sample(
    logits: torch.Tensor, streams: Sequence[Stream], version: int, *, deterministic: bool = False
) -> list[int]:
    """Draw the next token of every stream, and append it there.

    A temperature of 0 stands for greedy choice, and gets the logprobs of temperature 1.

    Args:
        logits: ``[streams, vocabulary]``, of any floating dtype.
        streams: One for each row.
        version: The version of the weights that made the logits.
        deterministic: Whether log-probabilities have the trainer's bits: they are logits minus
            their log-sum-exp then, over the support; and no stream may have a penalty.

    Returns:
        The rows that have no token to draw: their probabilities are not finite. What is appended to
        their streams is worthless.
    """
    probs = distributions(logits.float(), streams)
    drawable = probs.sum(-1).isfinite()
    failed: list[int] = []
    if not bool(drawable.all()):
        failed = (~drawable).nonzero()[:, 0].tolist()
        probs = torch.where(drawable[:, None], probs, 1.0)
    uniform = torch.tensor([stream.rng.random() for stream in streams], dtype=torch.float64)
    drawn = draw(probs, uniform.to(probs.device))
    filtered = [row for row, stream in enumerate(streams) if stream.filtered]
    kept = probs[filtered] > 0.0 if filtered else None
    greedy = [stream.sampling.temperature == 0.0 for stream in streams]
    if any(greedy):
        drawn = torch.where(torch.tensor(greedy, device=probs.device), probs.argmax(-1), drawn)
    if deterministic:
        temperatures = [stream.sampling.temperature or 1.0 for stream in streams]
        scores = logits.float() / torch.tensor(temperatures, device=logits.device)[:, None]
        if kept is not None:
            rows = torch.tensor(filtered, device=scores.device)
            scores = scores.index_copy(0, rows, scores[rows].masked_fill(~kept, -torch.inf))
        chosen = (scores.gather(1, drawn[:, None])[:, 0] - scores.logsumexp(-1)).tolist()
    else:
        chosen = probs.gather(1, drawn[:, None])[:, 0].log().tolist()
    for stream, token, logprob in zip(streams, drawn.tolist(), chosen, strict=True):
        stream.token_ids.append(token)
        stream.logprobs.append(logprob)
        stream.versions.append(version)
    if kept is not None:
        for row, support in zip(filtered, supports(kept), strict=True):
            streams[row].supports.append(support)
    return failed


def supports(kept: torch.Tensor) -> list[list[int]]:
    """Return the ids of what is kept in each row of bool ``[rows, V]``; none where all of it is."""
    counts = kept.sum(-1).tolist()
    ids = torch.split(kept.nonzero()[:, 1], counts)
    return [
        [] if count == kept.shape[-1] else own.tolist()
        for count, own in zip(counts, ids, strict=True)
    ]


def distributions(scores: torch.Tensor, streams: Sequence[Stream]) -> torch.Tensor:
    """Return the probabilities that each row is sampled by.

    In vLLM's order: repetition penalty, temperature, min-p, top-k, top-p; then normalised.

    Args:
        scores: Logits, float32 ``[streams, vocabulary]``.
        streams: One for each row.

    Returns:
        float32 ``[streams, vocabulary]``; 0 for what was filtered out.
    """
    params = [stream.sampling for stream in streams]
    if any(p.repetition_penalty != 1.0 for p in params):
        scores = _penalise_repetition(scores, streams)
    temperatures = [p.temperature or 1.0 for p in params]
    if any(temperature != 1.0 for temperature in temperatures):
        scores = scores / torch.tensor(temperatures, device=scores.device)[:, None]
    filtered = [row for row, stream in enumerate(streams) if stream.filtered]
    if filtered:
        rows = torch.tensor(filtered, device=scores.device)
        kept = _filter(scores[rows].log_softmax(-1), [params[row] for row in filtered])
        scores = scores.index_copy(0, rows, kept)
    return scores.softmax(-1)


def draw(probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Draw one token per row by inverting its cumulative distribution.

    First among blocks of the vocabulary by their sums, then within one block: so only block sums
    and a single block are in float64.

    Args:
        probs: float32 ``[rows, vocabulary]``.
        uniform: In [0, 1), float64 ``[rows]``.

    Returns:
        int64 ``[rows]``; no token of probability 0.
    """
    rows, vocabulary = probs.shape
    if short := -vocabulary % BLOCK:
        probs = torch.nn.functional.pad(probs, (0, short))
    blocks = probs.view(rows, -1, BLOCK)
    ends = blocks.sum(-1).double().cumsum(-1)
    target = uniform.clamp(max=BELOW_ONE)[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, target, right=True)
    begin = torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    share = (target - begin) / (ends.gather(1, block) - begin)
    within = blocks[torch.arange(rows, device=probs.device), block[:, 0]].double().cumsum(-1)
    target = share.clamp(0.0, BELOW_ONE) * within[:, -1:]
    return (block * BLOCK + torch.searchsorted(within, target, right=True))[:, 0]


def _filter(logprobs: torch.Tensor, params: list[Sampling]) -> torch.Tensor:
    """Return log-probabilities with -inf for what min-p, top-k and top-p drop, in this order."""

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=logprobs.dtype, device=logprobs.device)[:, None]

    if any(p.min_p > 0.0 for p in params):
        floor = logprobs.amax(-1, keepdim=True) + column([p.min_p for p in params]).log()
        logprobs = logprobs.masked_fill(logprobs < floor, float("-inf"))
    if any(p.top_k > 0 or p.top_p < 1.0 for p in params):
        logprobs = _top_k_top_p(logprobs, params)
    return logprobs


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


def _penalise_repetition(scores: torch.Tensor, streams: Sequence[Stream]) -> torch.Tensor:
    """Divide positive and multiply negative logits of seen tokens (CTRL, arXiv:1909.05858, 4.1)."""
    scores = scores.clone()
    for row, stream in enumerate(streams):
        penalty = stream.sampling.repetition_penalty
        if penalty == 1.0:
            continue
        seen = torch.tensor(sorted({*stream.prompt_ids, *stream.token_ids}), device=scores.device)
        values = scores[row, seen]
        scores[row, seen] = torch.where(values > 0, values / penalty, values * penalty)
    return scores
