"""Traces as lines of OpenAI's fine-tuning format for chat models, and lines of it as traces.

The format is that of the API's ``FineTuneChatRequestInput``: ``messages`` and ``tools``, where an
assistant message of ``weight`` 0 is not learned from. Beyond it, messages may have
``reasoning_content``, as the chat APIs of vLLM and others do, and the line has ``metadata``.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from vf.runtime.errors import ConfigError
from vf.traces.messages import as_messages
from vf.traces.task import Task
from vf.traces.trace import Lineage, Score, StopReason, Trace

UNLEARNED = "unlearned"  # in the info of a trace that was read: which messages have weight 0


def chat_lines(trace: Trace, *, bare: bool = False) -> list[dict[str, Any]]:
    """Return a trace as lines of the format, one for each conversation.

    An answer that the model did not give in it (an example in the prompt, one of the conversation
    that it repeats), and one with a call that could not be parsed, has weight 0. So each answer is
    learned from once.

    Args:
        trace: The trace.
        bare: Leave out what the format does not know: ``metadata``, ``reasoning_content`` and the
            names in tools' messages.
    """
    return [
        _line(trace, number, lineage, bare) for number, lineage in enumerate(trace.conversations)
    ]


def _line(trace: Trace, number: int, lineage: Lineage, bare: bool) -> dict[str, Any]:
    messages, turn_of = [], lineage.turn_of
    for index, message in enumerate(lineage.messages):
        raw = message.to_openai()
        if message.role == "assistant" and (
            index in trace.info.get(UNLEARNED, ())
            or index not in turn_of
            or any(call.malformed for call in message.tool_calls)
        ):
            raw["weight"] = 0
        if bare:
            raw.pop("reasoning_content", None)
            raw.pop("name", None)
        messages.append(raw)
    line: dict[str, Any] = {"messages": messages}
    if lineage.tools:
        line["tools"] = lineage.tools
    return line if bare else line | {"metadata": _metadata(trace, number, lineage)}


def read_chat(raw: Any, number: int) -> Trace | None:
    """Return the trace that a line of the format holds, marked with ``info["foreign"]``.

    A line that says nothing of a reward has no score. One that says null, or a value that is not a
    number in [0, 1], has a score without a reward.

    Args:
        raw: The line, decoded.
        number: Its number in the file, which names its task if nothing else does.

    Returns:
        The trace, or None if the line is not of the format.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("messages"), list):
        return None
    about = raw["metadata"] if isinstance(raw.get("metadata"), dict) else raw
    stop, score = about.get("stop_reason"), None
    if "reward" in about:
        reward = about["reward"]
        score = Score(float(reward) if _is_reward(reward) else None, None)
    try:
        messages = as_messages(raw["messages"])
        weights = [entry.get("weight", 1) for entry in raw["messages"]]
        unlearned = [index for index, weight in enumerate(weights) if weight == 0]
        trace = Trace(
            environment=str(about.get("environment", "")),
            task=Task(id=str(about.get("task", raw.get("id", f"line {number}"))), prompt=""),
            seed=0,
            messages=messages,
            tools=raw.get("tools") or [],
            score=score,
            stop_reason=StopReason(stop) if stop in list(StopReason) else None,
            info={"foreign": True} | ({UNLEARNED: unlearned} if unlearned else {}),
        )
        return trace.copy()  # so that everything in it has its type
    except (ConfigError, ValueError, TypeError):
        return None


def _is_reward(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _metadata(trace: Trace, number: int, lineage: Lineage) -> dict[str, Any]:
    about: dict[str, Any] = {
        "id": trace.id,
        "environment": trace.environment,
        "task": trace.task.id,
        "reward": trace.reward,
        "stop_reason": trace.stop_reason,
    }
    if trace.error is not None:
        about["error"] = f"{trace.error.boundary}: {trace.error.message}"
    if len(trace.conversations) > 1:
        about |= {"conversation": number, "of": len(trace.conversations), "parent": lineage.parent}
    if forks := [fork for fork in trace.forks if fork.turn in lineage.turns]:
        about["forks"] = [f"turn {fork.turn}: {fork.reason}" for fork in forks]
    return about
