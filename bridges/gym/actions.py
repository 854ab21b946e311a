"""A model's message as a Gymnasium action, which is text."""

from __future__ import annotations

import json
from typing import Any

from vf.inference.models.scripted_model import Line, as_reply
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message, ToolCall


def read_action(action: str, *, turn: int, tools: bool) -> Message:
    """Return the message that an action stands for.

    Without tools, the action is the model's text. With tools it is a JSON object, OpenAI's
    assistant message: ``content`` and ``tool_calls``, each call with its ``function`` of ``name``
    and ``arguments`` (JSON text, or an object). Both may be missing, as may a call's ``id``. Any
    other action becomes a malformed tool call, which the environment reports to the model.

    Args:
        action: The text.
        turn: Zero-based turn, for the ids of calls that have none.
        tools: Whether the environment has tools.
    """
    if not tools:
        return Message("assistant", action)
    try:
        raw = json.loads(action)
        if not isinstance(raw, dict):
            raise ValueError("it is not a JSON object with 'content' or 'tool_calls'")
        return _message(raw, turn)
    except (ValueError, RecursionError, ConfigError) as error:
        call = ToolCall(f"call_{turn}_0", "", action, malformed=f"the action: {error}")
        return Message("assistant", tool_calls=[call])


def as_action(line: Line, *, turn: int = 0) -> str:
    """Return a line of a script as the action of a tool environment.

    Example::

        env.step(as_action({"calculate": {"op": "+", "a": 1, "b": 2}}))
        env.step(as_action("Answer: 3"))

    Args:
        line: Text, a :class:`~vf.traces.messages.Message`, or ``{tool_name: arguments}``.
        turn: Zero-based turn, which the ids of the calls begin with.
    """
    return json.dumps(as_reply(line, turn).to_openai())


def _message(raw: dict[str, Any], turn: int) -> Message:
    unknown = raw.keys() - {"role", "content", "tool_calls", "reasoning_content", "reasoning"}
    if unknown:
        raise ValueError(f"it has no place for {min(unknown)!r}: 'content' and 'tool_calls' only")
    if raw.get("role", "assistant") != "assistant":
        raise ValueError(f"its role must be 'assistant', got {raw['role']!r}")
    calls = raw.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ValueError("its tool_calls are not a list")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
            function["arguments"] = json.dumps(function["arguments"])
    message = Message.from_openai({**raw, "role": "assistant"})
    for index, call in enumerate(message.tool_calls):
        call.id = call.id or f"call_{turn}_{index}"
    return message
