"""A model over any OpenAI-compatible chat API: messages in, a message out."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vf.inference.completions import sampling_fields
from vf.inference.model import ContextFull, Conversation, Reply, Sampling, ToolStyle
from vf.inference.parsing import TEXT_CALLS
from vf.inference.patience import AWAY_SECONDS, Patience
from vf.inference.rendering.text_tools import in_text
from vf.inference.wire import CONNECT_SECONDS, Unavailable, refusal, retry_after
from vf.runtime.batching import PerLoop
from vf.runtime.errors import ConfigError, ModelError
from vf.traces.messages import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI

CLIENT_CONNECTIONS = 1000  # that the openai client holds at most
# How vLLM, SGLang, TGI, llama.cpp and the large providers say that a prompt, or a prompt and
# max_tokens, are more than the context holds. They do not agree on a status or a code.
TOO_LONG_STATUSES = (400, 413, 422)
TOO_LONG = re.compile(
    r"context[ _-](length|size|window)|maximum model length|`inputs` tokens|"
    r"prompt is too long|input token count",
    re.IGNORECASE,
)


class _TooLong(ModelError):
    """What was asked for is more than the context holds."""


class ChatModel:
    """Answers conversations through ``/v1/chat/completions``.

    ``max_tokens`` is a maximum: where the context holds less, an answer may fill the context.

    For measuring models anywhere; training needs token ids, so it uses
    :class:`~vf.inference.models.token_model.TokenModel`.

    Args:
        model: The model's name at the provider.
        base_url: The API, up to and including ``/v1``; OpenAI's own by default.
        api_key: By default the environment variable ``OPENAI_API_KEY``; local servers usually need
            none.
        timeout: Seconds that may pass without an answer to any request, for answers of up to 1,024
            tokens; for longer ones more, in proportion to ``max_tokens``. An answer that takes
            longer is an error, and is not retried.
        max_retries: Attempts after the first, on transient errors; 0 fails at the first.
        away: Seconds to wait for an API that has answered before while it refuses connections or
            answers 429, 502 or 503.
        extra_body: Parameters beyond OpenAI's, sent with every request.
        tool_style: ``template`` sends the tools along. ``text`` is for a server or model that takes
            none: the system prompt lists them, and calls are read from the answers' text
            (:mod:`vf.inference.rendering.text_tools`).

    Raises:
        ConfigError: A key is needed (no ``base_url``) and there is none.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 120.0,
        max_retries: int = 4,
        away: float = AWAY_SECONDS,
        extra_body: dict[str, Any] | None = None,
        tool_style: ToolStyle = "template",
    ) -> None:
        key = api_key or os.environ.get("OPENAI_API_KEY")
        if key is None and base_url is None:
            raise ConfigError(
                "no API key: set OPENAI_API_KEY, or pass api_key, or base_url for another server"
            )
        self.model = model
        self._extra_body = extra_body or {}
        self._in_text = tool_style == "text"

        def connection() -> tuple[AsyncOpenAI, Patience]:
            import openai

            # How long and how often it is asked, and how many at once, is for Patience to say.
            client = openai.AsyncOpenAI(
                base_url=base_url,
                api_key=key or "none",
                timeout=openai.Timeout(None, connect=CONNECT_SECONDS),
                max_retries=0,
            )
            return client, Patience(
                model,
                timeout=timeout,
                max_retries=max_retries,
                away=away,
                most=CLIENT_CONNECTIONS,
            )

        self._connections = PerLoop(connection)

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Send the conversation and return the first choice.

        Raises:
            ModelError: The API refused, did not answer, or not with text and function calls.
            ContextFull: The API refused the conversation because it is too long.
        """
        from openai.types.chat import ChatCompletion

        client, patience = self._connections.get()

        async def ask(max_tokens: int | None) -> Any:
            return await patience.ask(
                lambda: self._attempt(client, conversation, sampling, max_tokens),
                sampling.max_tokens,
            )

        try:
            answer = await ask(sampling.max_tokens)
        except _TooLong:
            # Less room is left than max_tokens; without it, servers sample until there is none.
            try:
                answer = await ask(None)
            except _TooLong as error:
                raise ContextFull() from error
        if not isinstance(answer, ChatCompletion):  # what the client makes of a page of HTML
            raise ModelError(f"{self.model}: the server did not answer with a chat completion")
        if not answer.choices:
            raise ModelError(f"{self.model}: the answer has no choices")
        choice = answer.choices[0]
        try:
            message = Message.from_openai({**choice.message.model_dump(), "role": "assistant"})
        except ConfigError as error:  # one answer is at fault, and no setting
            raise ModelError(f"{self.model}: the answer cannot be read: {error}") from error
        if self._in_text:
            message = _with_calls(message, conversation)
        usage = answer.usage
        return Reply(
            message,
            "length" if choice.finish_reason == "length" else "stop",
            (usage and usage.prompt_tokens) or 0,  # some servers send null
            (usage and usage.completion_tokens) or 0,
        )

    async def _attempt(
        self,
        client: AsyncOpenAI,
        conversation: Conversation,
        sampling: Sampling,
        max_tokens: int | None,
    ) -> Any:
        """Ask once.

        Raises:
            Unavailable: It may be tried again.
            ModelError: The API refused.
        """
        import openai

        fields = sampling_fields(sampling, [])
        beyond = fields.keys() & {"top_k", "min_p", "repetition_penalty"}
        extra = self._extra_body | conversation.options | {name: fields[name] for name in beyond}
        messages, tools = conversation.messages, conversation.tools
        if self._in_text:
            messages, tools = in_text(messages, tools), []
        try:
            return await client.chat.completions.create(
                model=self.model,
                messages=[message.to_openai() for message in messages],  # type: ignore[misc]
                tools=tools or openai.omit,  # type: ignore[arg-type]
                max_tokens=openai.omit if max_tokens is None else max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=openai.omit if sampling.seed is None else sampling.seed,
                stop=list(sampling.stop) or openai.omit,
                extra_body=extra or None,
            )
        except (openai.OpenAIError, ValueError) as error:  # ValueError: the body is not JSON
            raise _failure(self.model, error) from error

    async def close(self) -> None:
        """Close the connections of the running loop."""
        connection = self._connections.pop()
        if connection is not None:
            await connection[0].close()


def _failure(model: str, error: Exception) -> ModelError:
    """Return what an exception of the client's means for another attempt."""
    import openai

    problem = f"{model}: {type(error).__name__}: {error}"
    if isinstance(error, openai.APIStatusError):
        if error.code == "insufficient_quota":  # a 429 that does not pass
            return ModelError(problem)
        if error.status_code in TOO_LONG_STATUSES and TOO_LONG.search(problem):
            return _TooLong(problem)
        after = retry_after(error.response.headers.get("Retry-After"))
        return refusal(problem, error.status_code, after)
    if isinstance(error, openai.APIConnectionError):
        # Only connecting has a timeout here.
        away = isinstance(error, openai.APITimeoutError)
        return Unavailable(problem, away=away, answered=False)
    return ModelError(problem)


def _with_calls(message: Message, conversation: Conversation) -> Message:
    """Return an answer with the calls that its text holds."""
    read = TEXT_CALLS.parse(
        message.content, id_prefix=f"call_{conversation.turn}", tools=conversation.tools
    )
    return replace(read, reasoning=message.reasoning or read.reasoning)
