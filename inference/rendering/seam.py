"""The *bridge* from a sampled answer to the next one, read off the chat template.

A small closed conversation is rendered: an answer that holds a marker, and the new messages. Behind
the marker stand, in this order, whatever ends a tool call, the tokens that close the turn, those
that open the next message, and its text. Where the environment's part begins is the *seam*:

* An answer in words has nothing behind its last word, so the seam is right behind the marker.
* A template that renders the same from there on after a tool call has the same seam, so the call
  can be shown as words. This holds for ChatML, Llama, GLM, DeepSeek, Nemotron and others.
* Else (gpt-oss, Gemma 4) the seam is the first token behind the call that ends turns, or that is
  special but no part of the calls' own syntax.

A seam that begins with the token that the model sampled last is moved behind it: ``<|im_end|>``
in ChatML, and in GLM the ``<|user|>`` or ``<|observation|>`` that opens the next message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vf.inference.rendering.chat_template import MARKER, ChatTemplate
from vf.traces.messages import Message, Role, ToolCall

_NEXT = "vfnextvf"
_ALL = 2  # a template that shows two calls shows any number


class BridgeError(Exception):
    """The template cannot be extended here; the message says where it breaks."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the seam depends on: how many calls, who speaks next, which token ended the answer."""

    calls: int
    role: Role
    named: bool
    tools: bool
    ended: str | None


@dataclass(frozen=True, slots=True)
class Seam:
    """Where, behind an answer, the environment's text begins.

    Attributes:
        calls: Number of the answer's calls that are shown; 0 shows a word in their place.
        token: The first token of the environment's text; None where it is right behind the
            marker.
        sampled: Whether the model has sampled that token itself.
    """

    calls: int
    token: str | None = None
    sampled: bool = False


class Seams:
    """Finds the seams of one template, each once, the bridges, and the tokens that end answers.

    Args:
        template: The chat template.
        stops: Texts of the tokens that are known to end answers.

    Attributes:
        closer: The token that ends an answer in words; None if nothing does.
        stops: All tokens that end answers.
    """

    def __init__(self, template: ChatTemplate, stops: Sequence[str]) -> None:
        self._template = template
        self._seams: dict[_Shape, Seam | str] = {}
        self._shown: dict[Role, bool] = {}
        self.closer, self.stops = self._find_stops(stops)

    def at(
        self, reply: Message, first: Message, tools: Sequence[dict[str, Any]], ended: str | None
    ) -> Seam:
        """Return the seam between an answer and the first message after it.

        Raises:
            BridgeError: If the template shows none.
        """
        ended = ended if ended in self.stops else None
        calls = min(len(reply.tool_calls), _ALL)
        shape = _Shape(calls, first.role, first.name is not None, bool(tools), ended)
        if shape not in self._seams:
            try:
                self._seams[shape] = self._find(shape, tools)
            except BridgeError as error:
                self._seams[shape] = str(error)
        seam = self._seams[shape]
        if isinstance(seam, str):
            raise BridgeError(seam)
        return seam

    def bridge(
        self,
        reply: Message,
        new: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        ended: str | None,
    ) -> list[int]:
        """Return the tokens from behind an answer to where the next one begins.

        Args:
            reply: The answer; only the shape of its tool calls matters.
            new: The messages that came after it. Without any, the model's next turn is opened.
            tools: The tools on offer.
            ended: The last token that was sampled.

        Raises:
            BridgeError: If the template does not show where the answer ends, or refuses ``new``.
        """
        seam = self.at(reply, new[0] if new else Message("assistant"), tools, ended)
        if self._template.tools_only_lead:
            tools = ()
        marker, held = MARKER, repr((new, reply.tool_calls, tools))
        while marker in held:
            marker += "x"
        try:
            answer = _stand_in(self._named(reply), marker, seam.calls)
            messages = [Message("user", "-"), answer, *new]
            text = self._template.prompt_text(messages, tools, opens=not new)
        except Exception as error:  # jinja raises whatever the template's author chose
            raise _refused(error) from error
        text = self._template.with_images(text[_end_of(text, marker) :], new)
        if seam.token is None:
            return self._template.encode_after(text)
        start = text.find(seam.token)
        if start < 0:
            raise BridgeError(f"the template does not show {seam.token} behind the answer")
        # A special token is never merged with its neighbours, so encoding from it on gives the
        # same ids as encoding the whole; its id in front proves it.
        ids = self._template.encode(text[start:])
        if not ids or ids[0] != self._template.id(seam.token):
            raise BridgeError(f"the text after the answer does not begin with {seam.token}")
        return ids[1:] if seam.sampled else ids

    def _named(self, reply: Message) -> Message:
        calls = [
            ToolCall(call.id, self._template.defuse(call.name) or "unknown", "")
            for call in reply.tool_calls
        ]
        return Message("assistant", tool_calls=calls)

    def shows(self, role: Role) -> bool:
        """Return whether the template shows messages of a role, or raises; some drop them."""
        if role not in self._shown:
            self._shown[role] = self._shows(role)
        return self._shown[role]

    def _shows(self, role: Role) -> bool:
        message = _message(role, named=True)
        ways = (
            [[message, Message("user", "-")]]
            if role == "system"
            else [
                [Message("user", "-"), _stand_in(_answer(1), MARKER, calls), message]
                for calls in (1, 0)
            ]
        )
        dropped = False
        for way in ways:
            try:
                if _NEXT in self._template.text(way, ()):
                    return True
                dropped = True
            except Exception:
                continue
        return not dropped

    def _find_stops(self, stops: Sequence[str]) -> tuple[str | None, frozenset[str]]:
        """Return the token that ends an answer in words, and all that end answers."""
        eos = self._template.tokenizer.eos_token
        self.closer, self.stops = None, frozenset(filter(None, (*stops, eos)))
        self._final: str | None = None
        try:
            final = self._template.text([Message("user", "-"), Message("assistant", MARKER)], ())
            self._final = self._first_special(final[_end_of(final, MARKER) :])
        except Exception:
            pass
        head = _head(self._tail(_answer(0), 0, _message("user"), (), []))
        # What closes an earlier turn is not always what the model ends with (gpt-oss).
        inner = self._first_special(head)
        closer = eos if eos in self._template.atoms(head) else self._final or inner or eos
        return closer, frozenset(filter(None, (*self.stops, closer, self._call_end(inner, closer))))

    def _call_end(self, inner: str | None, closer: str | None) -> str | None:
        """Return the token with which the model ends an answer that calls a tool."""
        try:
            seam = self._find(_Shape(1, "tool", True, False, None), ())
        except BridgeError:
            return None
        end = seam.token or self._first_special(
            _head(self._tail(_answer(1), 0, _message("tool", named=True), (), []))
        )
        return None if end == inner != closer else end

    def _find(self, shape: _Shape, tools: Sequence[dict[str, Any]]) -> Seam:
        reply, first = _answer(shape.calls), _message(shape.role, named=shape.named)
        problems: list[BridgeError] = []
        called, calls = None, 0
        for calls in range(shape.calls, 0, -1):
            called = self._tail(reply, calls, first, tools, problems)
            if called is not None:
                break
        worded = self._tail(reply, 0, first, tools, problems)
        if worded is not None and (called is None or called.endswith(worded)):
            head = _head(worded)
            token = shape.ended if shape.ended in self._template.atoms(head) else None
            if token is None and shape.ended is not None and shape.ended == self._final:
                # Where the last answer ends with this token, earlier ones end with another.
                inner = self._first_special(head)
                token = inner if inner and head.startswith(inner) else None
            return Seam(0, token, sampled=token is not None)
        if called is None:
            raise problems[-1]
        head = _head(called)
        if shape.ended in self._template.atoms(head):
            return Seam(calls, shape.ended, sampled=True)
        token = self._first_of_environment(self._template.atoms(head), tools)
        if token is None:
            raise BridgeError("the template does not show where the tool calls end")
        return Seam(calls, token)

    def _first_of_environment(
        self, atoms: Sequence[str], tools: Sequence[dict[str, Any]]
    ) -> str | None:
        between = ""
        try:
            two = self._render(_stand_in(_answer(_ALL), MARKER, _ALL), [_message("user")], tools)
            between = two[two.find(MARKER) : two.rfind(MARKER)]
        except Exception:  # one call at a time has nothing between calls
            pass
        syntax = self._template.atoms(between)
        ends = (token for token in atoms if token in self.stops)
        foreign = (t for t in atoms if t in self._template.special and t not in syntax)
        return next(ends, None) or next(foreign, None)

    def _tail(
        self,
        reply: Message,
        calls: int,
        first: Message,
        tools: Sequence[dict[str, Any]],
        problems: list[BridgeError],
    ) -> str | None:
        """Render what follows the marker, or say in ``problems`` why it cannot be."""
        try:
            text = self._render(_stand_in(reply, MARKER, calls), [first], tools)
            tail = text[_end_of(text, MARKER) :]
        except BridgeError as error:
            problems.append(error)
            return None
        except Exception as error:  # jinja raises whatever the template's author chose
            problems.append(_refused(error))
            return None
        if _NEXT not in tail:
            problems.append(BridgeError(f"the template leaves out {first.role} messages"))
            return None
        return tail

    def _render(
        self, answer: Message, new: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> str:
        return self._template.text([Message("user", "-"), answer, *new], tools)

    def _first_special(self, text: str) -> str | None:
        tokens = (token for token in self._template.atoms(text) if token in self._template.special)
        return next(tokens, None)


def _head(tail: str | None) -> str:
    """Return the text between the marker and the next message."""
    return (tail or "").partition(_NEXT)[0]


def _refused(error: Exception) -> BridgeError:
    """Return the error to raise where the template refuses the closed conversation."""
    return BridgeError(f"the template refuses the closed conversation: {error}")


def _answer(calls: int) -> Message:
    return Message("assistant", tool_calls=[ToolCall(f"c{i}", "called", "") for i in range(calls)])


def _message(role: Role, *, named: bool = False) -> Message:
    if role != "tool":
        return Message(role, _NEXT)
    # Another name than the call's: a template that shows the call's needs the call to be there.
    return Message("tool", _NEXT, tool_call_id="c0", name="named" if named else None)


def _stand_in(reply: Message, marker: str, calls: int) -> Message:
    """Return an answer whose last words are the marker, or the arguments of its last call.

    Args:
        reply: The answer to stand in for.
        marker: The marker.
        calls: Number of its calls to show, see :class:`Seam`.
    """
    shown = [
        ToolCall(call.id, call.name, json.dumps({"x": marker}))
        for call in reply.tool_calls[: None if calls == _ALL else calls]
    ]
    return Message("assistant", "" if shown else marker, tool_calls=shown)


def _end_of(text: str, marker: str) -> int:
    """Return the index behind the last marker in a text.

    Raises:
        BridgeError: If there is none.
    """
    index = text.rfind(marker)
    if index < 0:
        raise BridgeError("the template does not show the last answer")
    return index + len(marker)
