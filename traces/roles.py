"""What a trace records of each role of an episode with several agents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RoleRecord:
    """A role in one rollout.

    Attributes:
        player: Who played it: ``policy``, the name of another model, or ``script``.
        trained: Whether its tokens carry loss.
        reward: The sum of what the environment gave it, in [0, 1].
        answers: How often it acted.
        prompt_tokens: Tokens of its prompts, summed over the answers; 0 where nobody counts them.
        completion_tokens: Tokens that it sampled.
    """

    player: str
    trained: bool = False
    reward: float = 0.0
    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
