"""The model's own text and calls, read from a trace, and penalties on its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from vf.rubrics.penalties.patterns import Pattern
from vf.rubrics.rubric import Penalty
from vf.runtime.errors import ConfigError
from vf.traces.messages import ToolCall
from vf.traces.trace import Trace

_WORD = re.compile(r"\w+|[^\w\s]")


def sampled_calls(trace: Trace) -> list[ToolCall]:
    """Return every tool call of the model, malformed ones included, in order."""
    return [call for message in trace.answers for call in message.tool_calls]


def sampled_text(trace: Trace) -> str:
    """Return all that the model wrote: reasoning, text and the arguments of its calls."""
    parts: list[str] = []
    for message in trace.answers:
        parts += [message.reasoning or "", message.content]
        parts += [text for call in message.tool_calls for text in argument_texts(call)]
    return "\n".join(part for part in parts if part)


def argument_texts(call: ToolCall) -> list[str]:
    """Return a call's arguments as written, and every text in them with its escapes undone."""
    return [call.arguments, *_texts(_decoded(call))]


def same_call(call: ToolCall) -> tuple[str, str]:
    """Return a key that two calls share if they are the same.

    The order of the arguments and the spaces between them do not matter.
    """
    decoded = _decoded(call)
    if decoded is None:
        return call.name, call.arguments
    return call.name, json.dumps(decoded, sort_keys=True)


def repetition(weight: float = 0.1, n: int = 4, free: float = 0.2) -> Penalty:
    """Word n-grams that occur again, in the model's text and reasoning.

    Range: [0, 1]; 0 for a text of fewer than n words.

    Formula: max(0, rep − free) / (1 − free), with rep = 1 − distinct n-grams / n-grams. A word is
    a run of letters and digits, or one other character. N-grams do not cross messages.

    Source: seq-rep-n of Welleck et al. (arXiv:1908.04319); as a penalty in training, Yeo et al.
    (arXiv:2502.03373).

    Known ways to game it: paraphrasing; varying a number. In a script without spaces a sentence is
        one word, so little is found. A text that has to repeat (a table, code) is punished too:
        raise ``free`` in that case.

    Args:
        weight: Share of the outcome that a penalty of 1 costs.
        n: Words in an n-gram.
        free: The share of repeated n-grams that costs nothing, at least 0 and below 1.

    Raises:
        ConfigError: ``n`` is below 1, or ``free`` out of range.
    """
    if n < 1:
        raise ConfigError(f"repetition: n must be at least 1, got {n}")
    if not 0.0 <= free < 1.0:
        raise ConfigError(f"repetition: free must be at least 0 and below 1, got {free}")

    def repetition(trace: Trace) -> float:
        grams: list[tuple[str, ...]] = []
        for message in trace.answers:
            for text in (message.reasoning, message.content):
                words = _WORD.findall(text) if text else []
                grams += zip(*(words[start:] for start in range(n)), strict=False)
        if not grams:
            return 0.0
        repeated = 1.0 - len(set(grams)) / len(grams)
        return max(0.0, repeated - free) / (1.0 - free)

    return Penalty(repetition, weight)


def bad_format(
    pattern: str, weight: float = 0.1, messages: Literal["last", "all"] = "last"
) -> Penalty:
    """Messages of the model that do not have the required form.

    Range: [0, 1]; 0 or 1 for the last message alone. 1 where the model never answered.

    Formula: messages that the pattern does not match as a whole / messages. ``.`` matches no
    newline unless the pattern begins with ``(?s)``.

    Source: the format reward of DeepSeek-R1 (arXiv:2501.12948), section 2.2.2, as a penalty.

    Known ways to game it: the form without the substance; the outcome decides its value.

    Args:
        pattern: A regular expression in the syntax of the `regex` package. It is given a second
            per message; one that backtracks forever is refused.
        weight: Share of the outcome that a penalty of 1 costs.
        messages: Whether the last message counts, or all of them.

    Raises:
        ConfigError: If the pattern is no regular expression or backtracks forever, or ``messages``
            is neither.
    """
    compiled = Pattern(pattern, "bad_format")
    if messages not in ("last", "all"):
        raise ConfigError(f"bad_format: messages must be 'last' or 'all', got {messages!r}")

    def bad_format(trace: Trace) -> float:
        texts = [message.content for message in trace.answers]
        texts = texts[-1:] if messages == "last" else texts
        if not texts:
            return 1.0
        return sum(not compiled.matches(text) for text in texts) / len(texts)

    return Penalty(bad_format, weight)


def _decoded(call: ToolCall) -> Any:
    try:
        return json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from _texts(member)
    elif isinstance(value, list):
        for member in value:
            yield from _texts(member)
