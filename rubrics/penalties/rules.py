"""Rules that a rollout must keep: forbidden calls and unsafe content, as penalties or as gates.

A gate voids the rollout (its reward is 0), a penalty takes a share. Use a gate for what must never
happen, whatever it achieves.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from vf.rubrics.penalties.patterns import Pattern, compiled
from vf.rubrics.penalties.text import argument_texts, sampled_calls, sampled_text
from vf.rubrics.penalties.unread import no_such_tools, tool_names
from vf.rubrics.rubric import Penalty
from vf.rubrics.scorers import Part, Scorer, checked, name_of
from vf.runtime.calling import call as run
from vf.runtime.errors import ConfigError
from vf.traces.trace import Trace

Classifier = Callable[[str], float | Awaitable[float]]


def forbidden_calls(
    forbidden: Mapping[str, str | None], weight: float = 0.1, scale: int = 1
) -> Penalty:
    """Calls of forbidden tools, or with forbidden arguments, whether they succeeded or not.

    Range: [0, 1]; None in an environment that has none of these tools.

    Formula: min(1, forbidden calls / scale).

    Source: our own.

    Known ways to game it: arguments that a pattern does not anticipate (another spelling, a script
        written to a file first, an encoding). JSON escapes are decoded before matching. A pattern
        is not a sandbox.

    Args:
        forbidden: By tool name (``*`` and ``?`` are wildcards), the pattern that none of its
            arguments may hold; None forbids the tool itself.
        weight: Share of the outcome that a penalty of 1 costs.
        scale: Forbidden calls at which the penalty is 1.

    Raises:
        ConfigError: If nothing is forbidden, a pattern is no regular expression or backtracks
            forever, or ``scale`` is below 1.
    """
    rules = _Rules(forbidden, "forbidden_calls")
    if scale < 1:
        raise ConfigError(f"forbidden_calls: scale must be at least 1, got {scale}")

    def forbidden_calls(trace: Trace) -> float | None:
        if rules.idle(trace):
            return None
        return min(1.0, rules.broken(trace) / scale)

    return Penalty(forbidden_calls, weight)


def keeps_policy(forbidden: Mapping[str, str | None]) -> Scorer:
    """A gate: no forbidden tool was called, and no forbidden argument given.

    Range: True or False; None in an environment that has none of these tools.

    Formula: forbidden calls = 0, counted as by :func:`forbidden_calls`.

    Source: our own.

    Known ways to game it: those of :func:`forbidden_calls`.

    Args:
        forbidden: The rules of :func:`forbidden_calls`.

    Raises:
        ConfigError: If nothing is forbidden, or a pattern is no regular expression or backtracks
            forever.
    """
    rules = _Rules(forbidden, "keeps_policy")

    def keeps_policy(trace: Trace) -> bool | None:
        if rules.idle(trace):
            return None
        return rules.broken(trace) == 0

    return keeps_policy


def unsafe_content(unsafe: Classifier | Sequence[str] | str, weight: float = 0.1) -> Penalty:
    """How unsafe the model's output is: text, reasoning and the arguments of its calls.

    Range: [0, 1]; 0 where it wrote nothing.

    Formula: the classifier's value for the whole text; with patterns, 1 if one of them occurs.

    Source: yours: the classifier or the patterns. Nothing is bundled.

    Known ways to game it: a spelling, a language or an encoding that the classifier does not
    know. Patterns are for fixed strings (keys, names, slurs), not for meaning.

    Args:
        unsafe: A function of a text, sync or async, that returns how unsafe it is in [0, 1]; or
            one or several regular expressions, which ignore case.
        weight: Share of the outcome that a penalty of 1 costs.

    Raises:
        ConfigError: If there is no pattern, or one is no regular expression or backtracks forever.
        RubricError: (when scoring) The classifier failed.
    """
    judge = _classifier(unsafe, "unsafe_content")

    async def unsafe_content(trace: Trace) -> float:
        text = sampled_text(trace)
        return await judge(text) if text else 0.0

    return Penalty(unsafe_content, weight)


def safe_content(unsafe: Classifier | Sequence[str] | str, threshold: float = 0.5) -> Scorer:
    """A gate: what the model wrote is not unsafe.

    Range: True or False.

    Formula: :func:`unsafe_content` < threshold.

    Source: yours: the classifier or the patterns. Nothing is bundled.

    Known ways to game it: those of :func:`unsafe_content`.

    Args:
        unsafe: The classifier or patterns of :func:`unsafe_content`.
        threshold: From which value on it is unsafe, above 0 and at most 1.

    Raises:
        ConfigError: If the threshold is out of range, there is no pattern, or one is no regular
            expression or backtracks forever.
        RubricError: (when scoring) The classifier failed.
    """
    if not 0.0 < threshold <= 1.0:
        raise ConfigError(f"safe_content: threshold must be above 0 and at most 1, got {threshold}")
    judge = _classifier(unsafe, "safe_content")

    async def safe_content(trace: Trace) -> bool:
        text = sampled_text(trace)
        return not text or await judge(text) < threshold

    return safe_content


class _Rules:
    """Which calls are forbidden."""

    def __init__(self, forbidden: Mapping[str, str | None], owner: str) -> None:
        if not isinstance(forbidden, Mapping) or not forbidden:
            raise ConfigError(
                f"{owner}: name what is forbidden: a dict of tool name to a pattern, or to None"
            )
        self._owner = owner
        self._rules = [
            (tool, None if pattern is None else Pattern(pattern, owner))
            for tool, pattern in forbidden.items()
        ]

    def idle(self, trace: Trace) -> bool:
        """Return whether no rule is about a tool that there was, and warn if so."""
        names = [tool for tool, _ in self._rules]
        matched = any(fnmatchcase(name, tool) for name in tool_names(trace) for tool in names)
        return no_such_tools(trace, self._owner, names, matched)

    def broken(self, trace: Trace) -> int:
        """Return how many calls break a rule. A malformed call has no name, and never ran."""
        return sum(
            any(
                fnmatchcase(call.name, tool)
                and (pattern is None or any(map(pattern.found_in, argument_texts(call))))
                for tool, pattern in self._rules
            )
            for call in sampled_calls(trace)
            if call.malformed is None
        )


def _classifier(
    unsafe: Classifier | Sequence[str] | str, owner: str
) -> Callable[[str], Awaitable[float]]:
    if callable(unsafe):
        part = Part(f"{owner}: {name_of(unsafe)}", lambda trace: None)
        try:
            inspect.signature(unsafe).bind("")
        except TypeError:
            raise ConfigError(f"{name_of(unsafe)!r} must take one argument, a text") from None

        async def judge(text: str) -> float:
            return checked(await run(unsafe, text), part) or 0.0

        return judge
    patterns = compiled(unsafe, owner, ignore_case=True)

    async def search(text: str) -> float:
        return float(await run(_any_found, patterns, text))

    return search


def _any_found(patterns: Sequence[Pattern], text: str) -> bool:
    return any(pattern.found_in(text) for pattern in patterns)
