"""Llama 3.1 to 3.3's form: bare JSON, with nothing around it.

    {"name": "...", "parameters": {...}}; {"name": "...", "parameters": {...}}

``<|python_tag|>`` may stand before it. Without it, only an object that begins a line, with its name
first, and that holds parameters is a call: other JSON may be the answer itself.

Source: the chat templates of Llama 3.1 and 3.2, and Meta's prompt formats for them.
"""

from __future__ import annotations

import json
import re

from vf.inference.parsing.calls import Unreadable, call_from_object, malformed
from vf.inference.parsing.parser import Tools, numbered
from vf.inference.parsing.reasoning import THINK, split_reasoning
from vf.traces.messages import Message, ToolCall

_START = re.compile(
    r"(?P<tag><\|python_tag\|>)\s*"
    r'|(?:^[ \t]*|;\s*)(?=\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:)',
    re.MULTILINE,
)
_SEPARATORS = "; \n"
_DECODER = json.JSONDecoder()


class LlamaParser:
    """Reads bare JSON calls; see :class:`vf.inference.parsing.Parser`."""

    family = "llama3"
    reasoning_opener = THINK[0]
    marks = "<{"

    def parse(
        self, text: str, *, id_prefix: str, in_reasoning: bool = False, tools: Tools = ()
    ) -> Message:
        """Parse one answer; see :meth:`vf.inference.parsing.Parser.parse`."""
        reasoning, text = split_reasoning(text, in_reasoning, *THINK)
        calls: list[ToolCall] = []
        pieces, at, told = [], 0, 0
        while start := _START.search(text, at):
            call, at = _read(text, start)
            if call is not None:
                calls.append(call)
                pieces.append(text[told : start.start()])
                told = at
        pieces.append(text[told:])
        content = "".join(piece for piece in pieces if not calls or piece.strip(_SEPARATORS))
        return Message("assistant", content.strip(), reasoning, numbered(calls, id_prefix))


def _read(text: str, start: re.Match[str]) -> tuple[ToolCall | None, int]:
    """Read the call that begins here, None if it is other JSON; return where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, start.end())
    except (ValueError, RecursionError) as error:
        following = _START.search(text, start.end() + 1)
        end = following.start() if following else len(text)
        return malformed(text[start.end() : end], f"it is not valid JSON: {error}"), end
    held = value.keys() & {"parameters", "arguments"} if isinstance(value, dict) else set()
    if not held and not start["tag"]:
        return None, end
    try:
        return call_from_object(value, arguments=min(held, default="parameters")), end
    except Unreadable as problem:
        return malformed(text[start.end() : end], str(problem)), end


LLAMA3 = LlamaParser()
