"""Forms whose answers are a row of messages, each with a header that names its recipient.

gpt-oss's form, harmony. The recipient may also stand before the channel; ``<|call|>`` and
``<|return|>`` are stop tokens, so a call is complete if its JSON is.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>
    {...}<|call|>
    <|start|>assistant<|channel|>final<|message|>text<|return|>

Muse Glimmer's form. Text and scalars stand as they are, lists and objects as JSON.

     to=self<|message|>reasoning<|eom|>
    <|start|>assistant to=NAME<|message|><atem:function_calls>
    <atem:invoke name="NAME">
    <atem:parameter name="KEY">value</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>
    <|start|>assistant to=user<|message|>text<|eot|>

Sources: OpenAI's guide to the harmony response format; the chat templates of gpt-oss and Muse
Glimmer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vf.inference.parsing.build_calls import Unreadable, call_from_text, malformed
from vf.inference.parsing.parser import MAX_TRIES, MarkedParser, Tools, numbered, readable
from vf.inference.parsing.tagged import invoke_tags
from vf.inference.parsing.values import Schemas, parameter_schemas
from vf.traces.messages import Message, ToolCall

_START, _BODY = "<|start|>", "<|message|>"
_RECIPIENT = re.compile(r"(?:^|[\s>])to=(?P<name>[^\s<]+)")


@dataclass(frozen=True, slots=True)
class Part:
    """One message of an answer.

    Attributes:
        header: What comes before the body; the prompt holds the beginning of the first one.
        body: The body; None if the answer ended within the header.
    """

    header: str
    body: str | None

    @property
    def recipient(self) -> str | None:
        """The recipient that the header names, if any."""
        match = _RECIPIENT.search(self.header)
        return match["name"] if match else None


@dataclass(frozen=True, slots=True)
class ChannelParser:
    """Reads rows of messages; see :class:`vf.inference.parsing.parser.Parser`.

    Args:
        family: The family's name.
        thinking: The beginning of an answer that opens its reasoning itself.
        reasoning_opener: See :class:`vf.inference.parsing.parser.Parser`.
        closer: Pattern of the tokens that end a message.
        thinks: Whether a message is reasoning.
        read: Returns the text of any other message (None if it has none) and its calls.
    """

    family: str
    thinking: str
    reasoning_opener: str
    closer: str
    thinks: Callable[[Part], bool]
    read: Callable[[Part, Schemas], tuple[str | None, list[ToolCall]]]
    marks: str = "<t"

    def parse(
        self, text: str, *, id_prefix: str, in_reasoning: bool = False, tools: Tools = ()
    ) -> Message:
        """Parse one answer; see :meth:`vf.inference.parsing.parser.Parser.parse`."""
        if in_reasoning and not text.lstrip().startswith(self.thinking):
            text = self.reasoning_opener + text
        schemas = parameter_schemas(tools)
        reasoning: list[str] = []
        content: list[str] = []
        calls: list[ToolCall] = []
        for part in self._parts(text, schemas):
            if self.thinks(part):
                reasoning.append(part.body or "")
                continue
            body, body_calls = self.read(part, schemas)
            content += [] if body is None else [body]
            calls += body_calls
        return Message(
            "assistant",
            "\n".join(content).strip(),
            "\n".join(reasoning).strip("\n") if reasoning else None,
            numbered(calls, id_prefix),
        )

    def _parts(self, text: str, schemas: Schemas) -> Iterator[Part]:
        """Yield the messages; text outside of all becomes one without a header."""
        at, mark, spare = 0, "", iter(range(MAX_TRIES))
        while True:
            if mark in ("", _START):
                part, end, mark = self._message(text, at, mark, schemas, spare)
            else:
                end, mark = next(self._ends(text, at))
                part = Part("", text[at:end])
            if part.header or (part.body or "").strip():
                yield part
            if not mark:
                return
            at = end + len(mark)

    def _message(
        self, text: str, at: int, opened: str, schemas: Schemas, spare: Iterator[int]
    ) -> tuple[Part, int, str]:
        """Return the message that begins here, where it ends, and the mark that ends it.

        A call's argument may hold such a mark itself, see :class:`MarkedParser`.
        """
        ends = self._ends(text, at)
        first, mark = next(ends)
        header, has_body, body = text[at:first].partition(_BODY)
        if not has_body:
            is_header = _is_header(header, after_start=opened == _START)
            return Part(header, None) if is_header else Part("", header), first, mark
        part = Part(header, body)
        if self.thinks(part) or self._is_readable(part, schemas):
            return part, first, mark
        for (end, later), _ in zip(ends, spare, strict=False):
            longer = Part(header, text[at + len(header) + len(_BODY) : end])
            if self._is_readable(longer, schemas):
                if self._holds_another(text[first:end], schemas, spare):
                    break
                return longer, end, later
        return part, first, mark

    def _ends(self, text: str, at: int) -> Iterator[tuple[int, str]]:
        marks = re.compile(f"{re.escape(_START)}|{self.closer}").finditer(text, at)
        yield from ((match.start(), match[0]) for match in marks)
        yield len(text), ""

    def _is_readable(self, part: Part, schemas: Schemas) -> bool:
        return readable(self.read(part, schemas)[1])

    def _holds_another(self, text: str, schemas: Schemas, spare: Iterator[int]) -> bool:
        for piece, _ in zip(text.split(_START)[1:], spare, strict=False):
            header, has_body, body = piece.partition(_BODY)
            calls = self.read(Part(header, body), schemas)[1] if has_body else []
            if calls and readable(calls):
                return True
        return False


def _is_header(text: str, *, after_start: bool) -> bool:
    begins = ("<|channel|>", "assistant") if after_start else ("<|channel|>",)
    return text.lstrip().startswith(begins) or _RECIPIENT.match(text) is not None


_ANALYSIS = "<|channel|>analysis"


def _calls_tool(part: Part) -> bool:
    return part.recipient not in (None, "assistant", "user", "all")


def _read_harmony(part: Part, schemas: Schemas) -> tuple[str | None, list[ToolCall]]:
    if not _calls_tool(part):
        return part.body, []
    if part.body is None:
        return None, [malformed(part.header, "it ends before its arguments")]
    try:
        name = (part.recipient or "").removeprefix("functions.")
        return None, [call_from_text(name, part.body)]
    except Unreadable as problem:
        return None, [malformed(part.body, str(problem))]


HARMONY = ChannelParser(
    "harmony",
    _ANALYSIS,
    f"{_ANALYSIS}{_BODY}",
    r"<\|(?:end|call|return)\|>",
    lambda part: part.body is not None and _ANALYSIS in part.header and not _calls_tool(part),
    _read_harmony,
)

_MUSE_CALLS = MarkedParser(
    "muse-calls",
    r"(?=<atem:invoke\b)",
    "</atem:invoke>",
    invoke_tags("atem:").read,
    dressing="</?atem:function_calls>",
)


def _read_muse(part: Part, schemas: Schemas) -> tuple[str | None, list[ToolCall]]:
    text, calls = _MUSE_CALLS.split(part.body or "", schemas)
    if not calls and part.recipient not in (None, "user"):
        return "", [malformed(part.body or part.header, "it has no <atem:invoke>")]
    return text, calls


MUSE = ChannelParser(
    "muse",
    f"to=self{_BODY}",
    f"to=self{_BODY}",
    r"<\|(?:eom|eot)\|>",
    lambda part: part.recipient == "self",
    _read_muse,
)
