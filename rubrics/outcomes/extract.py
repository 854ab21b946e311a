"""Where the answer is in a message.

An extractor returns *all* the answers that a text states, in order. An outcome pays only if every
one of them is right, so it is the extractor's duty to overlook none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from vf.runtime.errors import ConfigError, RubricError
from vf.traces.tools import refuse_constant
from vf.traces.trace import Trace

Extract = Callable[[str], Sequence[str]]

MAX_ANSWERS = 16  # stated in one message; with more, none counts
MAX_LENGTH = 20_000  # characters of one answer; a longer one does not count
_BOX = "\\boxed"


def whole_message(text: str) -> list[str]:
    """Return the whole text, without surrounding whitespace, as the one answer; none if empty."""
    return [text.strip()] if text.strip() else []


def marked(marker: str = "Answer:", *, ignore_case: bool = False) -> Extract:
    """Return an extractor of whatever follows a marker, up to the next one or the end of line.

    Markdown's asterisks around an answer are taken off: ``**Answer:** 5`` states ``5``.

    Args:
        marker: The text that comes before an answer.
        ignore_case: Whether ``answer:`` is a marker as well.

    Raises:
        ConfigError: If the marker is blank.
    """
    if not isinstance(marker, str) or not marker.strip():
        raise ConfigError(f"marked: the marker must be a text such as 'Answer:', got {marker!r}")
    needle = marker.lower() if ignore_case else marker

    def marked(text: str) -> list[str]:
        searched = text.lower() if ignore_case else text
        if len(searched) != len(text):  # U+0130 gets longer: places would not be the text's own
            searched = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
        starts = _ends(searched, needle)
        ends = [*(start - len(marker) for start in starts[1:]), len(text)][: len(starts)]
        stated = []
        for start, end in zip(starts, ends, strict=True):
            line = text[start:end].lstrip(" \t*")
            line = line.split("\n", 1)[0] if line.strip() else ""
            stated.append(line.strip(" \t\r*"))
        return stated

    return marked


def boxed(text: str) -> list[str]:
    r"""Return the contents of every ``\boxed{...}`` with balanced braces, the outermost only.

    One that is never closed is an empty answer, so that it cannot hide behind a second.
    """
    stated, at = [], text.find(_BOX)
    while at != -1:
        start = at + len(_BOX)
        while start < len(text) and text[start] in " \t":
            start += 1
        end = closing_brace(text, start) if text[start : start + 1] == "{" else None
        if end is None:
            stated.append("")
            end = start
        else:
            stated.append(text[start + 1 : end].strip())
        at = text.find(_BOX, end)
    return stated


def json_text(text: str) -> list[str]:
    """Return the JSON that the message is, or else the text of its fenced code blocks."""
    stripped = text.strip()
    if "```" not in stripped:
        return whole_message(text)
    blocks = stripped.split("```")[1::2]
    if stripped.count("```") % 2:  # the last block was never closed
        blocks[-1:] = [""]
    return [_without_language(block).strip() for block in blocks]


def json_field(name: str = "answer") -> Extract:
    """Return an extractor of one field of the JSON object found by :func:`json_text`.

    A text is taken as it is, anything else as JSON. An object that is not valid JSON, lacks the
    field or names a key twice states the empty answer.

    Raises:
        ConfigError: If the name is not a text.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"json_field: the field's name must be a text, got {name!r}")

    def json_field(text: str) -> list[str]:
        return [_field(candidate, name) for candidate in json_text(text)]

    return json_field


def stated_answers(extract: Extract, trace: Trace) -> list[str]:
    """Return the answers of a trace's last message; none if there are too many or one is huge."""
    answers = list(extract(trace.reply))
    if len(answers) > MAX_ANSWERS or any(len(text) > MAX_LENGTH for text in answers):
        return []
    return answers


def checked_extract(extract: Extract, outcome: str) -> Extract:
    """Return an outcome's ``extract`` argument if it is an extractor.

    Raises:
        ConfigError: If it is something else.
    """
    if not callable(extract):
        raise ConfigError(
            f"{outcome}: extract must be a function from a text to its answers, such as "
            f"marked('Answer:'), boxed, json_field('answer') or whole_message; got {extract!r}"
        )
    factories: tuple[object, ...] = (marked, json_field)
    if extract in factories:
        raise ConfigError(
            f"{outcome}: extract={extract.__name__} must be called first: "
            f"extract={extract.__name__}(...)"
        )
    return extract


def wrong_answer(outcome: str, trace: Trace, expected: str) -> RubricError:
    """Return the error for a ``task.answer`` that an outcome cannot compare with."""
    answer = trace.task.answer
    shown = repr(answer) if len(repr(answer)) <= 80 else repr(answer)[:77] + "..."
    return RubricError(
        f"{outcome!r}: the answer of task {trace.task.id!r} is {shown} "
        f"({type(answer).__name__}); it must be {expected}"
    )


def read_json(text: str) -> Any:
    """Return a JSON value.

    Raises:
        ValueError: If the text is not JSON, names a key twice, or is nested too deeply.
    """
    try:
        return _JSON.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def every_one(answers: Sequence[str], right: Callable[[str], bool]) -> float:
    """Return 1 if there is an answer, and all that are stated are right; else 0."""
    return float(bool(answers) and all(map(right, answers)))


def _ends(text: str, marker: str) -> list[int]:
    """Return where the text continues after each marker."""
    ends, at = [], text.find(marker)
    while at != -1:
        ends.append(at + len(marker))
        at = text.find(marker, at + len(marker))
    return ends


def closing_brace(text: str, start: int) -> int | None:
    depth = 0
    for at in range(start, len(text)):
        if text[at] in "{}" and text[at - 1] != "\\":
            depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return at
    return None


def _without_language(block: str) -> str:
    first, newline, rest = block.partition("\n")
    return rest if newline and first.strip().isalnum() else block


def _field(text: str, name: str) -> str:
    try:
        value = read_json(text)
    except ValueError:
        return ""
    if not isinstance(value, dict) or name not in value:
        return ""
    field = value[name]
    return field if isinstance(field, str) else json.dumps(field)


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key is named twice")
    return mapping


_JSON = json.JSONDecoder(object_pairs_hook=_distinct_keys, parse_constant=refuse_constant)
