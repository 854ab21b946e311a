"""A dialect spoken to by its official client, in one process, and messages to speak of."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from vf.inference.endpoint.dialect import Answered, Dialect, ModelRequest, Refusal
from vf.inference.model import Reply
from vf.traces.messages import Message, ToolCall

_TEXT = st.text(max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
_ARGUMENTS = st.dictionaries(_TEXT, _JSON, max_size=3).map(json.dumps)
_WRITTEN = _ARGUMENTS | _JSON.map(json.dumps) | _TEXT | st.sampled_from(["NaN", '{"a": 1e999}'])


@st.composite
def answers(draw: st.DrawFn) -> Message:
    """Whatever a model may have sampled."""
    written = draw(st.lists(_WRITTEN, max_size=3))
    calls = [ToolCall(f"call_{i}", draw(_TEXT), text) for i, text in enumerate(written)]
    reasoning = draw(st.none() | _TEXT)
    return Message("assistant", draw(_TEXT), reasoning=reasoning, tool_calls=calls)


def spoilt(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a request with something else in each of its places."""
    others: list[Any] = [
        None,
        3,
        0.5,
        True,
        "",
        "x",
        [],
        [3],
        [[]],
        {},
        {"type": []},
        {"type": "x"},
    ]
    for place in range(len(list(_places(body)))):
        for other in others:
            found = copy.deepcopy(body)
            holder, key = list(_places(found))[place]
            holder[key] = other
            yield found


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def survives(dialect: Dialect, body: dict[str, Any]) -> None:
    """Make sure that a request is answered, or refused."""
    try:
        asked = dialect.read(body, {})
    except Refusal as error:
        refusal = error
    else:
        _is_answered(dialect, asked)
        return
    assert refusal.param


def _is_answered(dialect: Dialect, asked: ModelRequest) -> None:
    calls = [ToolCall("c1", tool["function"]["name"], "{}") for tool in asked.tools]
    reply = Reply(Message("assistant", "Yes.", reasoning="Hm.", tool_calls=calls))
    answered = Answered([reply], "policy")
    assert json.dumps(dialect.answer(asked, answered))
    assert b"".join(dialect.events(asked, answered))
    assert all(isinstance(message.content, str) for message in asked.messages)
    assert all(isinstance(call.name, str) for m in asked.messages for call in m.tool_calls)


def same(one: Message, other: Message, *, reasoning: bool = True) -> bool:
    """Whether two answers are equal, with arguments compared as JSON where they are."""
    if reasoning and one.reasoning != other.reasoning:
        return False
    return one.content == other.content and _calls(one) == _calls(other)


def _calls(message: Message) -> list[tuple[str, str, Any]]:
    return [(call.id, call.name, _meaning(call.arguments)) for call in message.tool_calls]


def _meaning(arguments: str) -> Any:
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except ValueError:
        return arguments


class Spoken:
    """Answers a client's requests with the next of ``replies``, and keeps what it asked.

    A reply that is a refusal is an error.
    """

    def __init__(self, dialect: Dialect, replies: Sequence[Reply | Refusal]) -> None:
        self.dialect = dialect
        self.replies = list(replies)
        self.asked: list[ModelRequest] = []
        self.stored: dict[str, list[Message]] = {}

    def client(self, kind: Callable[..., Any], default: type[Any]) -> Any:
        """Return a client that speaks to this, and not to a network.

        Args:
            kind: The client's class.
            default: The class of its own HTTP client.
        """
        http = sys.modules[default.__mro__[1].__module__.partition(".")[0]]

        def answer(request: Any) -> Any:
            status, content, stream = self.respond(json.loads(request.read()))
            kind = "text/event-stream" if stream else "application/json"
            return http.Response(status, content=content, headers={"content-type": kind})

        transport = http.MockTransport(answer)
        return kind(
            base_url="http://endpoint",
            api_key="key",
            max_retries=0,
            http_client=default(transport=transport),
        )

    def respond(self, body: dict[str, Any]) -> tuple[int, bytes, bool]:
        """Return the status, the content, and whether that is a stream."""
        try:
            asked = self.dialect.read(body, self.stored)
            self.asked.append(asked)
            reply = self.replies.pop(0)
            if isinstance(reply, Refusal):
                raise reply
        except Refusal as refusal:
            return refusal.status, json.dumps(self.dialect.error(refusal)).encode(), False
        answered = Answered([reply], "policy")
        self.stored[answered.id] = [*asked.messages, reply.message]
        if asked.stream:
            return 200, b"".join(self.dialect.events(asked, answered)), True
        return 200, json.dumps(self.dialect.answer(asked, answered)).encode(), False
