"""Built-in process penalties: how a task was solved, from 0 (faultless) to 1.

Each is a factory that returns a :class:`~vf.rubrics.rubric.Penalty`, for ``Rubric(penalties=...)``.
They are computed from typed events and token counts, or from the text that the model itself wrote.
``keeps_policy`` and ``safe_content`` are gates, for ``Rubric(gates=...)``.

    Rubric(outcome=numeric(), penalties=[extra_tool_calls(0.2, free=3), tool_errors(0.1)])
"""

from vf.rubrics.penalties.effort import (
    code_timeouts,
    extra_tool_calls,
    extra_turns,
    repeated_calls,
    tool_cost,
    tool_errors,
    verbosity,
)
from vf.rubrics.penalties.rules import (
    forbidden_calls,
    keeps_policy,
    safe_content,
    unsafe_content,
)
from vf.rubrics.penalties.search import opened_nothing, repeated_queries, without_evidence
from vf.rubrics.penalties.text import bad_format, repetition

__all__ = [
    "bad_format",
    "code_timeouts",
    "extra_tool_calls",
    "extra_turns",
    "forbidden_calls",
    "keeps_policy",
    "opened_nothing",
    "repeated_calls",
    "repeated_queries",
    "repetition",
    "safe_content",
    "tool_cost",
    "tool_errors",
    "unsafe_content",
    "verbosity",
    "without_evidence",
]
