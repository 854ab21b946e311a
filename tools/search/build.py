"""Building an index on disk: streamed, in bounded memory, whole or not at all."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.durable import sync
from vf.runtime.errors import ConfigError
from vf.runtime.extras import load
from vf.runtime.interrupts import is_alive
from vf.runtime.terminal import make_console
from vf.tools.search.contract import Document
from vf.tools.search.meta import META_FILE, Fingerprint, IndexMeta
from vf.tools.search.sources import USUAL, Documents, Fields, Source
from vf.tools.search.tantivy_index import ANALYZER, make_analyzer, make_schema

if TYPE_CHECKING:
    import tantivy
    from rich.progress import Progress

logger = logging.getLogger(__name__)

_OLD = "-old"  # ends the name of an index that is being replaced
_LEAST_MEMORY = 15  # MiB, tantivy's own
_CHECKED_AT_ONCE = 4096  # ids


def build_index(
    documents: Source | Documents,
    path: str | Path,
    *,
    overwrite: bool = False,
    language: str | None = "english",
    fields: Fields = USUAL,
    memory_mib: int = 512,
    progress: bool = False,
) -> IndexMeta:
    """Build an index and return what is in it.

    It is written to a hidden folder beside ``path`` and renamed when it is whole, so a crash
    leaves no half index; what a killed build of this machine left there, the next one removes.
    With ``overwrite``, the old index is replaced then, in two renames; who has it open keeps it.
    Where a build is killed between the two, the next one puts the old index back first.

    Args:
        documents: A folder, a file, ``hf:NAME`` for a Hugging Face dataset, or an iterable of
            documents or mappings; see :class:`~vf.tools.search.sources.Documents`. Files that
            hold no document are logged, unless it is a ``Documents``, which knows them itself.
        path: The index's folder.
        overwrite: Replace an index that is there.
        language: Stemming language, such as ``english``; None disables stemming.
        fields: The fields of a row hold id, title and text.
        memory_mib: About how much memory to use, in MiB, however many documents there are.
        progress: Show a progress bar.

    Raises:
        ConfigError: If there is something at ``path``, a document is wrong (its place is named), an
            id comes twice, there are no documents, or the disk refuses.
    """
    target = Path(path).resolve()
    if memory_mib < _LEAST_MEMORY:
        raise ConfigError(f"memory_mib must be at least {_LEAST_MEMORY}, got {memory_mib}")
    _check_target(target, overwrite)
    source = documents if isinstance(documents, Documents) else Documents(documents, fields)
    try:
        with _sibling(target) as folder:
            with _shown(source, target.name, progress) as rows:
                meta = _write(rows, folder, language, memory_mib << 20)
            if source.left_out and source is not documents:
                logger.warning("%s", source.left_out)
            if not meta.documents:
                why = f": {source.left_out}" if source.left_out else ""
                raise ConfigError(f"there are no documents to index{why}")
            meta.write(folder)
            _finish(folder)
            _check_target(target, overwrite)
            _move(folder, target)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"the index {target} was not built: {error}") from error
    return meta


def _write(
    rows: Iterable[tuple[str, Document]], folder: Path, language: str | None, memory: int
) -> IndexMeta:
    tantivy = load("tantivy", "search")
    # Documents of equal score are found in the order in which they lie: by id.
    index = tantivy.Index(make_schema(), str(folder), sort_by_field="id")
    index.register_tokenizer(ANALYZER, make_analyzer(language))
    writer = index.writer(heap_size=memory, num_threads=1)
    count, content = 0, Fingerprint(language)
    try:
        with _Ids(folder) as ids:
            for where, document in rows:
                ids.add(where, document.id)
                content.add(document)
                writer.add_document(_entry(tantivy.Document(), document))
                count += 1
        writer.commit()
    except BaseException:
        writer.rollback()
        raise
    finally:
        writer.wait_merging_threads()  # or they would still write while the folder is removed
    return IndexMeta(content.hexdigest(), count, language, tantivy.__version__)


def _entry(entry: tantivy.Document, document: Document) -> tantivy.Document:
    entry.add_text("id", document.id)
    entry.add_text("words", f"{document.title}\n{document.text}")
    entry.add_bytes("title", document.title.encode())
    entry.add_bytes("text", document.text.encode())
    return entry


class _Ids:
    """Finds an id that comes twice, on disk: the ids of a large corpus do not fit in memory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ids.sqlite"
        self._new: dict[bytes, tuple[str, str]] = {}

    def __enter__(self) -> _Ids:
        self._database = sqlite3.connect(self._path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE ids (hash BLOB PRIMARY KEY) WITHOUT ROWID")
        return self

    def add(self, where: str, doc_id: str) -> None:
        key = hashlib.blake2b(doc_id.encode(), digest_size=16).digest()
        if key in self._new:
            _twice(where, doc_id)
        self._new[key] = where, doc_id
        if len(self._new) >= _CHECKED_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        marks = ",".join("?" * len(self._new))
        ids = self._database.execute(
            f"SELECT hash FROM ids WHERE hash IN ({marks})", list(self._new)
        ).fetchall()
        for (key,) in ids:
            _twice(*self._new[key])
        self._database.execute("BEGIN")
        rows = ((key,) for key in self._new)
        self._database.executemany("INSERT INTO ids VALUES (?)", rows)
        self._database.execute("COMMIT")
        self._new.clear()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._database.close()
            self._path.unlink(missing_ok=True)


def _twice(where: str, doc_id: str) -> None:
    raise ConfigError(f"{where}: the id {doc_id!r} has been used before; ids must be unique")


def _check_target(target: Path, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise ConfigError(
            f"{target} exists already; to replace it, add --overwrite (overwrite=True)"
        )
    IndexMeta.read(target)  # anything but an index is somebody's, and stays


@contextmanager
def _sibling(target: Path) -> Iterator[Path]:
    """Make a hidden folder beside the target; remove it if it was not moved away."""
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.building-{os.uname().nodename}-"
    for left in target.parent.iterdir():
        process = left.name.removeprefix(prefix).partition("-")[0]
        if not left.name.startswith(prefix) or not process.isdigit() or is_alive(int(process)):
            continue
        if left.name.endswith(_OLD) and not target.exists():  # killed between the two renames
            left.rename(target)
        else:
            shutil.rmtree(left, ignore_errors=True)
    folder = target.parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _finish(folder: Path) -> None:
    """Let others read the files (tantivy keeps some to itself), and wait until they are on disk."""
    mode = (folder / META_FILE).stat().st_mode  # as the user's umask has it
    for path in folder.iterdir():
        path.chmod(mode)
    for path in [*folder.iterdir(), folder]:
        sync(path)


def _move(folder: Path, target: Path) -> None:
    """Put the folder in the target's place, and the old one back if that fails."""
    if not target.exists():
        folder.rename(target)
        return
    old = folder.with_name(folder.name + _OLD)
    target.rename(old)
    try:
        folder.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _shown(
    source: Documents, name: str, progress: bool
) -> Iterator[Iterable[tuple[str, Document]]]:
    """Show how far the source has been read, while its documents are taken."""
    if not progress:
        yield source
        return
    with _bar() as bar:
        task = bar.add_task(f"indexing {name}", total=source.total, documents=0)

        def counted() -> Iterator[tuple[str, Document]]:
            count = 0
            for count, row in enumerate(source, 1):
                if count % 256 == 1:
                    bar.update(task, completed=source.done, total=source.total, documents=count)
                yield row
            bar.update(task, completed=source.done, total=source.done, documents=count)

        yield counted()


def _bar() -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[documents]:,} documents", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=make_console(stderr=True),
    )
