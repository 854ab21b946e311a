"""The fields of a chat request that a provider does not take, or takes by another name."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

log = logging.getLogger(__name__)

RequestFields = Mapping[str, str | Literal[False]]

_REFUSES = re.compile(
    r"(not|n't) (currently )?(be )?(support|permit|allow|accept|availab|implement)|unsupported|"
    r"unknown|unrecognized|unexpected|deprecated|only the default|extra_forbidden|"
    r"cannot (both )?be (used|set|specified)|additional properties|cannot find field|"
    r"no such (parameter|field)|invalid (parameter|argument)",
    re.IGNORECASE,
)
# The values that leave an answer as it is without the field.
_NEUTRAL: dict[str, Any] = {"top_p": 1.0, "temperature": 1.0}
# What asks for no other answers, and what is said where it is left out.
_HARMLESS = {
    "seed": "; answers are not reproducible",
    "parallel_tool_calls": "",
}
_LENGTHS = ("max_tokens", "max_completion_tokens")
_TOO_MANY = re.compile(
    r"too (large|many|high|big)|at most|maximum|exceed|less than|(larger|greater) than|range",
    re.IGNORECASE,
)


@cache
def _warn(text: str) -> None:
    """Say something once, however many models of this process find it out."""
    log.warning("%s", text)


def refuses(words: str) -> bool:
    """Return whether an API says that it does not take something that was sent."""
    return _REFUSES.search(words) is not None


class Fields:
    """Knows which fields an API takes: by a setting, and by what it has refused.

    Args:
        who: The model's name, for the notes.
        given: By a field's name, the name to send it by, or False to leave it out.

    Attributes:
        notes: What was found out, in words.
    """

    def __init__(self, who: str, given: RequestFields) -> None:
        self._who = who
        self._given = frozenset(given)
        self._names: dict[str, str | Literal[False]] = dict(given)
        self.notes: list[str] = []

    def applied(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields as the API takes them."""
        named = ((self._names.get(name, name), value) for name, value in fields.items())
        return {name: value for name, value in named if name}

    def learn(self, words: str, fields: Mapping[str, Any], sent: Mapping[str, Any]) -> bool:
        """Return whether a refused request can be repeated, with other fields.

        Args:
            words: The API's own words.
            fields: The fields of the request.
            sent: The same as they were sent.
        """
        if self.applied(fields) != sent:  # another request has learned it in the meantime
            return True
        for name in self._refused(words, fields):
            value = fields[name]
            if name in self._given:
                continue
            if name == "max_tokens" and self._names.get(name, name) == name:
                self._note(name, _LENGTHS[1], "is sent as max_completion_tokens")
                return True
            if name in _NEUTRAL and value == _NEUTRAL[name]:
                self._note(name, False, f"is left out: {value:g} is the usual value")
                return True
            if name in _HARMLESS:
                self._note(name, False, f"is left out{_HARMLESS[name]}")
                return True
        return False

    def advice(self, words: str, fields: Mapping[str, Any]) -> str:
        """Return what to do about fields that were refused and mean something; or ``""``."""
        refused = [name for name in self._refused(words, fields) if name not in self._given]
        if not refused:
            most = fields.get("max_tokens")
            named = most is not None and any(name in words for name in _LENGTHS)
            too_many = named and _TOO_MANY.search(words)
            return f". max_tokens = {most} was sent: lower it (--max-tokens)" if too_many else ""
        name = refused[0]
        value = "" if name == "max_tokens" else f" = {fields[name]!r}"  # a test request has few
        return (
            f". Without {name}{value} the answers would be sampled differently: change it, or "
            f"leave it out with request_fields = {{ {name} = false }}"
        )

    def _refused(self, words: str, fields: Mapping[str, Any]) -> list[str]:
        """Return the fields that a refusal names; those first that are easiest to leave out."""
        if not refuses(words):
            return []
        order = ("max_tokens", "parallel_tool_calls", "seed", "top_p", "temperature")
        names = [*(name for name in order if name in fields), *fields]
        return [name for name in dict.fromkeys(names) if self._names_it(words, name)]

    def _names_it(self, words: str, name: str) -> bool:
        sent = self._names.get(name, name)
        if not sent:
            return False
        if "_" in sent or sent == "temperature":
            return re.search(rf"(?<!\w){sent}(?!\w)", words) is not None
        # A plain word, such as stop, may mean something else.
        before = r"[\"'`\[.]|(supplied|field|parameter|argument|property|name)s?:? "
        after = r"[\"'`\].:]|\b (is|are|parameter|does|with|and|cannot)"
        return re.search(rf"({before}){sent}\b|\b{sent}({after})", words) is not None

    def _note(self, name: str, to: str | Literal[False], what: str) -> None:
        self._names[name] = to
        self.note(f"{self._who}: the API does not take {name}, which {what}")

    def note(self, text: str) -> None:
        """Say what was found out, once."""
        if text not in self.notes:
            self.notes.append(text)
            _warn(text)
