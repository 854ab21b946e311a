"""A conversation that TRL ran, as a trace for vf-rl's rubrics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vf.environments.environment import Environment
from vf.traces.messages import Message, ToolCall, as_messages
from vf.traces.task import Task
from vf.traces.tools import ArgumentError
from vf.traces.trace import StopReason, ToolEvent, Trace, Turn


def as_trace(
    name: str,
    environment: Environment,
    task: Task,
    prompt: Sequence[Mapping[str, Any]],
    completion: Sequence[Mapping[str, Any]],
    tokens: int,
) -> Trace:
    """Return a finished conversation as a trace, without a score.

    The results of tool calls are those that the episode's tools recorded. A call that TRL answered
    itself, because there is no such tool, or did not carry out any more, is judged as in vf-rl.
    Tokens are known only where there is one turn; there are no branches.

    Args:
        name: The environment's name.
        environment: The episode's copy, whose tools were called.
        task: The task.
        prompt: The prompt's messages, in TRL's format.
        completion: The messages after the prompt.
        tokens: Tokens of the completion, tool messages included.
    """
    trace = Trace(name, task, seed=0)
    trace.messages = as_messages([{k: v for k, v in raw.items() if v} for raw in prompt])
    trace.prompt_messages = len(trace.messages)
    trace.tools = environment.toolbox.schemas()
    recorded = list(environment.tool_events)
    waiting: list[ToolCall] = []
    for raw in completion:
        message = _message(raw)
        if message.role == "assistant":
            turn = len(trace.turns)
            trace.turns.append(Turn(0, 0, "stop", 0.0))
            message.tool_calls = [
                _call(call, f"call_{turn}_{index}")
                for index, call in enumerate(raw.get("tool_calls") or ())
            ]
            waiting = list(message.tool_calls)
            trace.tool_events += [_event(environment, c, turn, recorded) for c in waiting]
        elif message.role == "tool":
            # TRL answers without ids, and those calls first that it answers itself.
            request = next((c for c in waiting if c.name == message.name), None)
            if request is not None:
                waiting.remove(request)
                message.tool_call_id = request.id
        trace.messages.append(message)
    if len(trace.turns) == 1:
        trace.turns[0].completion_tokens = tokens
    trace.step_rewards = [0.0] * len(trace.turns)
    unanswered = not trace.turns or bool(trace.messages[-1].tool_calls)
    if not unanswered:
        trace.stop_reason = StopReason.TERMINATED
    elif len(trace.turns) >= environment.max_turns:
        trace.stop_reason = StopReason.MAX_TURNS
    else:
        trace.stop_reason = StopReason.MAX_TOKENS
    return trace


def _message(raw: Mapping[str, Any]) -> Message:
    content = raw.get("content")
    text = content if isinstance(content, str) else json.dumps(content) if content else ""
    reasoning = raw.get("reasoning_content") or raw.get("thinking")
    return Message(raw["role"], text, reasoning=reasoning, name=raw.get("name"))


def _call(raw: Mapping[str, Any], id: str) -> ToolCall:
    function = raw.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(id, str(function.get("name", "")), text)


def _event(
    environment: Environment, call: ToolCall, turn: int, recorded: list[ToolEvent]
) -> ToolEvent:
    """Return the event of a call: the tools record events in the order of the calls."""
    carried_out = call.arguments.startswith("{")  # TRL itself refuses anything but an object
    if carried_out and recorded and recorded[0].name == call.name:
        event = recorded.pop(0)
        event.turn, event.call_id = turn, call.id
        return event
    event = ToolEvent(turn, call.id, call.name, "ok", "TRL did not carry it out")
    tool = environment.toolbox.tools.get(call.name)
    if tool is None:
        event.kind, event.detail = "unknown_tool", call.name
        return event
    try:
        tool.validate(call.arguments)
    except ArgumentError as error:
        event.kind, event.detail = error.fault, str(error)
    return event
