"""A model that answers from a script, for testing environments and rubrics."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from vf.inference.model import Conversation, Reply, Sampling
from vf.runtime.errors import ModelError
from vf.traces.messages import Message, ToolCall

Line = str | Message | Mapping[str, Mapping[str, Any]]
Script = Iterable[Line] | Callable[[list[Message]], Line]
Turn = Line | Reply | Exception


class ScriptedModel:
    """Answers from a list, or from a function of the messages so far, sync or async.

    A line is text, a :class:`Message`, ``{tool_name: arguments}`` for tool calls, a whole
    :class:`Reply`, or an exception to raise. The script restarts for every rollout. One text, or
    one mapping, is a script of one turn.

    Args:
        script: The lines in their order, or the function.

    Example::

        model = vf.ScriptedModel([{"calculate": {"op": "+", "a": 1, "b": 2}}, "Answer: 3"])
        trace = await vf.rollout(vf.make("calculator"), task, model)

    Raises:
        ModelError: If the script is at its end (from ``respond``, as are the exceptions in it).
    """

    def __init__(
        self, script: Iterable[Turn] | Callable[[list[Message]], Turn | Awaitable[Turn]]
    ) -> None:
        if isinstance(script, str | Mapping):
            self._script: Any = [script]
        else:
            self._script = script if callable(script) else list(script)

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Return the next line of the script as an answer."""
        if callable(self._script):
            line = self._script(list(conversation.messages))
            line = await line if inspect.isawaitable(line) else line
        elif conversation.turn < len(self._script):
            line = self._script[conversation.turn]
        else:
            raise ModelError(f"the script has no line for turn {conversation.turn}")
        if isinstance(line, Exception):
            raise line
        return line if isinstance(line, Reply) else Reply(as_reply(line, conversation.turn))


def as_reply(line: Line, turn: int) -> Message:
    """Return a line of a script as the model's message of a turn."""
    if isinstance(line, Message):
        return line
    if isinstance(line, str):
        return Message("assistant", line)
    calls = [
        ToolCall(f"call_{turn}_{index}", name, json.dumps(arguments))
        for index, (name, arguments) in enumerate(line.items())
    ]
    return Message("assistant", tool_calls=calls)
