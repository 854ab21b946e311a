"""Reasoning that stands between two tags at the start of an answer."""

from __future__ import annotations

THINK = ("<think>", "</think>")


def split_reasoning(
    text: str, in_reasoning: bool, opener: str, closer: str
) -> tuple[str | None, str]:
    """Split an answer into its reasoning (None if there is none) and the rest.

    Args:
        text: The answer.
        in_reasoning: Whether the prompt had already opened the reasoning.
        opener: The opening tag; where the prompt and the answer both have it, it counts once.
        closer: The closing tag. Without it the reasoning takes the whole text.
    """
    body = text.lstrip()
    if body.startswith(opener):
        body = body[len(opener) :]
    elif not in_reasoning:
        return None, text
    reasoning, closed, rest = body.partition(closer)
    return reasoning.strip("\n"), rest if closed else ""
