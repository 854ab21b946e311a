"""The parser protocol, and the parser for forms that write calls between markers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from vf.inference.parsing.build_calls import Unreadable, malformed
from vf.inference.parsing.values import Schemas, parameter_schemas
from vf.traces.messages import Message, ToolCall

Tools = Sequence[Mapping[str, Any]]

THINK = ("<think>", "</think>")


class Parser(Protocol):
    """Reads the answers of one model family.

    Attributes:
        family: The family's name.
        reasoning_opener: The text that opens reasoning. A prompt that ends with it has already
            opened the reasoning for the model.
        marks: Reasoning and calls begin with one of these characters; anything before the first
            of them is plain text.
    """

    @property
    def family(self) -> str: ...
    @property
    def reasoning_opener(self) -> str: ...
    @property
    def marks(self) -> str: ...

    def parse(
        self, text: str, *, id_prefix: str, in_reasoning: bool = False, tools: Tools = ()
    ) -> Message:
        """Parse one answer; never raises.

        Args:
            text: What the model wrote, without its stop token.
            id_prefix: Tool calls get the ids ``{id_prefix}_0``, ``{id_prefix}_1``, ...
            in_reasoning: Whether the prompt had already opened the reasoning.
            tools: The available tools, in OpenAI's format. Forms that write every value as bare
                text need them to tell the text ``5`` from the number.

        Returns:
            An assistant message. Reasoning that was never closed takes the whole text.
        """
        ...


@dataclass(frozen=True)
class MarkedParser:
    """Reads forms that write calls between markers, anywhere in the text.

    Args:
        family: The family's name.
        opener: Pattern of what opens a call or a list of calls; not part of the body.
        closer: The closing marker. Without one, a call ends where the next begins.
        read: Reads one body into calls (ids are set later), or raises ``Unreadable``.
        reasoning: The texts that open and close reasoning.
        marks: See :class:`Parser`.
        dressing: Pattern of other markup to remove from the text, such as the markers around a
            list of calls.
        may_stay_open: Whether the closing marker may be missing at the end of the answer.
    """

    family: str
    opener: str
    closer: str | None
    read: Callable[[str, Schemas], list[ToolCall]]
    reasoning: tuple[str, str] = THINK
    marks: str = "<"
    dressing: str | None = None
    may_stay_open: bool = False

    @property
    def reasoning_opener(self) -> str:
        """The text that opens reasoning."""
        return self.reasoning[0]

    def parse(
        self, text: str, *, id_prefix: str, in_reasoning: bool = False, tools: Tools = ()
    ) -> Message:
        """Parse one answer; see :meth:`Parser.parse`."""
        reasoning, text = split_reasoning(text, in_reasoning, *self.reasoning)
        content, calls = self.split(text, parameter_schemas(tools))
        return Message("assistant", content.strip(), reasoning, numbered(calls, id_prefix))

    def split(self, text: str, schemas: Schemas) -> tuple[str, list[ToolCall]]:
        """Return the text without its calls, and the calls."""
        calls = [
            call for match in self._region.finditer(text) for call in self._calls(match, schemas)
        ]
        content = self._region.sub("", text)
        return re.sub(self.dressing, "", content) if self.dressing else content, calls

    @cached_property
    def _region(self) -> re.Pattern[str]:
        closer = f"(?={self.opener})" if self.closer is None else re.escape(self.closer)
        return re.compile(rf"(?:{self.opener})(?P<body>.*?)(?P<closed>{closer}|\Z)", re.DOTALL)

    def _calls(self, match: re.Match[str], schemas: Schemas) -> list[ToolCall]:
        body = match["body"]
        if self.closer is not None and not match["closed"] and not self.may_stay_open:
            return [malformed(body, f"it was not closed with {self.closer}")]
        try:
            return self.read(body, schemas)
        except Unreadable as problem:
            return [malformed(body, str(problem))]


def numbered(calls: Sequence[ToolCall], id_prefix: str) -> list[ToolCall]:
    """Return the calls with their ids."""
    return [replace(call, id=f"{id_prefix}_{index}") for index, call in enumerate(calls)]


def split_reasoning(
    text: str, in_reasoning: bool, opener: str, closer: str
) -> tuple[str | None, str]:
    """Split an answer into its reasoning (None if there is none) and the rest.

    Args:
        text: The answer.
        in_reasoning: Whether the prompt had already opened the reasoning.
        opener: The opening tag. If both the prompt and the answer have it, it counts once.
        closer: The closing tag. Without it the reasoning takes the whole text.
    """
    body = text.lstrip()
    if body.startswith(opener):
        body = body[len(opener) :]
    elif not in_reasoning:
        return None, text
    reasoning, closed, rest = body.partition(closer)
    return reasoning.strip("\n"), rest if closed else ""
