"""A model over any OpenAI-compatible chat API: messages in, a message out."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vf.inference.completions import sampling_fields
from vf.inference.model import NEUTRAL, ContextFull, Conversation, Reply, Sampling, ToolStyle
from vf.inference.models.chat_answers import (
    REASONING,
    TOO_LONG_STATUSES,
    Filtered,
    Refused,
    TooLong,
    as_sent,
    failure,
    read_object,
    read_reply,
    valid,
)
from vf.inference.models.request_fields import Fields, RequestFields, refuses
from vf.inference.models.tool_images import images_behind
from vf.inference.parsing.json_calls import TEXT_CALLS
from vf.inference.patience import AWAY_SECONDS, Patience
from vf.inference.rendering.text_tools import in_text
from vf.inference.wire import CONNECT_SECONDS, Unavailable, retry_after, split_query, words_of
from vf.runtime.api_keys import KEY, URL, clean_key, hide, hide_in_logs, in_url, read_key, tells
from vf.runtime.batching import PerLoop
from vf.runtime.certificates import verify_for
from vf.runtime.errors import ConfigError, ModelError
from vf.traces.messages import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI

CLIENT_CONNECTIONS = 1000  # that the openai client holds at most


class ChatModel:
    """Answers conversations through ``/v1/chat/completions``.

    ``max_tokens`` is a maximum: where the context holds less, an answer may fill the context.

    For measuring models anywhere; training needs token ids, so it uses
    :class:`~vf.inference.models.token_model.TokenModel`.

    Args:
        model: The model's name at the provider.
        base_url: The API, up to and including ``/v1``; OpenAI's own by default.
        api_key: By default the environment variable ``OPENAI_API_KEY``; local servers usually need
            none. What copying has left around it (blanks, a line break) is left out.
        timeout: Seconds that may pass without an answer to any request, for answers of up to 1,024
            tokens; for longer ones more, in proportion to ``max_tokens``. An answer that takes
            longer is an error, and is not retried.
        max_retries: Attempts after the first, on transient errors; 0 fails at the first.
        away: Seconds to wait for an API that has answered before while it refuses connections or
            says that it is busy or down, by 429, 502 or 503, for example.
        extra_body: Parameters beyond OpenAI's, sent with every request.
        tool_style: ``template`` sends the tools along. ``text`` is for a server or model that takes
            none: the system prompt lists them, and calls are read from the answers' text
            (:mod:`vf.inference.rendering.text_tools`).
        request_fields: By a field's name, the name by which this API takes it, or False to leave it
            out, such as ``{"max_tokens": "max_completion_tokens", "seed": False}``. An API's
            refusal of ``max_tokens``, of ``seed`` and of fields with their usual value is noticed
            without it.
        send_reasoning: Whether the API gets the reasoning of earlier answers back, as it came.
        every_field: Send every sampling field, neutral ones too. vLLM takes what a request leaves
            out from the model's ``generation_config.json``; other APIs refuse fields such as
            ``top_k``.

    Attributes:
        model: The model's name.
        notes: What was found out of the API, in words.

    Raises:
        ConfigError: If a key is needed (no ``base_url``, here or in ``OPENAI_BASE_URL``) and there
            is none, or it holds what no HTTP header can.
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
        request_fields: RequestFields | None = None,
        send_reasoning: bool = True,
        every_field: bool = False,
    ) -> None:
        key = clean_key(api_key, "api_key") if api_key else read_key(KEY)
        if not key and not (base_url or os.environ.get(URL)):
            raise ConfigError(
                "no API key: set OPENAI_API_KEY, or pass api_key, or base_url for another server"
            )
        self.model = model
        url = base_url or os.environ.get(URL)
        self._secrets = key, *in_url(url)
        verify = verify_for(url)
        address, query = split_query(url)
        self._fields = Fields(model, request_fields or {})
        self._send_reasoning = send_reasoning
        self._every_field = every_field
        self._valid_calls = False  # whether the API gets only calls that are JSON
        self._extra_body = extra_body or {}
        self._in_text = tool_style == "text"

        def connection() -> tuple[AsyncOpenAI, Patience]:
            import openai

            hide_in_logs()
            # How long and how often it is asked, and how many at once, is for Patience to say.
            client = openai.AsyncOpenAI(
                base_url=address,
                default_query=query,
                api_key=key or "none",
                timeout=openai.Timeout(None, connect=CONNECT_SECONDS),
                max_retries=0,
                http_client=openai.DefaultAsyncHttpxClient(verify=verify),
            )
            return client, Patience(
                model,
                timeout=timeout,
                max_retries=max_retries,
                away=away,
                most=CLIENT_CONNECTIONS,
            )

        self._connections = PerLoop(connection)

    @property
    def notes(self) -> list[str]:
        return self._fields.notes

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Send the conversation and return the first choice.

        Raises:
            ModelError: If the API refused, did not answer, or not with text and function calls.
            ContextFull: If the API refused the conversation because it is too long.
        """
        client, patience = self._connections.get()

        async def ask(max_tokens: int | None) -> Reply:
            return await patience.ask(
                lambda: self._attempt(client, conversation, sampling, max_tokens),
                sampling.max_tokens,
            )

        try:
            reply = await ask(sampling.max_tokens)
        except Filtered:
            return Reply(Message("assistant"), "content_filter")
        except TooLong:
            reply = await _filling(ask, sampling.max_tokens)
        if self._in_text:
            return replace(reply, message=_with_calls(reply.message, conversation))
        return reply

    async def _attempt(
        self,
        client: AsyncOpenAI,
        conversation: Conversation,
        sampling: Sampling,
        max_tokens: int | None,
    ) -> Reply:
        """Ask once, and again where a field was refused that can be left out.

        Raises:
            Unavailable: If the request failed and may be tried again.
            ModelError: If the API refused.
        """
        fields = self._request_fields(conversation, sampling, max_tokens)
        messages, tools = conversation.messages, conversation.tools
        if self._in_text:
            messages, tools = in_text(messages, tools), []
        while True:
            reasoning, applied = self._send_reasoning, self._fields.applied(fields)
            wraps = self._valid_calls
            sent = images_behind(
                messages,
                [as_sent(m, reasoning=reasoning, valid_calls=wraps) for m in messages],
            )
            more = {**({"tools": tools} if tools else {}), **applied}
            try:
                text = await self._send(client, sent, more)
            except Refused as error:
                if type(error) is not Refused or error.status not in (400, 422):
                    raise
                if self._learned(error.words, fields, applied, reasoning):
                    continue
                if not wraps and not all(map(valid, messages)):  # the model's doing: no failure
                    self._valid_calls = True
                    continue
                advice = self._fields.advice(error.words, fields)
                problem = str(error).rstrip(".") if advice else str(error)
                raise Refused(problem + advice, error.status, error.words) from error.__cause__
            answer = read_object(text, self.model)
            reply = read_reply(answer, self.model, conversation)
            if answer["choices"][0].get("finish_reason") is None:
                self._fields.note(
                    f"{self.model}: the API does not say why answers end (finish_reason is null): "
                    "one that was cut off is taken for a whole one"
                )
            return reply

    def _learned(
        self, words: str, fields: dict[str, Any], applied: dict[str, Any], reasoning: bool
    ) -> bool:
        """Return whether a refused request can be repeated without what was refused."""
        if not refuses(words):
            return False
        if reasoning and any(name in words for name in REASONING):
            if self._send_reasoning:
                self._fields.note(
                    f"{self.model}: the API does not take earlier reasoning, which is left out"
                )
            self._send_reasoning = False
            return True
        return self._fields.learn(words, fields, applied)

    async def _send(
        self, client: AsyncOpenAI, messages: list[dict[str, Any]], more: dict[str, Any]
    ) -> str:
        """Return the text of an answer.

        Raises:
            Unavailable: If the request failed and may be tried again.
            Refused: If the API refused.
            ModelError: If the client failed.
        """
        import openai

        try:
            answer = await client.chat.completions.with_raw_response.create(
                model=self.model,
                messages=messages,  # type: ignore[arg-type]
                extra_body=more,
            )
            return hide(answer.http_response.text, *self._secrets)
        except openai.APIStatusError as error:
            text = hide(error.response.text, *self._secrets)
            kind, status = type(error).__name__, error.status_code
            problem = f"{self.model}: {kind}: {status}: {words_of(text)}"
            after = retry_after(error.response.headers)
            raise failure(problem, status, text, after) from self._cause(error)
        except openai.OpenAIError as error:
            cause = f" ({error.__cause__!r})" if error.__cause__ is not None else ""
            problem = f"{self.model}: {type(error).__name__}: {error}{cause}"
            problem = hide(problem, *self._secrets)
            if not isinstance(error, openai.APIConnectionError):
                raise ModelError(problem) from self._cause(error)
            # Only connecting has a timeout here.
            away = isinstance(error, openai.APITimeoutError)
            raise Unavailable(problem, away=away, answered=False) from self._cause(error)

    def _request_fields(
        self, conversation: Conversation, sampling: Sampling, max_tokens: int | None
    ) -> dict[str, Any]:
        """Return the fields of a request beside the conversation, by our names for them."""
        given = sampling_fields(sampling, [])
        fields: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
        fields |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        if sampling.seed is not None:
            fields["seed"] = sampling.seed
        if sampling.stop:
            fields["stop"] = list(sampling.stop)
        fields |= self._extra_body | conversation.options
        beyond = NEUTRAL if self._every_field else given.keys() & NEUTRAL.keys()
        unset = {name: getattr(sampling, name) for name in beyond if name not in fields}
        return fields | unset

    def _cause(self, error: Exception) -> Exception | None:
        """Return an error as the cause of another; None where it tells the key."""
        return None if tells(error, *self._secrets) else error

    async def close(self) -> None:
        """Close the connections of the running loop."""
        connection = self._connections.pop()
        if connection is not None:
            await connection[0].close()


async def _filling(ask: Callable[[int | None], Awaitable[Reply]], most: int) -> Reply:
    """Return an answer to a conversation that leaves less room than ``most`` tokens.

    Raises:
        ContextFull: If the conversation leaves no room.
        ModelError: If the API failed.
    """
    try:
        return await ask(None)  # servers sample until there is no room
    except TooLong as error:
        raise ContextFull() from error
    except Refused as error:
        if error.status not in TOO_LONG_STATUSES:
            raise
    while most := most // 2:  # this one wants to know max_tokens
        with suppress(TooLong):
            return await ask(most)
    raise ContextFull()


def _with_calls(message: Message, conversation: Conversation) -> Message:
    """Return an answer with the calls that its text holds."""
    read = TEXT_CALLS.parse(
        message.content, id_prefix=f"call_{conversation.turn}", tools=conversation.tools
    )
    return replace(read, reasoning=message.reasoning or read.reasoning, raw=message.raw)
