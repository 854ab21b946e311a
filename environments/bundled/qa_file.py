"""Question files: JSONL with ``id``, ``question`` and ``golden_answers`` in each line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.rows import Row, json_rows

FIELDS = ("id", "question", "golden_answers")


@dataclass(frozen=True, slots=True)
class Item:
    """One question of a file and the answers that are right, at least one."""

    id: str
    question: str
    golden_answers: tuple[str, ...]


def read_questions(path: str | Path) -> list[Item]:
    """Read a file of questions; empty lines are skipped.

    Each line is a JSON object with ``id`` (a text or a whole number, unique in the file),
    ``question`` (a text) and ``golden_answers`` (a text or a list of texts). Other fields are
    ignored.

    Raises:
        ConfigError: If the file cannot be read, is empty, or a line is wrong; the message names
            line and field.
    """
    source = Path(path).expanduser()
    items: list[Item] = []
    locations: dict[str, str] = {}
    for where, row in json_rows(source):
        item = _item(row, where)
        if item.id in locations:
            raise ConfigError(
                f"{where}: the id {item.id!r} is that of {locations[item.id]} as well"
            )
        locations[item.id] = where
        items.append(item)
    if not items:
        raise ConfigError(f"{source} holds no questions")
    return items


def _item(raw: Row, where: str) -> Item:
    for name in FIELDS:
        if name not in raw:
            hint = did_you_mean(name, [key for key in raw if key not in FIELDS])
            raise ConfigError(f"{where}: the field {name!r} is missing.{hint}")
    return Item(
        id=_id(raw["id"], where),
        question=_text(raw["question"], f"{where}: the field 'question'"),
        golden_answers=_answers(raw["golden_answers"], f"{where}: the field 'golden_answers'"),
    )


def _id(value: Any, where: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(value, f"{where}: the field 'id'")


def _answers(value: Any, where: str) -> tuple[str, ...]:
    answers = [value] if isinstance(value, str) else value
    if not isinstance(answers, list) or not answers:
        raise ConfigError(f"{where} must be a text or a list of texts, got {value!r}")
    return tuple(_text(answer, where) for answer in answers)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where} must be a text that is not empty, got {value!r}")
    return value
