"""Who takes part in an episode beside the policy: a chat API's model, any model, or a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field

from vf.inference.model import NEUTRAL, Model, Sampling, ToolStyle, own_sampling
from vf.inference.models.scripted_model import Line, ScriptedModel
from vf.inference.settings import (
    STRICT,
    MinP,
    Positive,
    RepetitionPenalty,
    Seconds,
    Temperature,
    TopK,
    TopP,
    real_numbers,
)
from vf.runtime.api_keys import read_key
from vf.runtime.errors import ConfigError
from vf.runtime.toml import KeyVariable, checked
from vf.traces.messages import Message

if TYPE_CHECKING:
    from vf.inference.models.chat_model import ChatModel

# A table of a model at an OpenAI-compatible API, or of a checkpoint; any model; or a script: lines
# in order, or a function of the player's side of the conversation.
PlayedBy: TypeAlias = Mapping[str, Any] | Model | Sequence[Line] | Callable[[list[Message]], Line]

ANSWER = Sampling(max_tokens=256)  # how a player answers by default
_SAMPLING = ("max_tokens", "temperature", *NEUTRAL)


class SamplingTable(BaseModel):
    """How a model that plays a part beside the policy samples; the defaults are the part's."""

    model_config = STRICT
    _numbers = real_numbers()

    max_tokens: Positive = 512
    """Maximum tokens of one answer."""
    temperature: Temperature = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: TopP = 1.0
    top_k: TopK = 0
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0

    def sampling(self, default: Sampling) -> Sampling:
        """Return how it samples: as the table says, and as the default where it does not."""
        given = self.model_fields_set & {*_SAMPLING}
        return default.with_(**{name: getattr(self, name) for name in given})


class CheckpointTable(SamplingTable):
    """A checkpoint that plays a part, loaded beside the run and never trained."""

    checkpoint: str
    """A folder with a model or an adapter, a run's checkpoint, or a hub name."""


class ChatTable(SamplingTable):
    """A model at an OpenAI-compatible API that plays a part beside the policy, and how it samples.

    Its defaults are :class:`~vf.inference.models.chat_model.ChatModel`'s.
    """

    model: str
    """Its name at the API."""
    base_url: str | None = None
    """The API, up to and including /v1; OpenAI's own by default."""
    api_key_env: KeyVariable | None = None
    """Environment variable that holds the API's key."""
    timeout: Seconds = 120.0
    """Seconds that may pass without an answer."""
    max_retries: Annotated[int, Field(ge=0)] = 4
    """Attempts after the first, on errors that may pass."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Extra parameters of every request."""
    tool_style: ToolStyle = "template"
    """`template`: the API takes tools; `text`: the system prompt lists them."""
    request_fields: dict[str, str | Literal[False]] = Field(default_factory=dict)
    """By a request field's name, the name by which this API takes it, or false to leave it out."""
    send_reasoning: bool = True
    """Send the reasoning of earlier answers back to the API, as it came."""

    @classmethod
    def read(cls, table: Mapping[str, Any], where: str) -> ChatTable:
        """Check a table.

        Args:
            table: The settings.
            where: The setting's name, such as ``textarena.opponent``.

        Raises:
            ConfigError: If a key or a value is wrong, or the variable that should hold the key is
                not set.
        """
        settings = checked(cls, table, under=where)
        settings.key(where)
        return settings

    def key(self, where: str) -> str | None:
        """Return the API's key, if the table names one.

        Raises:
            ConfigError: If the variable that should hold it does not.
        """
        if self.api_key_env is None:
            return None
        key = read_key(self.api_key_env, f"{where}.api_key_env: ")
        if key is None:
            raise ConfigError(f"{where}.api_key_env: the variable {self.api_key_env} is not set")
        return key

    def open(self, where: str) -> ChatModel:
        """Return the model; it connects when it is first asked.

        Raises:
            ConfigError: If the API needs a key, and there is none.
        """
        from vf.inference.models.chat_model import ChatModel  # loads aiohttp

        try:
            return ChatModel(
                self.model,
                base_url=self.base_url,
                api_key=self.key(where),
                timeout=self.timeout,
                max_retries=self.max_retries,
                extra_body=self.extra_body,
                tool_style=self.tool_style,
                request_fields=self.request_fields,
                send_reasoning=self.send_reasoning,
            )
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error


@dataclass(frozen=True, slots=True)
class Player:
    """Who plays a part beside the policy.

    Attributes:
        model: Who answers.
        sampling: How, except for the seed.
        name: What is recorded of who played.
    """

    model: Model
    sampling: Sampling
    name: str

    @classmethod
    def of(cls, played_by: PlayedBy, where: str, default: Sampling) -> Player:
        """Return the player that a setting means.

        Args:
            played_by: See :data:`PlayedBy`.
            where: The setting's name, for the errors.
            default: Sampling where the table does not say.

        Raises:
            ConfigError: If nothing of the kind can play.
        """
        if isinstance(played_by, Mapping) and "checkpoint" in played_by:
            from vf.inference.models.frozen_model import FrozenModel  # loads aiohttp

            frozen = checked(CheckpointTable, played_by, under=where)
            model = FrozenModel(frozen.checkpoint, f"{where}.checkpoint")
            return cls(model, frozen.sampling(default), frozen.checkpoint)
        if isinstance(played_by, Mapping):
            table = ChatTable.read(played_by, where)
            return cls(table.open(where), table.sampling(default), table.model)
        if hasattr(played_by, "respond"):
            sampling = own_sampling(played_by) if hasattr(played_by, "sampling") else default
            return cls(
                played_by, sampling, str(getattr(played_by, "model", type(played_by).__name__))
            )
        if callable(played_by) or (isinstance(played_by, list | tuple) and played_by):
            return cls(ScriptedModel(played_by), default, "script")
        raise ConfigError(
            f"{where} = {played_by!r}: pass a table with 'model' and 'base_url', or with "
            "'checkpoint', a model, a list of lines, or a function of the messages so far"
        )
