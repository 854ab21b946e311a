"""Tools in plain text, for a model whose chat template does not show them (``tool_style``).

The system prompt lists the tools and the form of a call. A call is in the answer's text, and the
results come back in a user's message, so only roles that every chat template knows are used. The
form is the one that Hermes 2 Pro introduced and Qwen's templates use, which small models have seen
most:

    <tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 2}}
    </tool_call>

    <tool_response>
    3
    </tool_response>

:data:`vf.inference.parsing.json_calls.TEXT_CALLS` reads such calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vf.traces.messages import Message, ToolCall

_LISTING = """\
# Tools

You can call functions. Each line between <tools> and </tools> describes one:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and arguments between <tool_call> and \
</tool_call>, once for each call:
<tool_call>
{{"name": "<function name>", "arguments": {{"<argument>": <value>}}}}
</tool_call>
Each result comes back between <tool_response> and </tool_response>."""


def in_text(
    messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, system_role: bool = True
) -> list[Message]:
    """Return a conversation in which tools, calls and results are text.

    Args:
        messages: The conversation; it is not changed.
        tools: The tools on offer, in OpenAI's format. They are listed at the end of the system
            prompt, which is added if there is none.
        system_role: Whether there can be a system prompt. If not, the tools are listed before the
            first user message.
    """
    shown: list[Message] = []
    for index, message in enumerate(messages):
        if message.role != "tool":
            shown.append(_answer(message) if message.tool_calls else message)
            continue
        result = ["<tool_response>\n", *message.parts, "\n</tool_response>"]
        if index and messages[index - 1].role == "tool":  # the results of one turn are one message
            shown[-1] = Message.of("user", [*shown[-1].parts, "\n", *result])
        else:
            shown.append(Message.of("user", result))
    return _introduced(shown, tools, system_role) if tools else shown


def _answer(message: Message) -> Message:
    calls = (f"<tool_call>\n{_call(call)}\n</tool_call>" for call in message.tool_calls)
    parts = [message.content, *calls]
    return replace(message, content="\n".join(filter(None, parts)), tool_calls=[])


def _call(call: ToolCall) -> str:
    if call.malformed is not None:
        return call.arguments
    name, arguments = json.dumps(call.name, ensure_ascii=False), call.arguments or "{}"
    return f'{{"name": {name}, "arguments": {arguments}}}'


def _introduced(
    messages: list[Message], tools: Sequence[dict[str, Any]], system_role: bool
) -> list[Message]:
    """Return the messages with the tools listed in the first of them that can hold the list."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    listing = _LISTING.format(tools=lines)
    first = messages[0] if messages else None
    if first is not None and first.role == "system":
        return [Message("system", f"{first.content}\n\n{listing}"), *messages[1:]]
    if not system_role and first is not None and first.role == "user":
        return [Message.of("user", [f"{listing}\n\n", *first.parts]), *messages[1:]]
    return [Message("system", listing), *messages]
