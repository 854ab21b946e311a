"""Regular expressions that cannot block a run.

A pattern that backtracks can take longer than the age of the universe on an unlucky text, and a
model that is trained against it will find that text. So patterns are the `regex` package's, which
gives up after a time and meanwhile lets other threads run (and knows many endless ones). Those that
run away on a repetition of their own characters are refused when they are made. A text on which
another one takes too long counts against the model that wrote it: as an error, it would be a way
to go unscored.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterable, Iterator

from vf.runtime.errors import ConfigError

TIMEOUT = 1.0  # seconds for one search
_PROBE_TIMEOUTS = (0.1, 0.3)  # seconds; the second, for other threads' time counts too
_SHORT = 64  # repetitions: an exponential pattern takes 2^64 steps
_LONG = 2000  # repetitions: a cubic pattern takes 8 billion steps, a quadratic one 4 million
_LITERALS = re.compile(r"[^\\\[\](){}|*+?.^$]+")


class Pattern:
    """A regular expression with a time limit; the syntax is that of the `regex` package.

    Args:
        pattern: The expression.
        owner: The name of the function that it belongs to, for the messages.
        ignore_case: Match letters of either case.

    Raises:
        ConfigError: If it is no regular expression, or backtracks forever.
    """

    def __init__(self, pattern: str, owner: str, *, ignore_case: bool = False) -> None:
        import regex  # loaded late: `import vf` stays light

        self._owner = owner
        self._text = pattern
        try:
            self._regex = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
        except (regex.error, TypeError) as error:
            raise ConfigError(
                f"{owner!r}: {pattern!r} is not a regular expression: {error}"
            ) from None
        self._probe()

    def found_in(self, text: str) -> bool:
        """Return whether the pattern occurs in a text; True and a warning if it takes too long."""
        return self._bounded(self._regex.search, text, too_long=True)

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches; False and a warning if it takes too long."""
        return self._bounded(self._regex.fullmatch, text, too_long=False)

    def _bounded(self, method: object, text: str, *, too_long: bool) -> bool:
        try:
            return method(text, timeout=TIMEOUT, concurrent=True) is not None  # type: ignore[operator]
        except TimeoutError:
            warnings.warn(
                f"{self._owner!r}: the pattern {self._text!r} took longer than {TIMEOUT:g} s on a "
                f"text of {len(text)} characters, which counts against the model. {_ADVICE}",
                stacklevel=3,
            )
            return too_long

    def _probe(self) -> None:
        for start, pump, count in _attacks(self._text):
            text = start + pump * count + "\0"
            for timeout in _PROBE_TIMEOUTS:
                try:
                    self._regex.search(text, timeout=timeout, concurrent=True)
                    self._regex.fullmatch(text, timeout=timeout, concurrent=True)
                    break
                except TimeoutError:
                    continue
            else:
                raise ConfigError(
                    f"{self._owner!r}: the pattern {self._text!r} backtracks: on "
                    f"{start + pump!r} with {pump!r} {count} times it takes longer than "
                    f"{_PROBE_TIMEOUTS[-1]:g} s. {_ADVICE}"
                )


_ADVICE = (
    "Do not repeat what itself repeats or can match the same text in two ways, as in (a+)+ or "
    "(a|aa)+; make the inner part possessive, as in (a++)+, or leave one repetition out"
)


def compiled(patterns: Iterable[str] | str, owner: str, *, ignore_case: bool) -> list[Pattern]:
    """Return patterns with a time limit; a single one may be given as it is.

    Raises:
        ConfigError: If one is no regular expression or backtracks forever, or there is none.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if not patterns:
        raise ConfigError(f"{owner!r}: there is no pattern")
    return [Pattern(pattern, owner, ignore_case=ignore_case) for pattern in patterns]


def _attacks(pattern: str) -> Iterator[tuple[str, str, int]]:
    """Yield how a text starts, what it repeats, and how often, to make the pattern backtrack."""
    words = _LITERALS.findall(pattern)
    escaped = re.findall(r"\\(\W)", pattern)
    characters = list(dict.fromkeys(itertools.chain("a0 ", *words, escaped)))
    pairs = ["".join(pair) for pair in itertools.permutations(characters[:6], 2)]
    pumps = [*characters[:12], *pairs, *words[:6]]
    for start in dict.fromkeys(["", *words[:3]]):
        for pump in pumps:
            yield start, pump, _SHORT
    for start in dict.fromkeys(["", *words[:1]]):
        for pump in characters[:6]:
            yield start, pump, _LONG
