"""Where documents come from: files, a Hugging Face dataset, or anything iterable.

All are read as a stream. An error in a row names its place: file and line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from vf.runtime.errors import ConfigError
from vf.runtime.rows import Progress, read_files
from vf.tools.search.contract import Document
from vf.tools.search.text_files import TextFiles

Source: TypeAlias = str | Path | Sequence[str | Path] | Iterable[Document | Mapping[str, Any]]

LONGEST_ID = 512  # bytes
_IDS = ("id", "_id", "docid", "doc_id")
_TEXTS = ("text", "contents", "content", "body")


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a row hold what. None takes the usual names.

    Attributes:
        id: By default ``id``, ``_id``, ``docid`` or ``doc_id``.
        title: By default ``title``; a row need not have it.
        text: By default ``text``, ``contents``, ``content`` or ``body``. Without a title, text of
            the form ``"Title"``, newline, passage (as Search-R1's corpora) is taken apart.
    """

    id: str | None = None
    title: str | None = None
    text: str | None = None


USUAL = Fields()


class Documents(Progress):
    """The documents of a source, and how far it has been read.

    Args:
        source: A folder with files of text or rows; a file of text, ending in ``.md``,
            ``.markdown``, ``.rst``, ``.txt``, ``.html``, ``.htm`` or ``.xhtml``, which is one
            document; a file of rows, ending in ``.jsonl``, ``.ndjson``, ``.json``, ``.csv`` or
            ``.tsv`` (each also with ``.gz``) or ``.parquet``; ``hf:NAME``, ``hf:NAME:CONFIG`` or
            ``hf:NAME@SPLIT`` for a Hugging Face dataset, streamed; a list of these; or an iterable
            of documents or mappings, such as a loaded dataset.
        fields: The fields of a row that hold id, title and text.

    Raises:
        ConfigError: If the source cannot be read, or a row (named by its place) is wrong.
    """

    def __init__(self, source: Source, fields: Fields = USUAL) -> None:
        super().__init__()
        self.fields = fields
        if isinstance(source, Path | str):
            source = [source]
        self._rows: Iterator[tuple[str, object]]
        self._files = TextFiles()
        if isinstance(source, list | tuple) and all(isinstance(it, Path | str) for it in source):
            self._files = TextFiles.among([str(it) for it in source])
            rows = read_files(self._files.others, streaming=True, progress=self)
            self._rows = chain(self._files.read(self), rows)
        else:
            self.total = len(source) if isinstance(source, Sized) else None
            self._rows = self._numbered(source)

    def __iter__(self) -> Iterator[tuple[str, Document]]:
        """Yield where each document stands, and the document."""
        return ((where, _document(where, row, self.fields)) for where, row in self._rows)

    @property
    def left_out(self) -> str:
        """Which files held no document, and why, as far as they have been read; may be empty."""
        return self._files.summary()

    def _numbered(self, rows: Iterable[object]) -> Iterator[tuple[str, object]]:
        for row in rows:
            self.done += 1
            yield f"document {self.done}", row


def _document(where: str, row: object, fields: Fields) -> Document:
    if isinstance(row, Document):
        row = {"id": row.id, "title": row.title, "text": row.text}
        fields = USUAL
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: expected an object with fields, got {type(row).__name__}")
    text = _field(where, row, "text", fields.text, _TEXTS)
    if fields.title is None and row.get("title") is None:
        title, text = split_contents(text)
    else:
        title = _field(where, row, "title", fields.title, ("title",))
    document = Document(_id(where, row, fields.id), clean(title), clean(text))
    if not document.title.strip() and not document.text.strip():
        raise ConfigError(f"{where}: title and text are both empty")
    return document


def _id(where: str, row: Mapping[str, Any], name: str | None) -> str:
    value = clean(_field(where, row, "id", name, _IDS))
    if not value.strip():
        raise ConfigError(f"{where}: the id is empty")
    if len(value.encode()) > LONGEST_ID:
        raise ConfigError(f"{where}: the id is longer than {LONGEST_ID} bytes: {value[:60]!r}...")
    return value


def _field(
    where: str,
    row: Mapping[str, Any],
    role: str,
    name: str | None,
    usual: tuple[str, ...],
) -> str:
    names = usual if name is None else (name,)
    column = next((key for key in names if row.get(key) is not None), None)
    if column is None:
        has = ", ".join(map(str, row)) or "nothing"
        expected = " or ".join(repr(key) for key in names)
        raise ConfigError(f"{where}: the field {expected} ({role}) is missing; it has: {has}")
    value = row[column]
    if role == "id" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ConfigError(
            f"{where}: the field {column!r} ({role}) is {type(value).__name__}, not text"
        )
    return value


def clean(text: str) -> str:
    """Return the text as UTF-8 can hold it: half a surrogate pair becomes ``?``."""
    return text.encode("utf-8", "replace").decode()


def split_contents(contents: str) -> tuple[str, str]:
    """Return title and text of Search-R1's form: the title in quotes, a newline, the text.

    Anything else is text without a title.
    """
    first, newline, rest = contents.partition("\n")
    if newline and len(first) >= 2 and first[0] == first[-1] == '"':
        return first[1:-1], rest
    return "", contents


def join_contents(document: Document) -> str:
    """Return title and text in Search-R1's form; the inverse of :func:`split_contents`."""
    return f'"{one_line(document.title)}"\n{document.text}'


def one_line(text: str) -> str:
    """Return the text with every run of white space as one space."""
    return " ".join(text.split())
