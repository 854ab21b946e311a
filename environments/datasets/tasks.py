"""Rows of data as tasks, in splits that share no problem.

def tasks(self, split):
    return vf.tasks_from("questions.jsonl", split, prompt="question", answer="answer")
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast, get_args

from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.rows import Placed, Row, Source, read_rows
from vf.runtime.seeding import derive_seed
from vf.traces.messages import as_messages
from vf.traces.task import Split, Task

Field: TypeAlias = str | Callable[[Row], Any]  # a field's name, or a function of the row
Sources: TypeAlias = Source | Mapping[str, Source]

_SPLITS: tuple[Split, ...] = get_args(Split)
_log = logging.getLogger("vf")


def tasks_from(
    source: Sources,
    split: Split,
    *,
    prompt: Field = "prompt",
    answer: Field | None = "answer",
    id: Field | None = None,
    info: Sequence[str] | Callable[[Row], Mapping[str, Any]] = (),
    eval_share: float = 0.1,
    keep_together: Field | None = None,
    shuffle: int | None = None,
    buffer: int = 10_000,
    limit: int | None = None,
    streaming: bool = False,
) -> Iterator[Task]:
    """Return the tasks of a split, made of rows of data.

    No problem is in both splits. From one source, a hash of the prompt decides for each row: a
    problem that is there twice is on one side, and rows added later move none. Where the source is
    a mapping, its ``train`` loses whatever its ``eval`` holds as well. In both, case and white
    space make no other problem.

    Example::

        def tasks(self, split):
            return vf.tasks_from(
                "hf:openai/gsm8k:main", split, prompt="question", answer=last_number, shuffle=0
            )

    Args:
        source: A file (``.jsonl``, ``.json``, ``.csv``, ``.tsv``, ``.parquet``), ``hf:NAME`` or a
            list of them; rows, a generator or a Hugging Face dataset; a function that returns
            rows; or ``{"train": ..., "eval": ...}`` with one of these for each. See
            :func:`~vf.runtime.rows.read_rows`.
        split: The split.
        prompt: The field with the prompt, text or chat messages; or a function of the row.
        answer: The same for the answer, anything that JSON can hold; None for no answer.
        id: The same for the id, a text or a whole number that no other row has. By default, and
            where a function returns None, a hash of the content; by default rows with the same
            content are one task.
        info: Fields that become ``Task.info``; or a function of the row that returns it.
        eval_share: Share of a single source that is held out as the eval split, above 0 and
            below 1.
        keep_together: Key of tasks that must not be in both splits, by default the prompt: say,
            the field with the document that several questions are about.
        shuffle: Seed of a random order; the source's own order by default.
        buffer: Number of rows that a shuffle holds; larger sources are shuffled in part.
        limit: Most tasks; for a source that is too large, or has no end.
        streaming: Read a Hugging Face dataset over the network as needed, not from its cache.

    Raises:
        ConfigError: If an argument is out of range, the source cannot be read, a row (named by
            file and line) lacks a field or holds the wrong thing in it, two have one id, or no
            row falls into the split.
    """
    if split not in _SPLITS:
        raise ConfigError(f"tasks_from: the split must be 'train' or 'eval', got {split!r}")
    if not 0 < eval_share < 1:
        raise ConfigError(f"tasks_from: eval_share must be above 0 and below 1, got {eval_share}")
    if buffer < 1 or (limit is not None and limit < 1):
        raise ConfigError("tasks_from: buffer and limit must be at least 1")
    fields = _Fields(prompt, answer, id, info if callable(info) else tuple(info), keep_together)
    if isinstance(source, Mapping):
        located = _given_split(source, split, fields, streaming)
    else:
        name = str(source) if isinstance(source, str | Path) else "the source"
        rows = read_rows(source, streaming=streaming)
        located = _hashed_split(name, rows, split, fields, eval_share)
    if shuffle is not None:
        located = shuffled(located, derive_seed(shuffle, "tasks", split), buffer)
    tasks = _distinct(located, named=id is not None)
    return tasks if limit is None else islice(tasks, limit)


@dataclass(frozen=True, slots=True)
class _Fields:
    prompt: Field
    answer: Field | None
    id: Field | None
    info: tuple[str, ...] | Callable[[Row], Mapping[str, Any]]
    keep_together: Field | None

    def task(self, where: str, row: Row) -> Task:
        prompt = _prompt(where, _get(where, row, self.prompt, "prompt"))
        answer = None
        if self.answer is not None:
            answer = _plain(where, "answer", _get(where, row, self.answer, "answer"))
        if callable(self.info):
            info = dict(_plain(where, "info", _get(where, row, self.info, "info")))
        else:
            info = {name: _plain(where, name, _get(where, row, name, "info")) for name in self.info}
        named = None if self.id is None else _get(where, row, self.id, "id")
        if named is not None:
            return Task(_id(where, named), prompt, answer, info)
        content = json.dumps([prompt, answer, info], sort_keys=True)
        return Task(
            hashlib.blake2b(content.encode(), digest_size=8).hexdigest(), prompt, answer, info
        )

    def problem(self, where: str, row: Row) -> str:
        """Return what must not be in both splits, as text."""
        if self.keep_together is None:
            prompt = _prompt(where, _get(where, row, self.prompt, "prompt"))
            return "\n".join(message.content for message in as_messages(prompt))
        value = _get(where, row, self.keep_together, "keep_together")
        value = _plain(where, "keep_together", value)
        return value if isinstance(value, str) else json.dumps(value)


def _hashed_split(
    name: str, rows: Iterable[Placed], split: Split, fields: _Fields, eval_share: float
) -> Iterator[tuple[str, Task]]:
    seen = taken = 0
    for where, row in rows:
        seen += 1
        if held_out(fields.problem(where, row), eval_share) == (split == "eval"):
            taken += 1
            yield where, fields.task(where, row)
    if not seen:
        raise ConfigError(
            f"tasks_from: {name} has no rows (a generator can be read only once; if that is it, "
            "give the function that makes it)"
        )
    if not taken:
        raise ConfigError(
            f"tasks_from: none of the {seen} rows of {name} falls into the {split} split with "
            f"eval_share = {eval_share:g}; give more rows, another share, or a source for each "
            "split, {'train': ..., 'eval': ...}"
        )


def _given_split(
    sources: Mapping[str, Source], split: Split, fields: _Fields, streaming: bool
) -> Iterator[tuple[str, Task]]:
    if not sources or not set(sources) <= set(_SPLITS):
        raise ConfigError(
            "tasks_from: a mapping of sources has the keys 'train' and 'eval', got "
            f"{', '.join(map(repr, sources)) or 'none'}"
        )

    def rows(name: Split) -> Iterable[Placed]:
        return read_rows(sources[name], streaming=streaming) if name in sources else ()

    held = {_digest(fields.problem(*row)) for row in rows("eval")} if split == "train" else set()
    shared = 0
    for where, row in rows(split):
        if _digest(fields.problem(where, row)) in held:
            shared += 1
        else:
            yield where, fields.task(where, row)
    if shared:
        _log.warning(
            "tasks_from: %d rows of the train split are left out: the eval split holds them too",
            shared,
        )


def _digest(problem: str) -> bytes:
    return hashlib.blake2b(same_problem(problem).encode(), digest_size=16).digest()


def _distinct(located: Iterable[tuple[str, Task]], *, named: bool) -> Iterator[Task]:
    sources: dict[str, str] = {}
    for where, task in located:
        if task.id not in sources:
            sources[task.id] = where
            yield task
        elif named:
            raise ConfigError(f"{where}: the id {task.id!r} is that of {sources[task.id]} as well")


def _get(where: str, row: Row, field: Field, role: str) -> Any:
    if callable(field):
        try:
            return field(row)
        except Exception as error:
            name = getattr(field, "__name__", "function")
            raise ConfigError(
                f"{where}: {role}={name} failed: {type(error).__name__}: {error}; the row has: "
                f"{_names(row)}"
            ) from error
    if row.get(field) is None:
        hint = did_you_mean(field, [str(name) for name in row if row[name] is not None])
        raise ConfigError(
            f"{where}: the field {field!r} ({role}) is missing.{hint} It has: {_names(row)}"
        )
    return row[field]


def _names(row: Row) -> str:
    return ", ".join(str(name) for name in row if row[name] is not None) or "nothing"


def _prompt(where: str, value: Any) -> str | list[dict[str, Any]]:
    try:
        messages = as_messages(value)
    except ConfigError as error:
        raise ConfigError(f"{where}: the prompt: {error}") from error
    if not any(message.content.strip() for message in messages):
        raise ConfigError(f"{where}: the prompt is empty")
    return cast("str | list[dict[str, Any]]", _plain(where, "prompt", value))


def _id(where: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: the id must be a text or a whole number, got {value!r}")
    return str(_plain(where, "id", value))


def _plain(where: str, name: str, value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: {name} is not what JSON can hold: {error}; name a function of the row that "
            "makes text or numbers of it"
        ) from error
    return value


Item = TypeVar("Item")
_SEEDS = 2**63  # derive_seed's range


def held_out(text: str, eval_share: float) -> bool:
    """Return whether what is known by this text belongs to the eval split.

    A pure function of the text, case, white space and Unicode's compatibility forms aside. So
    rows that say the same are on one side, adding rows moves none, and a larger share only moves
    rows out of the train split.

    Args:
        text: The text that must not be in both splits; usually the prompt.
        eval_share: Share of the eval split, in [0, 1].
    """
    return derive_seed("eval split", same_problem(text)) / _SEEDS < eval_share


def same_problem(text: str) -> str:
    """Return the text without what makes no other problem of it."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def shuffled(items: Iterable[Item], seed: int, buffer: int) -> Iterator[Item]:
    """Yield the items in a random order, holding no more than ``buffer`` of them.

    Whatever fits into the buffer is shuffled evenly (Fisher and Yates); of more, each item is
    drawn from the ``buffer`` that have been read and not yet yielded.

    Args:
        items: Read as they are needed.
        seed: The same seed gives the same order.
        buffer: Number of items to hold, at least 1.
    """
    rng = random.Random(seed)
    held: list[Item] = []
    for item in items:
        if len(held) < buffer:
            held.append(item)
            continue
        index = rng.randrange(buffer)
        drawn, held[index] = held[index], item
        yield drawn
    rng.shuffle(held)
    yield from held
