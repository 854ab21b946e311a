"""What sampler and trainer differ by, token by token, and what would explain it.

The gap of a token is log p − log q in nats: q is the sampler's probability, p the trainer's; in a
run, that of the step's first update. With weights of the same version it is what the two compute
differently; where sampling ran ahead, it also holds what the weights have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from vf.runtime.errors import ConfigError
from vf.traces.learned import learned_beside
from vf.traces.store import TraceStore
from vf.trainer.learning.losses.importance_sampling import Correction

POSITIONS = (64, 256, 1024, 4096, 16384)
PROBABILITIES = (0.01, 0.1, 0.5, 0.9, 0.99)
HIGH = 2.0  # C of the corrections that are priced; c is 1 / C
ORDER = 1e-5  # nats that the order of sums in float32 explains
TIMES = 3.0  # so many times the gap of a low precision may still be the gap of another kernel


@dataclass(frozen=True, slots=True)
class Tokens:
    """The trained tokens of one branch, N of them.

    Attributes:
        gaps: log p − log q, float64 ``[N]``, nats.
        probabilities: q, float64 ``[N]``.
        positions: Place in the branch from 0, int64 ``[N]``.
        length: Tokens of the branch.
    """

    gaps: torch.Tensor
    probabilities: torch.Tensor
    positions: torch.Tensor
    length: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The gap of some tokens, in nats.

    Attributes:
        by: The property that groups them; ``all`` for all of them.
        group: The range of that property.
        tokens: How many.
        kl: The mean of log q − log p, which estimates KL(q ‖ p).
        mean: The mean of the size.
        p99: The size that 1 % exceed.
        largest: The largest size.
    """

    by: str
    group: str
    tokens: int
    kl: float
    mean: float
    p99: float
    largest: float


@dataclass(frozen=True, slots=True)
class Price:
    """What a correction would cost on these tokens.

    Attributes:
        mode: The setting ``importance_sampling_mode``.
        effective: (Σ w)² / (N Σ w²), the share of the tokens that are worth as much as all with
            their weights (Kong 1992); 0 if all weights are.
        bounded: The share of the tokens whose weight is truncated or masked.
    """

    mode: str
    effective: float
    bounded: float


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Gaps by what may cause them, and prices of corrections.

    Attributes:
        gaps: The gaps of all tokens first; then of tokens grouped by a property.
        prices: What each correction costs.
        rounding: What bfloat16 changes in the trainer's log p, by the kind of the layers that have
            it, of all layers last; empty where the model is not at hand.
        cause: What explains the gap of all tokens, in words; None where nothing is known of it.
    """

    gaps: list[Gap]
    prices: list[Price]
    rounding: list[Gap] = field(default_factory=list)
    cause: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def compare(branches: Sequence[Tokens], rounding: Mapping[str, torch.Tensor]) -> Mismatch:
    """Return the mismatch of branches sampled with the weights as they are.

    Args:
        branches: One or more.
        rounding: The result of :func:`~vf.trainer.learning.model.rounding.rounding_gaps`.
    """
    gaps = _gaps(branches)
    kinds = [_gap("layers", kind, kind_gaps) for kind, kind_gaps in rounding.items()]
    return Mismatch(gaps, _prices(branches), kinds, _cause(gaps[0], kinds))


def _cause(whole: Gap, kinds: Sequence[Gap]) -> str:
    if whole.largest == 0.0:
        return "none: every token has the same bits on both sides"
    if whole.mean <= ORDER:
        return f"the order of sums in float32, which explains gaps up to {ORDER:g}"
    if kinds and whole.mean <= TIMES * kinds[-1].mean:
        most = max(kinds[:-1], key=lambda gap: gap.mean, default=kinds[-1])
        return (
            f"rounding: with all layers in bfloat16, the trainer's own log p differs by "
            f"{kinds[-1].mean:.2g} on average, and most with {most.group} alone ({most.mean:.2g})"
        )
    return (
        "more than rounding: the engine samples from other weights, another adapter, a coarser "
        "quantisation, another temperature, or a truncated distribution"
    )


def measure(run: Path) -> Mismatch:
    """Measure a run's mismatch on the groups that it kept.

    Args:
        run: The run's folder.

    Raises:
        ConfigError: If the run kept no group's log-probabilities.
    """
    branches = list(_read(run))
    if not branches:
        raise ConfigError(
            f"{run}: no trainer's log-probabilities in learned/; trainer.args.learned_groups = 1 "
            "or more keeps them for that many groups of a step"
        )
    return Mismatch(_gaps(branches), _prices(branches))


def _read(run: Path) -> Iterator[Tokens]:
    for file in sorted((run / "traces").glob("step-*.jsonl")):
        learned = learned_beside(file)
        for trace in TraceStore(file) if learned else ():
            for one in learned.get(trace.id, ()):
                if one.update != 1 or one.branch >= len(trace.branches):
                    continue
                branch = trace.branches[one.branch]
                trained = torch.tensor(one.mask, dtype=torch.bool).nonzero().squeeze(1)
                if not len(trained) or len(branch.logprobs) < len(one.mask):
                    continue
                sampled = torch.tensor(branch.logprobs, dtype=torch.float64)[trained]
                ours = torch.tensor(one.logprobs, dtype=torch.float64)
                yield Tokens(ours - sampled, sampled.exp(), trained, len(one.mask))


def _gaps(branches: Sequence[Tokens]) -> list[Gap]:
    gaps = torch.cat([branch.gaps for branch in branches])
    lengths = torch.cat([torch.full_like(branch.positions, branch.length) for branch in branches])
    positions = torch.cat([branch.positions for branch in branches])
    likely = torch.cat([branch.probabilities for branch in branches])
    return [
        _gap("all", "", gaps),
        *_by("probability", likely, PROBABILITIES, gaps, "{:g}".format),
        *_by("position", positions, POSITIONS, gaps, "{:,}".format),
        *_by("branch length", lengths, POSITIONS, gaps, "{:,}".format),
    ]


def _by(
    name: str,
    values: torch.Tensor,
    edges: Sequence[float],
    gaps: torch.Tensor,
    label: Callable[[float], str],
) -> Iterator[Gap]:
    """Yield the gaps of tokens from one edge up to the next, where there are any."""
    bins = torch.bucketize(values, torch.tensor(edges, dtype=values.dtype), right=True)
    for number in range(len(edges) + 1):
        some = gaps[bins == number]
        if len(some):
            low = label(edges[number - 1]) if number else "0"
            last = number == len(edges)
            yield _gap(name, f"{low} and up" if last else f"{low} to {label(edges[number])}", some)


def _gap(by: str, group: str, gaps: torch.Tensor) -> Gap:
    sizes = gaps.abs().sort().values
    index = min(len(sizes) - 1, int(0.99 * len(sizes)))
    return Gap(
        by=by,
        group=group,
        tokens=len(sizes),
        kl=float(-gaps.mean()),
        mean=float(sizes.mean()),
        p99=float(sizes[index]),
        largest=float(sizes[-1]),
    )


def _prices(branches: Sequence[Tokens]) -> list[Price]:
    corrections = {
        "token_truncate": Correction(None, HIGH, of_sequence=False),
        "token_mask": Correction(1.0 / HIGH, HIGH, of_sequence=False),
        "sequence_truncate": Correction(None, HIGH, of_sequence=True),
        "sequence_mask": Correction(1.0 / HIGH, HIGH, of_sequence=True),
    }
    prices = []
    for mode, correction in corrections.items():
        made = [
            correction(branch.gaps[None], torch.ones_like(branch.gaps[None], dtype=torch.bool))
            for branch in branches
        ]
        weights = torch.cat([corrected.weights[0] for corrected in made])
        bounded = torch.cat([corrected.bounded[0] for corrected in made])
        squares = float(weights.square().sum())
        share = float(weights.sum()) ** 2 / (len(weights) * squares) if squares else 0.0
        prices.append(Price(mode, share, float(bounded.double().mean())))
    return prices
