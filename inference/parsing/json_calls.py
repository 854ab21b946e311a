"""Forms that write each call, or a list of calls, as one JSON object.

    <tool_call>{"name": "...", "arguments": {...}}</tool_call>                  Hermes, Qwen
    <|START_THINKING|>reasoning<|END_THINKING|>
    <|START_ACTION|>[{"tool_name": "...", "parameters": {...}}]<|END_ACTION|>   Command R7B, A
    Action: ```json
    [{"tool_name": "...", "parameters": {...}}]
    ```                                                                         Command R, R+
    <TOOLCALL>[{"name": "...", "arguments": {...}}]</TOOLCALL>                  Nemotron Nano v2
    <|tool_call|>[{"name": "...", "arguments": {...}}]<|/tool_call|>            Phi-4-mini
    functools[{"name": "...", "arguments": {...}}]                              Phi-4-mini
    <|tool_call|>[{"name": "...", "arguments": {...}}]                          Granite 3
    {"name": "...", "parameters": {...}}; {"name": "...", "parameters": {...}}  Llama 3.1 to 3.3

Cohere's models also write their answers to the user between markers, which are not part of the
text. Phi-4-mini uses either of its forms and closes the second with its stop token. Granite 3
closes nothing either, and puts its answer between tags when it reasons.

Llama's JSON may follow ``<|python_tag|>``. Without it, only an object that begins a line, has its
name first and holds parameters is a call: other JSON may be the answer itself.

Sources: the chat templates and model cards of these models, and Meta's prompt formats.
"""

from __future__ import annotations

import json
import re

from vf.inference.parsing.build_calls import (
    Unreadable,
    call_from_object,
    calls_from_json,
    decode,
    malformed,
)
from vf.inference.parsing.parser import THINK, MarkedParser, Tools, numbered, split_reasoning
from vf.inference.parsing.values import Schemas
from vf.traces.messages import Message, ToolCall


def _read_object(body: str, schemas: Schemas) -> list[ToolCall]:
    return [call_from_object(decode(body))]


def _read_list(body: str, schemas: Schemas) -> list[ToolCall]:
    return calls_from_json(body)


def _read_cohere(body: str, schemas: Schemas) -> list[ToolCall]:
    return calls_from_json(body, name="tool_name", arguments="parameters")


HERMES = MarkedParser("hermes", "<tool_call>", "</tool_call>", _read_object)

# Of tools that are listed in the prompt's text; some small models write a list between the tags.
TEXT_CALLS = MarkedParser("text", "<tool_call>", "</tool_call>", _read_list)

COHERE = MarkedParser(
    "cohere",
    r"<\|START_ACTION\|>",
    "<|END_ACTION|>",
    _read_cohere,
    reasoning=("<|START_THINKING|>", "<|END_THINKING|>"),
    dressing=r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>",
)

COMMAND_R = MarkedParser("command-r", r"Action:\s*```(?:json)?", "```", _read_cohere, marks="<A")

NEMOTRON_V2 = MarkedParser("nemotron-v2", "<TOOLCALL>", "</TOOLCALL>", _read_list)

PHI4 = MarkedParser(
    "phi4",
    r"<\|tool_call\|>|functools(?=\[)",
    "<|/tool_call|>",
    _read_list,
    marks="<f",
    may_stay_open=True,
)

GRANITE3 = MarkedParser("granite3", r"<\|tool_call\|>", None, _read_list, dressing=r"</?response>")

_START = re.compile(
    r"(?P<tag>(?:<\|python_tag\|>\s*)+)"
    r'|(?:^[ \t]*|;\s*)(?=\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:)',
    re.MULTILINE,
)
_SEPARATORS = "; \n"
_DECODER = json.JSONDecoder()


class LlamaParser:
    """Reads bare JSON calls; see :class:`vf.inference.parsing.parser.Parser`."""

    family = "llama3"
    reasoning_opener = THINK[0]
    marks = "<{"

    def parse(
        self, text: str, *, id_prefix: str, in_reasoning: bool = False, tools: Tools = ()
    ) -> Message:
        """Parse one answer; see :meth:`vf.inference.parsing.parser.Parser.parse`."""
        reasoning, text = split_reasoning(text, in_reasoning, *THINK)
        calls: list[ToolCall] = []
        pieces, at, copied = [], 0, 0
        while start := _START.search(text, at):
            call, at = _read_bare(text, start)
            if call is not None:
                calls.append(call)
                pieces.append(text[copied : start.start()])
                copied = at
        pieces.append(text[copied:])
        content = "".join(piece for piece in pieces if not calls or piece.strip(_SEPARATORS))
        return Message("assistant", content.strip(), reasoning, numbered(calls, id_prefix))


def _read_bare(text: str, start: re.Match[str]) -> tuple[ToolCall | None, int]:
    """Read the call that begins here (None if it is other JSON) and return where it ends."""
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
        return call_from_object(value, arguments="parameters"), end
    except Unreadable as problem:
        return malformed(text[start.end() : end], str(problem)), end


LLAMA3 = LlamaParser()
