"""Muse Glimmer's form: a row of messages by recipient, with a tag for each argument.

     to=self<|message|>reasoning<|eom|>
    <|start|>assistant to=NAME<|message|><atem:function_calls>
    <atem:invoke name="NAME">
    <atem:parameter name="KEY">value</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>
    <|start|>assistant to=user<|message|>text<|eot|>

Texts and scalars stand as they are, lists and objects as JSON.

Source: the chat template of Muse Glimmer.
"""

from __future__ import annotations

import re

from vf.inference.parsing.calls import malformed
from vf.inference.parsing.channels import split_parts
from vf.inference.parsing.parser import MarkedParser, Tools, numbered
from vf.inference.parsing.tagged import Tags
from vf.inference.parsing.values import parameter_schemas
from vf.traces.messages import Message, ToolCall

_CLOSER = re.compile(r"<\|(?:eom|eot)\|>")
_NOT_TOOLS = (None, "user")

_TAGS = Tags(
    head=re.compile(r'<atem:invoke name="(?P<name>[^"\n]+)">\s*'),
    key=re.compile(r'<atem:parameter name="(?P<key>[^"\n]+)">'),
    value_end=re.compile(r"</atem:parameter>\s*(?=<atem:parameter name=|\Z)"),
    tail=re.compile(""),
    shape='<atem:invoke name="NAME"><atem:parameter name="KEY">value</atem:parameter>',
)

_CALLS = MarkedParser(
    "muse-calls",
    re.compile(r"(?P<body><atem:invoke\b.*?)(?P<closed></atem:invoke>|\Z)", re.DOTALL),
    "</atem:invoke>",
    _TAGS.read,
    dressing=re.compile(r"</?atem:function_calls>"),
)


class MuseParser:
    """Reads messages by recipient; see :class:`vf.inference.parsing.Parser`."""

    family = "muse"
    reasoning_opener = "to=self<|message|>"
    marks = "<t"

    def parse(
        self, text: str, *, id_prefix: str, in_reasoning: bool = False, tools: Tools = ()
    ) -> Message:
        """Parse one answer; see :meth:`vf.inference.parsing.Parser.parse`."""
        if in_reasoning and not text.lstrip().startswith(self.reasoning_opener):
            text = self.reasoning_opener + text
        schemas = parameter_schemas(tools)
        reasoning: list[str] = []
        content: list[str] = []
        calls: list[ToolCall] = []
        for part in split_parts(text, _CLOSER):
            if part.recipient == "self":
                reasoning.append(part.body or "")
                continue
            said, found = _CALLS.split(part.body or "", schemas)
            if not found and part.recipient not in _NOT_TOOLS:
                found, said = [malformed(part.body or part.header, "it has no <atem:invoke>")], ""
            calls.extend(found)
            content.append(said)
        return Message(
            "assistant",
            "\n".join(content).strip(),
            "\n".join(reasoning).strip("\n") if reasoning else None,
            numbered(calls, id_prefix),
        )


MUSE = MuseParser()
