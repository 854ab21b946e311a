"""The answer that was expected of a trace, and the one that its last reply states."""

from __future__ import annotations

import json
import re
from typing import Any

_SEARCHED = 20_000  # characters at the end of a reply

# Each is linear in the length of the text, whatever the text is.
_FORMS = (
    re.compile(r"answer:[ \t*]*([^\n]*)", re.IGNORECASE),
    re.compile(r"<answer>([^<]*)</answer>", re.IGNORECASE),
    re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}"),
    re.compile(r'"answer"\s*:\s*("(?:[^"\\]|\\.)*"|[^\s,}]+)'),
)


def expected_answer(answer: Any) -> str:
    """Return a task's answer as text: JSON if it is not text, and empty if there is none."""
    if answer is None or isinstance(answer, str):
        return answer or ""
    return json.dumps(answer, ensure_ascii=False, default=str)


def stated_answer(reply: str) -> str:
    r"""Return the last answer that a reply states in one of the usual forms; empty without one.

    The forms are ``Answer: 5``, ``\boxed{5}``, ``<answer>5</answer>`` and ``{"answer": 5}``. An
    environment may read replies otherwise: what counts is its reward.
    """
    matches = [match for form in _FORMS for match in form.finditer(reply[-_SEARCHED:])]
    if not matches:
        return ""
    stated: str = max(matches, key=lambda match: match.start())[1]
    return stated.strip().strip('*"').strip()
