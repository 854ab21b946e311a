"""Where an agent finds the model that it is to use in one rollout."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The OpenAI-compatible URL of one rollout.

    Attributes:
        url: Base URL for OpenAI's clients: ``http://127.0.0.1:PORT/r/ROLLOUT/v1``.
        key: The API key; it opens this rollout alone.
        model: The model's name. Any other name that an agent asks for is refused.
        reward_key: The key of ``POST .../reward``, for a harness that scores by itself. Keep it
            from the agent's process.
    """

    url: str
    key: str = field(repr=False)
    model: str = "policy"
    reward_key: str = field(default="", repr=False)

    @property
    def root(self) -> str:
        """Base URL for Anthropic's clients, which add ``/v1/messages`` themselves."""
        return self.url.removesuffix("/v1")

    @property
    def reward_url(self) -> str:
        """Where a harness reports a reward in [0, 1], once, as ``{"reward": 0.5}``."""
        return f"{self.root}/reward"

    def environ(self) -> dict[str, str]:
        """Return the environment variables by which clients find this endpoint."""
        return {
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.root,
            "ANTHROPIC_API_KEY": self.key,
            "VF_MODEL": self.model,
        }
