"""gpt-oss's form, harmony: a row of messages in channels.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>
    {...}<|call|>
    <|start|>assistant<|channel|>final<|message|>text<|return|>

The recipient may also stand before the channel. ``<|call|>`` and ``<|return|>`` are stop tokens, so
that a call is whole if its JSON is.

Source: OpenAI's guide to the harmony response format, and gpt-oss's chat template.
"""

from __future__ import annotations

import re

from vf.inference.parsing.calls import Unreadable, call_from_text, malformed
from vf.inference.parsing.channels import Part, split_parts
from vf.inference.parsing.parser import Tools, numbered
from vf.traces.messages import Message, ToolCall

_CLOSER = re.compile(r"<\|(?:end|call|return)\|>")
_ANALYSIS = "<|channel|>analysis"
_NOT_TOOLS = (None, "assistant", "user", "all")


class HarmonyParser:
    """Reads messages in channels; see :class:`vf.inference.parsing.Parser`."""

    family = "harmony"
    reasoning_opener = "<|channel|>analysis<|message|>"
    marks = "<t"

    def parse(
        self, text: str, *, id_prefix: str, in_reasoning: bool = False, tools: Tools = ()
    ) -> Message:
        """Parse one answer; see :meth:`vf.inference.parsing.Parser.parse`."""
        if in_reasoning and not text.lstrip().startswith(_ANALYSIS):
            text = self.reasoning_opener + text
        reasoning: list[str] = []
        content: list[str] = []
        calls: list[ToolCall] = []
        for part in split_parts(text, _CLOSER):
            if part.recipient not in _NOT_TOOLS:
                calls.append(_read(part))
            elif part.body is not None:
                (reasoning if _ANALYSIS in part.header else content).append(part.body)
        return Message(
            "assistant",
            "\n".join(content).strip(),
            "\n".join(reasoning).strip("\n") if reasoning else None,
            numbered(calls, id_prefix),
        )


def _read(part: Part) -> ToolCall:
    if part.body is None:
        return malformed(part.header, "it ends before its arguments")
    name = (part.recipient or "").removeprefix("functions.")
    try:
        return call_from_text(name, part.body)
    except Unreadable as problem:
        return malformed(part.body, str(problem))


HARMONY = HarmonyParser()
