"""Where documents come from: JSON lines, Parquet, a Hugging Face dataset, or anything iterable.

All are read as a stream. What is wrong with a row is said with its place: file and line.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from vf.runtime.errors import ConfigError
from vf.runtime.extras import load
from vf.tools.search.contract import Document

Source: TypeAlias = str | Path | Sequence[str | Path] | Iterable[Document | Mapping[str, Any]]
Row: TypeAlias = tuple[str, object]  # where it stands, and what stands there

LONGEST_ID = 512  # bytes
_IDS = ("id", "_id", "docid", "doc_id")
_TEXTS = ("text", "contents", "content", "body")
_HUB = "hf:"


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


class Documents:
    """The documents of a source, and how far it has been read.

    Args:
        source: A path ending in ``.jsonl``, ``.jsonl.gz`` or ``.parquet``; ``hf:NAME``,
            ``hf:NAME:CONFIG`` or ``hf:NAME@SPLIT`` for a Hugging Face dataset, streamed; a list of
            these; or an iterable of documents or mappings, such as a loaded dataset.
        fields: Which fields hold what.

    Raises:
        ConfigError: The source cannot be read, or a row (named by its place) is wrong.
    """

    def __init__(self, source: Source, fields: Fields = USUAL) -> None:
        self.fields = fields
        self.total: int | None = None  # of the file at hand; None if nobody knows
        self._done = 0
        self._position: Callable[[], int] = lambda: self._done
        if isinstance(source, Path | str):
            source = [source]
        if isinstance(source, list | tuple) and all(isinstance(it, Path | str) for it in source):
            opened = [self._open(str(name)) for name in source]  # what is missing is told at once
            self._rows: Iterator[Row] = chain.from_iterable(opened)
        else:
            self.total = len(source) if isinstance(source, Sized) else None
            self._rows = ((f"document {n}", row) for n, row in enumerate(source, 1))

    def __iter__(self) -> Iterator[tuple[str, Document]]:
        """Yield where each document stands, and the document."""
        for where, row in self._rows:
            self._done += 1
            yield where, _document(where, row, self.fields)

    @property
    def done(self) -> int:
        """How much of the file at hand has been read, in the unit of ``total``: bytes, or rows."""
        return self._position()

    def _open(self, name: str) -> Iterator[Row]:
        if name.startswith(_HUB):
            return _hub_rows(name)
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"there is no file {path}")
        if path.suffix == ".parquet":
            return self._parquet_rows(path)
        if path.name.endswith((".jsonl", ".jsonl.gz", ".ndjson", ".json")):
            return self._json_rows(path)
        raise ConfigError(
            f"{path}: name it .jsonl, .jsonl.gz or .parquet, or write hf:NAME for a dataset"
        )

    def _json_rows(self, path: Path) -> Iterator[Row]:
        self.total = path.stat().st_size
        with path.open("rb") as raw:
            self._position = raw.tell
            lines = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            try:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        where = f"{path}, line {number}"
                        yield where, _json(where, line)
                    self._done = number
            except (OSError, EOFError) as error:
                raise ConfigError(f"{path}, after line {self._done}: {error}") from error
            finally:
                last = self.total if raw.closed else raw.tell()  # closed: dropped half way
                self._position = lambda: last

    def _parquet_rows(self, path: Path) -> Iterator[Row]:
        parquet = load("pyarrow.parquet", "data")
        try:
            file = parquet.ParquetFile(path)
        except Exception as error:  # pyarrow's own
            raise ConfigError(f"{path} is not a Parquet file: {error}") from error
        with file:
            self.total, number = file.metadata.num_rows, 0
            self._position = lambda: number
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row


def _json(where: str, line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error


def _hub_rows(name: str) -> Iterator[Row]:
    datasets = load("datasets", "data")
    address, _, split = name.removeprefix(_HUB).partition("@")
    repository, _, config = address.partition(":")
    try:
        rows = datasets.load_dataset(
            repository, config or None, split=split or "train", streaming=True
        )
    except Exception as error:  # a dozen kinds, from the hub's and the network's
        raise ConfigError(f"cannot load {name}: {type(error).__name__}: {error}") from error
    return ((f"{name}, row {number}", row) for number, row in enumerate(rows, 1))


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
    found = next((key for key in names if row.get(key) is not None), None)
    if found is None:
        has = ", ".join(map(str, row)) or "nothing"
        wanted = " or ".join(repr(key) for key in names)
        raise ConfigError(f"{where}: the field {wanted} ({role}) is missing; it has: {has}")
    value = row[found]
    if role == "id" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ConfigError(
            f"{where}: the field {found!r} ({role}) is {type(value).__name__}, not text"
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
