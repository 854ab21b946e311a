"""The numbers of a step that a reader looks at first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vf.trainer.run.metrics import Metrics


_Format = Callable[[float], str]


def _plain(value: float) -> str:
    return f"{value:.3f}"


def _signed(value: float) -> str:
    return f"{value:+.4f}"


def _small(value: float) -> str:
    return f"{value:.2g}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _mean(value: float) -> str:
    return f"{value:.1f}"


def _share(value: float) -> str:
    return f"{value:.0%}"


# Beside the rewards, which the curve shows: metric, what it is called on the screen, how it is
# written. The first are the most important: where there is no room, the last are left out.
_SHOWN: list[tuple[str, str, _Format]] = [
    ("success_rate", "success", _share),
    ("loss", "loss", _signed),
    ("kl_sample_train_v1", "KL to sampler", _small),
    ("kl_reference_v3", "KL to reference", _small),
    ("entropy", "entropy", _plain),
    ("grad_norm", "grad norm", _plain),
    ("tokens/completion_mean", "tokens a rollout", _mean),
    ("tokens_per_s/generate", "tok/s generated", _count),
    ("tokens_per_s/train", "tok/s trained", _count),
    ("groups/uniform_fraction", "groups without signal", _share),
    ("staleness/mean", "staleness", _mean),
    ("staleness/max", "staleness at most", _count),
    ("turns/mean", "turns", _mean),
    ("truncated_fraction", "truncated", _share),
    ("clip_fraction", "clipped", _share),
    ("tool_calls/mean", "tool calls", _mean),
    ("rollouts/failed", "failed rollouts", _count),
    ("learning_rate", "learning rate", _small),
    ("logprob_gap", "logprob gap", _small),
]


def key_numbers(metrics: Metrics) -> Iterator[tuple[str, str]]:
    """Yield name and value of what a step has of the key numbers, the most important first."""
    for metric, name, write in _SHOWN:
        if metric in metrics:
            yield name, write(metrics[metric])


def number_line(metrics: Metrics) -> str:
    """Return the numbers of a step for a line of its own."""
    parts = [f"reward {metrics.get('reward/mean', float('nan')):.3f}"]
    if "loss" in metrics:
        parts.append(f"loss {metrics['loss']:+.4f}")
    if metrics.get("groups/uniform_fraction"):
        parts.append(f"{metrics['groups/uniform_fraction']:.0%} of groups without signal")
    for name, word in (("generate", "tok/s generated"), ("train", "trained")):
        if f"tokens_per_s/{name}" in metrics:
            parts.append(f"{metrics[f'tokens_per_s/{name}']:,.0f} {word}")
    return "  ".join(parts)
