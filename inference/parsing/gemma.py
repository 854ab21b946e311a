"""The form of Gemma 4 and FunctionGemma: JSON with bare keys and quotes that are tokens.

    <|channel>thought
    reasoning
    <channel|>text<|tool_call>call:NAME{key:<|"|>text<|"|>,n:5,list:[true,null]}<tool_call|>

The first templates of Gemma 4 write None for null.
FunctionGemma writes ``<start_function_call>call:NAME{...}<end_function_call>`` with ``<escape>``
for a quote, and does not reason.

Source: the chat templates of Gemma 4 and FunctionGemma.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from vf.inference.parsing.calls import Unreadable, call_from_text
from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.values import Schemas
from vf.traces.messages import ToolCall

_CALL = re.compile(r"\s*call:\s*(?P<name>[^\s{]+)\s*(?P<arguments>\{.*\})\s*", re.DOTALL)

_PYTHON = {"None": "null", "True": "true", "False": "false"}


def _reader(quote: str) -> Callable[[str, Schemas], list[ToolCall]]:
    pieces = re.compile(
        rf"{re.escape(quote)}(?P<text>.*?){re.escape(quote)}"
        r"|(?P<bare>[^{}\[\],:\s](?:[^{}\[\],:]*[^{}\[\],:\s])?)(?P<colon>\s*:)?",
        re.DOTALL,
    )

    def as_json(piece: re.Match[str]) -> str:
        if piece["text"] is not None:
            return json.dumps(piece["text"])
        bare = piece["bare"]
        return json.dumps(bare) + ":" if piece["colon"] else _PYTHON.get(bare, bare)

    def read(body: str, schemas: Schemas) -> list[ToolCall]:
        call = _CALL.fullmatch(body)
        if call is None:
            raise Unreadable("it is not of the form call:NAME{key:value}")
        return [call_from_text(call["name"], pieces.sub(as_json, call["arguments"]))]

    return read


GEMMA4 = MarkedParser(
    "gemma4",
    re.compile(r"<\|tool_call>(?P<body>.*?)(?P<closed><tool_call\|>|\Z)", re.DOTALL),
    "<tool_call|>",
    _reader('<|"|>'),
    reasoning=("<|channel>thought", "<channel|>"),
)

FUNCTION_GEMMA = MarkedParser(
    "functiongemma",
    re.compile(r"<start_function_call>(?P<body>.*?)(?P<closed><end_function_call>|\Z)", re.DOTALL),
    "<end_function_call>",
    _reader("<escape>"),
)
