"""Process penalties on what a rollout wrote: repetition and format."""

from __future__ import annotations

import re
from typing import Literal

from vf.rubrics.penalties.patterns import Pattern
from vf.rubrics.penalties.reading import sampled_messages
from vf.rubrics.rubric import Penalty
from vf.runtime.errors import ConfigError
from vf.traces.trace import Trace

_WORD = re.compile(r"\w+|[^\w\s]")


def repetition(weight: float = 0.1, n: int = 4, free: float = 0.2) -> Penalty:
    """Word n-grams that occur again, in all that the model said and thought.

    Range: [0, 1]; 0 for a text of fewer than n words.

    Formula: max(0, rep − free) / (1 − free), with rep = 1 − distinct n-grams / n-grams. A word is
    a run of letters and digits, or one other character. N-grams do not cross messages.

    Source: seq-rep-n of Welleck et al. (arXiv:1908.04319); as a penalty in training, Yeo et al.
    (arXiv:2502.03373).

    Known ways to game it: paraphrase; vary a number. In writing without blanks a sentence is one
    word, so little is seen. A text that has to repeat (a table, code) is punished too: raise
    ``free`` there.

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
        for message in sampled_messages(trace):
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
    """Messages of the model that do not have the form asked for.

    Range: [0, 1]; 0 or 1 for the last message alone. 1 where the model never answered.

    Formula: messages that the pattern does not match as a whole / messages. ``.`` matches no
    newline unless the pattern begins with ``(?s)``.

    Source: the format reward of DeepSeek-R1 (arXiv:2501.12948), section 2.2.2, as a penalty.

    Known ways to game it: the form without the substance; the outcome decides what that is
    worth.

    Args:
        pattern: A regular expression in the syntax of the `regex` package. It is given a second
            per message; one that backtracks for ever is refused.
        weight: Share of the outcome that a penalty of 1 costs.
        messages: Whether the last message counts, or all of them.

    Raises:
        ConfigError: The pattern is no regular expression or backtracks for ever, or ``messages``
            is neither.
        RubricError: (when scoring) The pattern took too long.
    """
    compiled = Pattern(pattern, "bad_format")
    if messages not in ("last", "all"):
        raise ConfigError(f"bad_format: messages must be 'last' or 'all', got {messages!r}")

    def bad_format(trace: Trace) -> float:
        texts = [message.content for message in sampled_messages(trace)]
        texts = texts[-1:] if messages == "last" else texts
        if not texts:
            return 1.0
        return sum(not compiled.matches(text) for text in texts) / len(texts)

    return Penalty(bad_format, weight)
