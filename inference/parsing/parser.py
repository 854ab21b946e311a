"""What a parser is, and the one for forms that write their calls between markers in the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vf.inference.parsing.calls import Unreadable, malformed
from vf.inference.parsing.reasoning import THINK, split_reasoning
from vf.inference.parsing.values import Schemas, parameter_schemas
from vf.traces.messages import Message, ToolCall

Tools = Sequence[Mapping[str, Any]]


class Parser(Protocol):
    """Reads the answers of one model family.

    Attributes:
        family: Its name.
        reasoning_opener: What opens the reasoning. A prompt that ends with it has opened it for
            the model.
        marks: Reasoning and calls begin with one of these characters; what comes before the first
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
            tools: The tools on offer, in OpenAI's format. Forms that write every value as bare
                text need them to tell the text ``5`` from the number.

        Returns:
            An assistant message. Reasoning that was never closed takes the whole text.
        """
        ...


@dataclass(frozen=True, slots=True)
class MarkedParser:
    """Reads forms whose calls stand between markers, anywhere in the text.

    Args:
        family: The family's name.
        region: Finds the calls: group ``body`` is what stands between the markers, group
            ``closed`` the closing marker, or empty if it is missing.
        closer: The closing marker, for the reason given when it is missing; None if the form
            has none.
        read: Reads one body into calls (their ids are set later), or raises ``Unreadable``.
        reasoning: What opens and what closes the reasoning.
        marks: See :class:`Parser`.
        dressing: What else is not part of the text, like the markers around a list of calls.
    """

    family: str
    region: re.Pattern[str]
    closer: str | None
    read: Callable[[str, Schemas], list[ToolCall]]
    reasoning: tuple[str, str] = THINK
    marks: str = "<"
    dressing: re.Pattern[str] | None = None

    @property
    def reasoning_opener(self) -> str:
        """What opens the reasoning."""
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
            call for match in self.region.finditer(text) for call in self._calls(match, schemas)
        ]
        content = self.region.sub("", text)
        return self.dressing.sub("", content) if self.dressing else content, calls

    def _calls(self, match: re.Match[str], schemas: Schemas) -> list[ToolCall]:
        body = match["body"]
        if self.closer is not None and not match["closed"]:
            return [malformed(body, f"it was not closed with {self.closer}")]
        try:
            return self.read(body, schemas)
        except Unreadable as problem:
            return [malformed(body, str(problem))]


def numbered(calls: Sequence[ToolCall], id_prefix: str) -> list[ToolCall]:
    """Return the calls with their ids."""
    return [replace(call, id=f"{id_prefix}_{index}") for index, call in enumerate(calls)]
