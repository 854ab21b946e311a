"""Kimi-K2's form: the call's id, which holds the tool's name, and JSON, between markers.

    <think>reasoning</think>text<|tool_calls_section_begin|>
    <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
    <|tool_calls_section_end|>

Source: the chat template and the tool-calling guide of Kimi-K2.
"""

from __future__ import annotations

import re

from vf.inference.parsing.calls import Unreadable, call_from_text
from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.values import Schemas
from vf.traces.messages import ToolCall

_SEPARATOR = "<|tool_call_argument_begin|>"
_ID = re.compile(r"\s*(?:functions\.)?(?P<name>\S+?)(?::\d+)?\s*")


def _read(body: str, schemas: Schemas) -> list[ToolCall]:
    before, found, arguments = body.partition(_SEPARATOR)
    if not found:
        raise Unreadable(f"it has no {_SEPARATOR}")
    call_id = _ID.fullmatch(before)
    if call_id is None:
        raise Unreadable(f"{before!r} is not of the form functions.NAME:INDEX")
    return [call_from_text(call_id["name"], arguments)]


KIMI = MarkedParser(
    "kimi",
    # A section that begins without a call is one call that cannot be read.
    re.compile(
        r"(?:<\|tool_call_begin\|>|<\|tool_calls_section_begin\|>(?!\s*<\|tool_call_begin\|>))"
        r"(?P<body>.*?)(?P<closed><\|tool_call_end\|>|\Z)",
        re.DOTALL,
    ),
    "<|tool_call_end|>",
    _read,
    dressing=re.compile(r"<\|tool_calls_section_(?:begin|end)\|>"),
)
