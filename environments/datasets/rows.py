"""Where rows come from: JSON lines, CSV, Parquet, a Hugging Face dataset, or anything iterable.

Files are read as a stream, a row at a time. What is wrong with a row is said with its place.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from vf.runtime.errors import ConfigError
from vf.runtime.extras import load

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Iterable[Row]
# A file, or hf:NAME; several of them; rows; or a function that returns rows.
Source: TypeAlias = str | Path | Sequence[str | Path] | Rows | Callable[[], Rows]
Placed: TypeAlias = tuple[str, Row]  # where it stands, and what stands there

EXTRA = "data"
_HUB = "hf:"
_JSON = (".jsonl", ".ndjson")
_CSV = {".csv": ",", ".tsv": "\t"}
_LONGEST_CELL = 2**27  # characters; csv refuses cells of more than 131,072 by default


def read_rows(source: Source, *, streaming: bool = False) -> Iterator[Placed]:
    """Return where each row of a source stands, and the row.

    Args:
        source: A file whose name ends in ``.jsonl``, ``.ndjson``, ``.csv``, ``.tsv`` (each also
            with ``.gz``) or ``.parquet``; ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:NAME@SPLIT`` for
            a Hugging Face dataset (the split ``train`` by default); a list of these; an iterable
            of mappings, such as a loaded dataset or a generator; or a function that returns one.
        streaming: Whether a Hugging Face dataset is read over the network as it is needed,
            instead of from its cache on this machine. Files are streamed in any case.

    Raises:
        ConfigError: The source cannot be read (at once, as far as that can be seen), or a row is
            not a mapping.
    """
    if isinstance(source, str | Path):
        source = [source]
    if isinstance(source, list | tuple) and source and isinstance(source[0], str | Path):
        return chain.from_iterable([_open(str(name), streaming) for name in source])
    if isinstance(source, Mapping):
        raise ConfigError(
            f"the rows must be an iterable of mappings, got one mapping with {_named(source)}"
        )
    rows = source() if callable(source) else source
    if not isinstance(rows, Iterable):
        raise ConfigError(
            "the data must be a file, hf:NAME, rows or a function that returns rows, got "
            f"{type(rows).__name__}"
        )
    return (_placed(f"row {number}", row) for number, row in enumerate(rows, 1))


def _open(name: str, streaming: bool) -> Iterator[Placed]:
    if name.startswith(_HUB):
        return _hub_rows(name, streaming)
    path = Path(name).expanduser()
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    kind = suffixes[-1] if suffixes else ""
    if kind not in (*_JSON, *_CSV, ".parquet"):
        raise ConfigError(
            f"{name}: of what kind is it? Name it .jsonl, .csv, .tsv or .parquet, or write hf:NAME "
            "for a Hugging Face dataset"
        )
    if not path.is_file():
        hint = (
            ""
            if path.is_absolute()
            else (
                f", as seen from {Path.cwd()}; for a file beside your code write "
                f"Path(__file__).with_name({path.name!r})"
            )
        )
        raise ConfigError(f"there is no file {path}{hint}")
    if kind in _JSON:
        return json_rows(path)
    return _parquet_rows(path) if kind == ".parquet" else _csv_rows(path, _CSV[kind])


def json_rows(path: Path) -> Iterator[Placed]:
    """Yield the objects of a JSONL file with their places; empty lines are skipped.

    Raises:
        ConfigError: The file cannot be read, or a line is not a JSON object.
    """
    with _reading(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{path}, line {number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise ConfigError(f"{where}: not JSON: {error}") from error
                yield _placed(where, row)


def _csv_rows(path: Path, delimiter: str) -> Iterator[Placed]:
    with _reading(path) as raw:
        csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
        text = (line.decode("utf-8-sig" if n == 0 else "utf-8") for n, line in enumerate(raw))
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        names: list[str] = []
        while True:
            where = f"{path}, line {reader.line_num + 1}"
            try:
                cells = next(reader, None)
            except (csv.Error, UnicodeDecodeError) as error:
                raise ConfigError(f"{where}: not CSV in UTF-8: {error}") from error
            if cells is None:
                return
            if not cells:  # an empty line
                continue
            if not names:
                names = _header(where, cells)
                continue
            if len(cells) != len(names):
                raise ConfigError(
                    f"{where}: {len(cells)} cells under a header of {len(names)} ("
                    f"{_named(names)}); put quotes around a cell that holds the separator"
                )
            yield where, dict(zip(names, cells, strict=True))


def _header(where: str, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if len(set(names)) != len(names):
        raise ConfigError(f"{where}: the header names a field twice: {_named(names)}")
    return names


def _parquet_rows(path: Path) -> Iterator[Placed]:
    parquet = load("pyarrow.parquet", EXTRA)
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (OSError, ValueError) as error:  # those of pyarrow are either
        raise ConfigError(f"{path}, after row {number}: not Parquet: {error}") from error


def _hub_rows(name: str, streaming: bool) -> Iterator[Placed]:
    datasets = load("datasets", EXTRA)
    address, _, split = name.removeprefix(_HUB).partition("@")
    repository, _, config = address.partition(":")
    try:
        rows = datasets.load_dataset(
            repository, config or None, split=split or "train", streaming=streaming
        )
    except Exception as error:  # a dozen kinds, from the hub's and the network's
        raise ConfigError(f"cannot load {name}: {type(error).__name__}: {error}") from error
    return _numbered(name, rows)


def _numbered(name: str, rows: Rows) -> Iterator[Placed]:
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            yield f"{name}, row {number}", row
    except Exception as error:  # as above, where the network is lost half way
        raise ConfigError(
            f"cannot read {name} after row {number}: {type(error).__name__}: {error}"
        ) from error


@contextmanager
def _reading(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            yield cast(IO[bytes], lines)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _placed(where: str, row: object) -> Placed:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: expected an object with fields, got {type(row).__name__}")
    return where, row


def _named(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "nothing"
