"""Where rows come from: JSON lines, CSV, Parquet, a Hugging Face dataset, or anything iterable.

Files are read as a stream, one row at a time. An error in a row names its place.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.extras import load

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Iterable[Row]
# A file, or hf:NAME; several of them; rows; or a function that returns rows.
Source: TypeAlias = str | Path | Sequence[str | Path] | Rows | Callable[[], Rows]
Placed: TypeAlias = tuple[str, Row]  # where a row is, and the row

EXTRA = "data"
HUB = "hf:"
_JSON = (".jsonl", ".ndjson", ".json")
_CSV = {".csv": ",", ".tsv": "\t"}
ENDINGS = (*_JSON, *_CSV, ".parquet")  # all but the last also with .gz
_NAMED = 6  # files of a folder in an error
_LONGEST_CELL = 2**27  # characters; csv refuses cells of more than 131,072 by default


@dataclass(slots=True)
class Progress:
    """How far a source has been read.

    Attributes:
        done: Bytes or rows read so far of the current file.
        total: Its size in the same unit; None if it is not known.
    """

    done: int = 0
    total: int | None = None


def read_rows(source: Source, *, streaming: bool = False) -> Iterator[Placed]:
    """Return where each row of a source stands, and the row.

    Args:
        source: A file whose name ends in ``.jsonl``, ``.ndjson``, ``.json`` (a list of objects, or
            an object a line), ``.csv``, ``.tsv`` (each also with ``.gz``) or ``.parquet``;
            ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:NAME@SPLIT`` for a Hugging Face dataset (the
            split ``train`` by default); a list of these; an iterable of mappings, such as a
            loaded dataset or a generator; or a function that returns one.
        streaming: Whether a Hugging Face dataset is read over the network as it is needed,
            instead of from its cache on this machine. Files are streamed in any case.

    Raises:
        ConfigError: If the source cannot be read (at once, as far as that can be seen), or a row
            is not a mapping.
    """
    if isinstance(source, str | Path):
        source = [source]
    if isinstance(source, list | tuple) and source and isinstance(source[0], str | Path):
        return read_files([str(name) for name in source], streaming=streaming)
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


def read_files(
    names: Iterable[str], *, streaming: bool = False, progress: Progress | None = None
) -> Iterator[Placed]:
    """Return the rows of files and Hugging Face datasets, and the place of each.

    Args:
        names: See :func:`read_rows`.
        streaming: See :func:`read_rows`.
        progress: Updated with each row.

    Raises:
        ConfigError: If a file is missing or of an unknown kind (raised immediately), or cannot be
            read.
    """
    progress = progress or Progress()
    return chain.from_iterable([_open(name, streaming, progress) for name in names])


def _open(name: str, streaming: bool, progress: Progress) -> Iterator[Placed]:
    if name.startswith(HUB):
        return _hub_rows(name, streaming, progress)
    path = Path(name).expanduser()
    kind = kind_of(path)
    if not path.exists():
        raise missing_file(path)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder{_held(path)}; name one of its files, or a list")
    if kind not in ENDINGS:
        raise ConfigError(
            f"{name}: of what kind is it? Please name it {', '.join(ENDINGS)}, or write "
            "hf:NAME for a Hugging Face dataset"
        )
    if kind == ".json" and _holds_list(path):
        return _json_list(path, progress)
    if kind in _JSON:
        return json_rows(path, progress)
    if kind == ".parquet":
        return _parquet_rows(path, progress)
    return _csv_rows(path, _CSV[kind], progress)


def kind_of(path: Path) -> str:
    """Return a file's ending in lower case, that of ``.gz`` aside."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""


def missing_file(path: Path, *, in_code: bool = True) -> ConfigError:
    """Return the error of a path at which there is nothing.

    Args:
        path: The path.
        in_code: Whether it may be written in code, which files may lie beside.
    """
    near = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = did_you_mean(path.name, near)
    hint = f".{hint}" if hint else ""
    if not hint and not path.is_absolute():
        hint = f", as seen from {Path.cwd()}"
        if in_code:
            hint += f"; for a file beside your code write Path(__file__).with_name({path.name!r})"
    return ConfigError(f"there is no file {path}{hint}")


def _held(folder: Path) -> str:
    """Return in words which files with rows a folder holds."""
    names = sorted(path.name for path in folder.iterdir() if kind_of(path) in ENDINGS)
    if not names:
        return f" without a file that ends in {', '.join(ENDINGS)}"
    return f" with {', '.join(names[:_NAMED])}{', ...' if len(names) > _NAMED else ''}"


def _holds_list(path: Path) -> bool:
    """Return whether a file of JSON holds one list, and not an object a line.

    Raises:
        ConfigError: If it holds neither.
    """
    with _lines(path, Progress()) as lines:
        first = next((line for line in lines if line.strip()), b"{}").removeprefix(BOM_UTF8)
    if first.lstrip().startswith(b"["):
        return True
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} holds neither a list of objects nor an object a line") from None
    return False


def _json_list(path: Path, progress: Progress) -> Iterator[Placed]:
    """Yield the objects of a list in JSON, which is held in memory."""
    with _lines(path, progress) as lines:
        try:
            rows = json.loads(b"".join(lines))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: not JSON: {error}") from error
    for number, row in enumerate(rows, 1):
        yield _placed(f"{path}, row {number}", row)


def json_rows(path: Path, progress: Progress | None = None) -> Iterator[Placed]:
    """Yield the objects of a JSONL file with their places; empty lines are skipped.

    Args:
        path: The file.
        progress: Updated with each row, in bytes.

    Raises:
        ConfigError: If the file cannot be read, or a line is not a JSON object.
    """
    with _lines(path, progress or Progress()) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{path}, line {number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise ConfigError(f"{where}: not JSON: {error}") from error
                yield _placed(where, row)


def _csv_rows(path: Path, delimiter: str, progress: Progress) -> Iterator[Placed]:
    with _lines(path, progress) as raw:
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


def _parquet_rows(path: Path, progress: Progress) -> Iterator[Placed]:
    parquet = load("pyarrow.parquet", EXTRA)
    progress.done = 0
    try:
        with parquet.ParquetFile(path) as file:
            progress.total = file.metadata.num_rows
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    progress.done += 1
                    yield f"{path}, row {progress.done}", row
    except (OSError, ValueError) as error:  # those of pyarrow are either
        raise ConfigError(f"{path}, after row {progress.done}: not Parquet: {error}") from error


def _hub_rows(name: str, streaming: bool, progress: Progress) -> Iterator[Placed]:
    datasets = load("datasets", EXTRA)
    address, _, split = name.removeprefix(HUB).partition("@")
    repository, _, config = address.partition(":")
    try:
        rows = datasets.load_dataset(
            repository, config or None, split=split or "train", streaming=streaming
        )
    except Exception as error:  # a dozen kinds, from the hub's and the network's
        raise ConfigError(f"cannot load {name}: {type(error).__name__}: {error}") from error
    return _numbered(name, rows, progress)


def _numbered(name: str, rows: Rows, progress: Progress) -> Iterator[Placed]:
    progress.done, progress.total = 0, None
    try:
        for row in rows:
            progress.done += 1
            yield f"{name}, row {progress.done}", row
    except Exception as error:  # as above, where the network is lost half way
        raise ConfigError(
            f"cannot read {name} after row {progress.done}: {type(error).__name__}: {error}"
        ) from error


@contextmanager
def _lines(path: Path, progress: Progress) -> Iterator[Iterator[bytes]]:
    """Open a file, packed or not, for the length of a with block and return its lines."""
    number = 0

    def lines(raw: BinaryIO) -> Iterator[bytes]:
        nonlocal number
        packed = path.suffix == ".gz"
        for line in gzip.GzipFile(fileobj=raw) if packed else raw:
            number += 1
            progress.done = raw.tell()
            yield line
        progress.done = raw.tell()

    try:
        with path.open("rb") as raw:
            progress.total = path.stat().st_size
            yield lines(raw)
    except (OSError, EOFError, zlib.error) as error:
        position = f", after line {number}" if number else ""
        raise ConfigError(f"cannot read {path}{position}: {error}") from error


def _placed(where: str, row: object) -> Placed:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: expected an object with fields, got {type(row).__name__}")
    return where, row


def _named(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "nothing"
