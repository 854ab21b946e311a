"""Other models that take part in an episode, as ``env.args`` names them: a table of a chat API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from vf.inference.model import NEUTRAL, Sampling, ToolStyle
from vf.inference.models.chat_model import ChatModel
from vf.inference.settings import MinP, Positive, RepetitionPenalty, Seconds, Strict, TopK, TopP
from vf.runtime.errors import ConfigError
from vf.runtime.toml import checked

_SAMPLING = ("max_tokens", "temperature", *NEUTRAL)


class ChatTable(Strict):
    """A model at an OpenAI-compatible API that plays a part beside the policy, and how it samples.

    Its defaults are :class:`~vf.inference.models.chat_model.ChatModel`'s; those of sampling are
    the part's.
    """

    model: str
    """Its name at the API."""
    base_url: str | None = None
    """The API, up to and including /v1; OpenAI's own by default."""
    api_key_env: str | None = None
    """Environment variable that holds the API's key."""
    timeout: Seconds = 120.0
    """Seconds that may pass without an answer."""
    max_retries: Annotated[int, Field(ge=0)] = 4
    """Attempts after the first, on errors that may pass."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Extra parameters of every request."""
    tool_style: ToolStyle = "template"
    """`template`: the API takes tools; `text`: the system prompt lists them."""
    max_tokens: Positive = 512
    """Maximum tokens of one answer."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: TopP = 1.0
    top_k: TopK = 0
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0

    @classmethod
    def read(cls, table: Mapping[str, Any], where: str) -> ChatTable:
        """Check a table.

        Args:
            table: The settings.
            where: Which setting it is, such as ``textarena.opponent``.

        Raises:
            ConfigError: A key or a value is wrong, or the variable that should hold the key is
                not set.
        """
        found = checked(cls, table, under=where)
        variable = found.api_key_env
        if variable is not None and not os.environ.get(variable):
            raise ConfigError(f"{where}.api_key_env: the variable {variable} is not set")
        return found

    def open(self, where: str) -> ChatModel:
        """Return the model; it connects when it is first asked.

        Raises:
            ConfigError: The API needs a key, and there is none.
        """
        try:
            return ChatModel(
                self.model,
                base_url=self.base_url,
                api_key=os.environ.get(self.api_key_env) if self.api_key_env else None,
                timeout=self.timeout,
                max_retries=self.max_retries,
                extra_body=self.extra_body,
                tool_style=self.tool_style,
            )
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error

    def sampling(self, default: Sampling) -> Sampling:
        """Return how it samples: as the table says, and as the default where it does not."""
        said = self.model_fields_set & {*_SAMPLING}
        return default.with_(**{name: getattr(self, name) for name in said})
