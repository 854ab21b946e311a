"""Forms that write calls as Python does.

    <|tool_call_start|>[NAME(key='text', n=5, list=['a', True])]<|tool_call_end|>     LFM2
    <function_calls>NAME(key="text", n=5)                                             OLMo 3
    NAME(list=["a", true])</function_calls>

LFM2's template writes text between quotes without escaping it, objects as JSON and anything else
as Python does. So text ends at the first quote after which the call can continue. OLMo 3 writes
one call a line, with JSON values.

Sources: the chat templates of LFM2, LFM2.5 and OLMo 3.
"""

from __future__ import annotations

import json
import re
from typing import Any

from vf.inference.parsing.build_calls import Unreadable, call_from_values, decode, malformed
from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.values import Schemas
from vf.traces.messages import ToolCall

_NAME = r"[^\W\d][\w.\-]*"
_OPEN = re.compile(rf"\s*(?P<name>{_NAME})\(\s*")
_KEY = re.compile(rf"(?P<key>{_NAME})\s*=\s*")
_NEXT_ARGUMENT = re.compile(rf"\s*,\s*(?={_NAME}\s*=)")
_CLOSE = re.compile(rf"\s*(?:,\s*)?\)(?=\s*\Z|\s*,\s*{_NAME}\()")
_NEXT_CALL = re.compile(r"\s*,")
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\n": ""}
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_LITERAL = re.compile(rf"(?P<quoted>{_QUOTED})|\b(?P<word>True|False|None)\b", re.DOTALL)
_STRING = re.compile(_QUOTED, re.DOTALL)
_NESTING = re.compile(rf"{_QUOTED}|[\[\](){{}}]", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null"}


def _read_list(body: str, schemas: Schemas) -> list[ToolCall]:
    inner = body.strip()
    if not (inner.startswith("[") and inner.endswith("]")):
        raise Unreadable("it is not a list in [ ]")
    return _read_calls(inner[1:-1])


def _read_lines(body: str, schemas: Schemas) -> list[ToolCall]:
    return [call for line in body.split("\n") for call in _read_calls(line)]


def _read_calls(text: str) -> list[ToolCall]:
    """Read calls with commas between; the text after the last readable one is kept as malformed."""
    calls: list[ToolCall] = []
    at = 0
    while text[at:].strip():
        try:
            call, at = _read_call(text, at)
        except Unreadable as problem:
            return [*calls, malformed(text[at:], str(problem))]
        calls.append(call)
        following = _NEXT_CALL.match(text, at)
        at = following.end() if following else at
    return calls


def _read_call(text: str, at: int) -> tuple[ToolCall, int]:
    opened = _OPEN.match(text, at)
    if opened is None:
        raise Unreadable(f"{text[at : at + 40]!r} is not a call; write NAME(key=value)")
    arguments: dict[str, Any] = {}
    at = opened.end()
    while key := _KEY.match(text, at):
        if key["key"] in arguments:
            raise Unreadable(f"its argument {key['key']!r} is given twice")
        arguments[key["key"]], at = _read_value(text, key.end())
        following = _NEXT_ARGUMENT.match(text, at)
        at = following.end() if following else at
    closed = _CLOSE.match(text, at)
    if closed is None:
        raise Unreadable(f"{text[at : at + 40]!r} is not an argument; write key=value")
    return call_from_values(opened["name"], arguments), closed.end()


def _read_value(text: str, at: int) -> tuple[Any, int]:
    if text[at : at + 1] in ("'", '"'):
        return _read_text(text, at)
    end = _end_of_value(text, at)
    return decode(_LITERAL.sub(_as_json, text[at:end])), end


def _read_text(text: str, at: int) -> tuple[str, int]:
    whole = _STRING.match(text, at)
    if whole and _continues(text, whole.end()):
        return _unescape(whole[0][1:-1]), whole.end()
    end = text.find(text[at], at + 1)
    while end >= 0:
        if _continues(text, end + 1):
            return text[at + 1 : end], end + 1
        end = text.find(text[at], end + 1)
    raise Unreadable(f"the text {text[at : at + 40]!r} is not closed")


def _continues(text: str, at: int) -> bool:
    return bool(_NEXT_ARGUMENT.match(text, at) or _CLOSE.match(text, at))


def _end_of_value(text: str, at: int) -> int:
    """Return the index of the comma or bracket that ends a value without quotes."""
    depth = 0
    while at < len(text):
        token = _NESTING.match(text, at)
        if token is None:
            if text[at] in "'\"":  # no later quote of its kind is closed: a search is quadratic
                raise Unreadable(f"the text {text[at : at + 40]!r} is not closed")
            if text[at] == "," and not depth:
                return at
            at += 1
            continue
        if token[0] in "[({":
            depth += 1
        elif token[0] in "])}":
            if not depth:
                return at
            depth -= 1
        at = token.end()
    raise Unreadable("it is not closed with )")


def _as_json(literal: re.Match[str]) -> str:
    if literal["word"]:
        return _WORDS[literal["word"]]
    return json.dumps(_unescape(literal["quoted"][1:-1]))


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(escape: re.Match[str]) -> str:
    code = escape[0][1:]
    if len(code) > 1:
        return chr(int(code[1:], 16)) if int(code[1:], 16) < 0x110000 else escape[0]
    return _CONTROL.get(code, code if code in "'\"\\" else escape[0])


LFM2 = MarkedParser("lfm2", r"<\|tool_call_start\|>", "<|tool_call_end|>", _read_list)

OLMO3 = MarkedParser("olmo3", "<function_calls>", "</function_calls>", _read_lines)
