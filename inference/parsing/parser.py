"""The parser protocol, and the parser for forms that write calls between markers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from vf.inference.parsing.build_calls import Unreadable, malformed
from vf.inference.parsing.values import Schemas, parameter_schemas
from vf.traces.messages import Message, ToolCall

Tools = Sequence[Mapping[str, Any]]

THINK = ("<think>", "</think>")
# How often, in one answer, a body is tried to end later than at its first closing marker.
MAX_TRIES = 256
_QUOTES = ("``", "''", '""')


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
            text: The model's answer without its stop token.
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
        calls: list[ToolCall] = []
        pieces, at, spare = [], 0, iter(range(MAX_TRIES))
        while opened := next(self._openers(text, at), None):
            pieces.append(text[at : opened.start()])
            region_calls, at = self._read_region(text, opened.end(), schemas, spare)
            calls += region_calls
        content = "".join([*pieces, text[at:]])
        return re.sub(self.dressing, "", content) if self.dressing else content, calls

    @cached_property
    def _opener(self) -> re.Pattern[str]:
        return re.compile(self.opener)

    @cached_property
    def _closer(self) -> re.Pattern[str]:
        """Pattern of the closing marker, or of an opener, which may have the same characters."""
        return re.compile(f"{self.opener}|(?P<closer>{re.escape(self.closer or '')})")

    def _openers(self, text: str, start: int, end: int | None = None) -> Iterator[re.Match[str]]:
        """Yield what opens calls; not what is only named, as in: I will write `<tool_call>`."""
        for opener in self._opener.finditer(text, start, len(text) if end is None else end):
            around = text[max(opener.start() - 1, 0) : opener.start()] + text[opener.end() :][:1]
            if around not in _QUOTES:
                yield opener

    def _read_region(
        self, text: str, start: int, schemas: Schemas, spare: Iterator[int]
    ) -> tuple[list[ToolCall], int]:
        """Return the calls whose body begins at ``start``, and where the text continues.

        An argument may hold the closing marker itself. So the body ends at the first marker up to
        which it can be read, or at the first of all if there is none.
        """
        ends = self._ends(text, start)
        first = next(ends)
        calls = self._calls(text, start, first, schemas)
        if readable(calls):
            return calls, first[1]
        closed = first[0] < first[1]
        if closed and (next_one := self._within(text, start, first[0], schemas, spare)):
            return [malformed(text[start:next_one], "another call begins in it")], next_one
        for (end, after), _ in zip(ends, spare, strict=False):
            if readable(self._read(text[start:end], schemas)):
                if self._holds_another(text, first[0], end, schemas, spare):
                    break
                return self._calls(text, start, (end, after), schemas), after
        return calls, first[1]

    def _ends(self, text: str, start: int) -> Iterator[tuple[int, int]]:
        """Yield where a body may end and the text continues: at a marker, or with the text.

        An opener ends a body too where nothing has to close it.
        """
        if self.closer is None:
            yield from ((match.start(),) * 2 for match in self._opener.finditer(text, start))
        else:
            for mark in self._closer.finditer(text, start):
                if mark["closer"]:
                    yield mark.start(), mark.end()
                elif self.may_stay_open:
                    yield mark.start(), mark.start()
        yield len(text), len(text)

    def _holds_another(
        self, text: str, start: int, end: int, schemas: Schemas, spare: Iterator[int]
    ) -> bool:
        """Return whether a body also holds the next call: then a broken one came before it."""
        return self._within(text, start, end, schemas, spare) is not None

    def _within(
        self, text: str, start: int, end: int, schemas: Schemas, spare: Iterator[int]
    ) -> int | None:
        """Return where a call begins that can be read up to the end; None if none does."""
        for opened, _ in zip(self._openers(text, start, end), spare, strict=False):
            calls = self._read(text[opened.end() : end], schemas)
            if calls and readable(calls):
                return opened.start()
        return None

    def _calls(
        self, text: str, start: int, end: tuple[int, int], schemas: Schemas
    ) -> list[ToolCall]:
        body = text[start : end[0]]
        if self.closer is not None and end[0] == end[1] and not self.may_stay_open:
            return [malformed(body, f"it was not closed with {self.closer}")]
        return self._read(body, schemas)

    def _read(self, body: str, schemas: Schemas) -> list[ToolCall]:
        try:
            return self.read(body, schemas)
        except Unreadable as problem:
            return [malformed(body, str(problem))]


def readable(calls: Sequence[ToolCall]) -> bool:
    """Return whether none of the calls is malformed."""
    return all(call.malformed is None for call in calls)


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
