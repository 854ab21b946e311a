"""The requests that the embedded server understands: OpenAI's, with vLLM's extensions.

A parameter that is not listed here is refused, never ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vf.inference.model import Sampling
from vf.inference.request_limits import MOST_MESSAGES, MOST_STOP_IDS, MOST_STOPS, MOST_TOOLS
from vf.inference.settings import MOST_TOP_K, MinP, RepetitionPenalty, Temperature, TopP
from vf.runtime.seeding import derive_seed

NonEmpty = Annotated[str, Field(min_length=1)]


class SamplingFields(BaseModel):
    """What both kinds of request share."""

    model_config = ConfigDict(extra="forbid")

    model: str
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: int = Field(0, ge=-1, le=MOST_TOP_K)
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stop: NonEmpty | Annotated[list[NonEmpty], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: list[int] | None = Field(None, max_length=MOST_STOP_IDS)
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    return_token_ids: bool = False
    routed_experts_prompt_start: int | None = Field(None, ge=0)
    user: str | None = None
    presence_penalty: Literal[0] | None = None
    frequency_penalty: Literal[0] | None = None

    @model_validator(mode="after")
    def _streams_text_only(self) -> Self:
        whole = self.return_token_ids or self.logprobs not in (None, False)
        if self.stream and (whole or self.routed_experts_prompt_start is not None):
            raise ValueError(
                "stream cannot be combined with return_token_ids, logprobs or "
                "routed_experts_prompt_start"
            )
        return self

    def sampling(self, max_tokens: int, index: int) -> Sampling:
        """Return the parameters of the request's ``index``-th choice."""
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=None if self.seed is None else derive_seed(self.seed, index),
            experts_from=self.routed_experts_prompt_start,
        )

    def stop_strings(self) -> list[str]:
        """Return the texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class CompletionRequest(SamplingFields):
    """``POST /v1/completions``."""

    prompt: str | list[int]
    max_tokens: int = Field(16, ge=1)
    logprobs: Literal[0, 1] | None = None
    echo: Literal[False] = False


class StreamOptions(BaseModel):
    """Whether the last chunk of a stream carries the usage."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class ChatRequest(SamplingFields):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MOST_MESSAGES)
    tools: list[dict[str, Any]] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: Literal["auto", "none"] | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: Literal[0] | None = None
    stream_options: StreamOptions | None = None
