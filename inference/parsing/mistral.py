"""Mistral's forms: a JSON list after a marker, or a marker before each call.

    [THINK]reasoning[/THINK]text
    [TOOL_CALLS] [{"name": "...", "arguments": {...}, "id": "..."}]   up to Mistral Small 3.1
    [TOOL_CALLS]NAME[CALL_ID]id[ARGS]{...}                            later; the id may be missing

Nothing closes a call but the stop token: what follows the marker has to be JSON to the end.

Source: the chat templates of Mistral-7B-Instruct-v0.3, Mistral Small 3.1 and 3.2, and Ministral 3.
"""

from __future__ import annotations

import re

from vf.inference.parsing.calls import call_from_text, calls_from_json
from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.values import Schemas
from vf.traces.messages import ToolCall

_NAMED = re.compile(
    r"\s*(?P<name>[^\s\[{]+)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?(?P<arguments>.*)", re.DOTALL
)


def _read(body: str, schemas: Schemas) -> list[ToolCall]:
    if named := _NAMED.fullmatch(body):
        return [call_from_text(named["name"], named["arguments"])]
    return calls_from_json(body)


MISTRAL = MarkedParser(
    "mistral",
    re.compile(r"\[TOOL_CALLS\](?P<body>.*?)(?P<closed>(?=\[TOOL_CALLS\])|\Z)", re.DOTALL),
    None,
    _read,
    reasoning=("[THINK]", "[/THINK]"),
    marks="[",
)
