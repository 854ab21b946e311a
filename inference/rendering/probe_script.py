"""The conversations that a chat template is probed with, and what a model would sample in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from vf.inference.model import Conversation
from vf.inference.rendering.renderer import Renderer
from vf.traces.messages import Message, ToolCall


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One turn of a conversation.

    Attributes:
        answer: What the model answers.
        observed: The environment's messages that follow it.
        cut: Whether the answer is cut off before its stop token.
    """

    answer: Message
    observed: list[Message]
    cut: bool = False


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "forecast",
            "description": "Tell the weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
_CITIES = ("Oslo", "Lima")


def call(turn: int, cities: int = 1, reasoning: str | None = None) -> ScriptedTurn:
    """Return a turn that calls a tool, and the tool's answers."""
    calls = [
        ToolCall(f"call_{turn}_{number}", "forecast", json.dumps({"city": city}))
        for number, city in enumerate(_CITIES[:cities])
    ]
    results = [Message("tool", "rain", tool_call_id=call.id, name=call.name) for call in calls]
    return ScriptedTurn(Message("assistant", reasoning=reasoning, tool_calls=calls), results)


def words(text: str, reasoning: str | None = None, *, cut: bool = False) -> ScriptedTurn:
    """Return a turn in words, and a user's next question."""
    observed = [Message("user", "And what comes next?")]
    return ScriptedTurn(Message("assistant", text, reasoning), observed, cut)


CONVERSATIONS: dict[str, list[ScriptedTurn]] = {
    "plain": [words("It rains."), words("Then sun."), words("Then snow.")],
    "tools": [call(0), call(1), words("It rains."), call(3), words("It still rains.")],
    "parallel calls": [call(0, 2), call(1, 2), words("Both are wet.")],
    "reasoning": [
        words("It rains.", "They ask about today."),
        words("Then sun.", "It cannot rain for ever."),
        words("Snow.", "It is winter."),
    ],
    "reasoning and tools": [
        call(0, 1, "I should look."),
        call(1, 1, "Let me look again."),
        words("It rains.", "The tool says rain."),
        call(3, 1, "Once more."),
        words("It still rains.", "No change."),
    ],
    "truncated": [words("It", cut=True), words("Then it", cut=True), words("Snow.")],
}


def sampled_ids(
    renderer: Renderer, conversation: Conversation, turn: ScriptedTurn, prompt_ids: list[int]
) -> list[int]:
    """Return what a model that answers as the template renders answers would have sampled."""
    text, end = None, None
    # Where the template rewrites history for this answer, it is shown as the first one.
    histories = conversation.messages, conversation.messages[:1]
    for messages, observed in product(histories, ([], turn.observed)):
        shown = _shown_answer(renderer, messages, turn.answer, observed, conversation.tools)
        if shown is not None:
            text, end = text if text is not None else shown[0], end or shown[1]
        if text is not None and end is not None:
            break
    thinks = renderer.parser.reasoning_opener == "<think>"
    opened = thinks and renderer.opens_reasoning(prompt_ids)
    text = (text or "").removeprefix("<think>") if opened else text or ""
    text = _as_written(turn.answer, text, opened)
    if turn.cut:
        text = text[: text.rfind(turn.answer.content) + len(turn.answer.content)]
        return renderer.template.encode_after(text)
    end = end or renderer.template.token(renderer.closer_id)
    return renderer.template.encode_after(text + end)


def _shown_answer(
    renderer: Renderer,
    messages: Sequence[Message],
    answer: Message,
    observed: Sequence[Message],
    tools: Sequence[dict[str, Any]],
) -> tuple[str, str | None] | None:
    """Return how the template shows an answer, and the stop token behind it if it shows one."""
    template, opener = renderer.template, renderer.parser.reasoning_opener
    try:
        prompt = template.text(messages, tools)
        shown = template.text([*messages, answer, *observed], tools)
    except Exception:  # some templates insist on what comes last
        return None
    if not shown.startswith(prompt):
        prompt = prompt.rstrip().removesuffix(opener)
    if not shown.startswith(prompt):
        return None
    shown = shown[len(prompt) :]
    stops = [template.token(stop) for stop in renderer.stop_token_ids]
    ends = [(shown[:index], stop) for stop in stops if (index := shown.find(stop)) >= 0]
    return min(ends, key=lambda end: len(end[0]), default=(shown, None))


def _as_written(answer: Message, shown: str, opened: bool) -> str:
    """Return an answer as a model writes it, also what the template did not show of it."""
    cities = [str(json.loads(call.arguments)["city"]) for call in answer.tool_calls]
    if not all(piece in shown for piece in [answer.content, *cities]):
        calls = "".join(
            f'<tool_call>{{"name": "{call.name}", "arguments": {call.arguments}}}</tool_call>'
            for call in answer.tool_calls
        )
        shown = answer.content + calls
    thought = answer.reasoning or ""
    if thought in shown and ("</think>" in shown or not opened):
        return shown
    thought += "\n</think>\n\n"
    return ("" if opened else "<think>\n") + thought + shown.rpartition("</think>")[2].lstrip("\n")
