"""Forms that write a call's name, then its arguments as JSON, between markers.

    <|tool_calls_section_begin|>                                                   Kimi-K2
    <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
    <|tool_calls_section_end|>

    <｜tool▁calls▁begin｜>                                               DeepSeek-V3, R1
    <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
    ```json
    {...}
    ```<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>

    <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>       DeepSeek-V3.1

    [THINK]reasoning[/THINK]text
    [TOOL_CALLS] [{"name": "...", "arguments": {...}, "id": "..."}]     Mistral Small 3.1 and before
    [TOOL_CALLS]NAME[CALL_ID]id[ARGS]{...}                              later; the id may be missing

    <|channel>thought
    reasoning
    <channel|>text<|tool_call>call:NAME{key:<|"|>text<|"|>,n:5}<tool_call|>        Gemma 4

    <start_function_call>call:NAME{...}<end_function_call>                         FunctionGemma

Only the stop token closes Mistral's calls: what follows the marker has to be JSON to the end.
Gemma writes bare keys, and a token for each quote (FunctionGemma: ``<escape>``); its first
templates write None for null.

Sources: the chat templates of Kimi-K2, DeepSeek-V3, DeepSeek-R1, DeepSeek-V3.1,
Mistral-7B-Instruct-v0.3, Mistral Small 3.1 and 3.2, Ministral 3, Gemma 4 and FunctionGemma; the
tool-calling guide of Kimi-K2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from vf.inference.parsing.build_calls import Unreadable, call_from_text, calls_from_json
from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.values import Schemas
from vf.traces.messages import ToolCall

_KIMI_SEPARATOR = "<|tool_call_argument_begin|>"
_KIMI_ID = re.compile(r"\s*(?:functions\.)?(?P<name>\S+?)(?::\d+)?\s*")

_DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"
_FENCED = re.compile(r"\s*(?P<name>[^\s`{]+)\s*```(?:json)?(?P<arguments>.*)```\s*", re.DOTALL)

_MISTRAL = re.compile(
    r"\s*(?P<name>[^\s\[{\"',]+)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\]|(?=\{))(?P<arguments>.*)",
    re.DOTALL,
)

_GEMMA = re.compile(r"\s*call:\s*(?P<name>[^\s{]+)\s*(?P<arguments>\{.*\})\s*", re.DOTALL)
_PYTHON = {"None": "null", "True": "true", "False": "false"}


def _parted(body: str, separator: str) -> tuple[str, str]:
    before, divider, after = body.partition(separator)
    if not divider:
        raise Unreadable(f"it has no {separator}")
    return before, after


def _read_kimi(body: str, schemas: Schemas) -> list[ToolCall]:
    before, arguments = _parted(body, _KIMI_SEPARATOR)
    call_id = _KIMI_ID.fullmatch(before)
    if call_id is None or "<" in before:
        raise Unreadable(f"{before!r} is not of the form functions.NAME:INDEX")
    return [call_from_text(call_id["name"], arguments)]


def _read_deepseek(body: str, schemas: Schemas) -> list[ToolCall]:
    before, after = _parted(body, _DEEPSEEK_SEPARATOR)
    if fenced := _FENCED.fullmatch(after):
        return [call_from_text(fenced["name"], fenced["arguments"])]
    if len(before.split()) > 1 or "<" in before:
        raise Unreadable(f"{before!r} is not a name")
    return [call_from_text(before.strip(), after)]


def _read_mistral(body: str, schemas: Schemas) -> list[ToolCall]:
    if named := _MISTRAL.fullmatch(body):
        return [call_from_text(named["name"], named["arguments"])]
    return calls_from_json(body)


def _gemma_reader(quote: str) -> Callable[[str, Schemas], list[ToolCall]]:
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
        call = _GEMMA.fullmatch(body)
        if call is None:
            raise Unreadable("it is not of the form call:NAME{key:value}")
        return [call_from_text(call["name"], pieces.sub(as_json, call["arguments"]))]

    return read


# For Kimi and DeepSeek, a list that begins without a call is one call that cannot be read.
KIMI = MarkedParser(
    "kimi",
    r"<\|tool_call_begin\|>|<\|tool_calls_section_begin\|>(?!\s*<\|tool_call_begin\|>)",
    "<|tool_call_end|>",
    _read_kimi,
    dressing=r"<\|tool_calls_section_(?:begin|end)\|>",
)

DEEPSEEK = MarkedParser(
    "deepseek",
    r"<｜tool▁call▁begin｜>|<｜tool▁calls▁begin｜>(?!\s*<｜tool▁call▁begin｜>)",
    "<｜tool▁call▁end｜>",
    _read_deepseek,
    dressing="<｜tool▁calls▁(?:begin|end)｜>",
)

MISTRAL = MarkedParser(
    "mistral",
    r"\[TOOL_CALLS\]",
    None,
    _read_mistral,
    reasoning=("[THINK]", "[/THINK]"),
    marks="[",
)

GEMMA4 = MarkedParser(
    "gemma4",
    r"<\|tool_call>",
    "<tool_call|>",
    _gemma_reader('<|"|>'),
    reasoning=("<|channel>thought", "<channel|>"),
)

FUNCTION_GEMMA = MarkedParser(
    "functiongemma",
    "<start_function_call>",
    "<end_function_call>",
    _gemma_reader("<escape>"),
)
