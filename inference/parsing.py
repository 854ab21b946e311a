"""Reading a model's answer: reasoning, text and tool calls in the Hermes/Qwen JSON form.

    <think>reasoning</think>text<tool_call>{"name": "...", "arguments": {...}}</tool_call>

The parser never raises and never drops a call: one that cannot be read becomes a
:class:`ToolCall` with ``malformed`` set, which the environment reports back to the model.
"""

from __future__ import annotations

import json
import re

from vf.traces.messages import Message, ToolCall

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


def parse_hermes(text: str, *, id_prefix: str, in_reasoning: bool = False) -> Message:
    """Parse one answer.

    Args:
        text: What the model wrote, without its stop token.
        id_prefix: Tool calls get the ids ``{id_prefix}_0``, ``{id_prefix}_1``, ...
        in_reasoning: Whether the prompt had already opened ``<think>``.

    Returns:
        An assistant message. Reasoning that was never closed takes the whole text.
    """
    reasoning, text = _split_reasoning(text, in_reasoning)
    calls = [
        _parse_call(match, f"{id_prefix}_{index}")
        for index, match in enumerate(_CALL.finditer(text))
    ]
    return Message("assistant", _CALL.sub("", text).strip(), reasoning, calls)


def _split_reasoning(text: str, in_reasoning: bool) -> tuple[str | None, str]:
    body = text.lstrip()
    if body.startswith(_THINK_OPEN):
        body = body[len(_THINK_OPEN) :]
    elif not in_reasoning:
        return None, text
    reasoning, closed, rest = body.partition(_THINK_CLOSE)
    return reasoning.strip("\n"), rest if closed else ""


def _parse_call(match: re.Match[str], call_id: str) -> ToolCall:
    raw, closed = match.group(1).strip(), bool(match.group(2))

    def malformed(reason: str) -> ToolCall:
        return ToolCall(call_id, "", raw, malformed=reason)

    if not closed:
        return malformed("it was not closed with </tool_call>")
    try:
        call = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return malformed(f"it is not valid JSON: {error}")
    if not isinstance(call, dict):
        return malformed("it is not a JSON object")
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not name:
        return malformed("it has no 'name'")
    # Some templates have the arguments as a JSON string; both forms mean the same.
    try:
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        f"{name}{written}".encode()  # JSON can spell half characters, which no file can hold
    except (ValueError, RecursionError) as error:
        return malformed(f"it cannot be written down again: {error}")
    return ToolCall(call_id, name, written)
