"""How often the contexts of rollouts could not grow, why, and what that cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from vf.traces.trace import ForkKind, Trace

OFTEN = 0.5  # a share of the calls; an agent above it is said to rewrite its history

_APPEND = (
    "leave earlier messages as they are, and put what changes (a time, a budget, a summary) into a "
    "new last message"
)
_REMEDY: dict[ForkKind, str] = {
    "rewritten": _APPEND,
    "tools": "offer the same tools in every call",
    "conversation": _APPEND,
    "template": "see docs/templates.md and vf-rl check-template",
}


@dataclass(slots=True)
class Branching:
    """What the branches of some rollouts add up to.

    Attributes:
        rollouts: Rollouts with at least one answer.
        branches: Their branches, or conversations where there are no tokens.
        forks: How many began there, by :data:`~vf.traces.trace.ForkKind`.
        reasons: The first reason of each kind.
        calls: Answers that came after another one, and could have extended its context.
        again: Tokens of context that forks had computed from the beginning. Not among them are
            those of the kind ``parallel``, which share what was computed.
    """

    rollouts: int = 0
    branches: int = 0
    forks: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    calls: int = 0
    again: int = 0

    @classmethod
    def of(cls, traces: Iterable[Trace]) -> Self:
        """Count some rollouts."""
        made = cls()
        for trace in traces:
            made.add(trace)
        return made

    def add(self, trace: Trace) -> None:
        """Count a rollout."""
        if not trace.turns:
            return
        self.rollouts += 1
        self.branches += max(len(trace.branches), len(trace.conversations))
        self.calls += len(trace.turns) - 1
        for fork in trace.forks:
            self.forks[fork.kind] += 1
            self.reasons.setdefault(fork.kind, fork.reason)
            if fork.kind in _REMEDY and fork.turn < len(trace.turns):
                self.again += trace.turns[fork.turn].prompt_tokens

    @property
    def per_rollout(self) -> float:
        """Branches per rollout; 1 where every context grew, or nothing was counted."""
        return self.branches / self.rollouts if self.rollouts else 1.0

    @property
    def share(self) -> float:
        """How many of the calls began from the beginning, in [0, 1]."""
        return min(1.0, sum(self.forks[kind] for kind in _REMEDY) / self.calls) if self.calls else 0

    @property
    def complaint(self) -> str:
        """What to say of contexts that rarely grow: how often, why, the cost and the remedy."""
        kind = max(_REMEDY, key=lambda kind: self.forks[kind])
        reason = " ".join(self.reasons.get(kind, "").split())[:300]
        return (
            f"{self.share:.0%} of the calls begin a new context instead of extending one, most "
            f"often because: {reason}. Each is computed from its beginning, "
            f"{self.again / max(1, self.rollouts):,.0f} tokens a rollout, when it is sampled and "
            f"when it is trained on: {_REMEDY[kind]}"
        )
