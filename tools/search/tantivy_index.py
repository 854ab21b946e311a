"""The embedded index: tantivy's BM25, on disk, memory-mapped, opened by many processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from time import sleep
from typing import TYPE_CHECKING, Any

from vf.runtime.batching import Batcher
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError
from vf.runtime.extras import load
from vf.runtime.temporary import make_temporary_folder
from vf.tools.search.contract import Document, Hit
from vf.tools.search.meta import IndexMeta

if TYPE_CHECKING:
    import tantivy

ANALYZER = "vf"
LONGEST_WORD = 64  # bytes; longer ones are not words
MAX_WORDS = 64  # different ones of a query that count
_MAX_CHARS = 10_000  # of a query that are looked at
_BATCH = 32  # searches that share a thread's wake-up
_REMOVALS = 100  # attempts at removing a folder of links
_MOST_TIES = 1 << 16  # hits of one score that are looked through for the smallest ids


def make_schema() -> tantivy.Schema:
    """Return the fields: what is stored, and the words of title and text that are searched."""
    builder = load("tantivy", "search").SchemaBuilder()
    builder.add_text_field("id", stored=True, fast=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("words", tokenizer_name=ANALYZER, index_option="freq")
    # Never searched, but tantivy only stores text in fields that it indexes as well.
    for name in ("title", "text"):
        builder.add_bytes_field(name, stored=True)
    return builder.build()  # type: ignore[no-any-return]


def make_analyzer(language: str | None) -> tantivy.TextAnalyzer:
    """Return what makes words of a text: lower case, no accents, no endings.

    Args:
        language: Stemming language, such as ``english``; None disables stemming.

    Raises:
        ConfigError: If no stemmer knows the language.
    """
    tantivy = load("tantivy", "search")
    filters = tantivy.Filter
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for step in (filters.remove_long(LONGEST_WORD), filters.lowercase(), filters.ascii_fold()):
        builder = builder.filter(step)
    if language is not None:
        try:
            builder = builder.filter(filters.stemmer(language))
        except ValueError as error:
            raise ConfigError(f"no stemmer knows the language {language!r}: {error}") from error
    return builder.build()  # type: ignore[no-any-return]


class TantivyIndex:
    """An index that :func:`~vf.tools.search.build.build_index` wrote, opened read-only.

    Scores are tantivy's BM25 (k1 1.2, b 0.75) over title and text together; any word of the query
    may match. Searches run in threads, which tantivy lets run beside Python.

    Args:
        path: The index's folder.

    Raises:
        ConfigError: If there is no index, it cannot be read, or tantivy is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.meta = IndexMeta.read(self.path)
        self._tantivy = tantivy = load("tantivy", "search")
        self._analyzer = make_analyzer(self.meta.language)
        try:
            with _links(self.path) as folder:
                self._index = tantivy.Index.open(str(folder))
                self._index.config_reader("manual")
                self._index.register_tokenizer(ANALYZER, self._analyzer)
                self._searcher = self._index.searcher()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot open the index {self.path} (written by {self.meta.tantivy}, this is "
                f"{tantivy.__version__}): {error}"
            ) from error
        self._schema = self._index.schema
        self._batches: Batcher[tuple[str, int], list[Hit]] = Batcher(
            lambda queries: call(self._find_all, queries),
            size=_BATCH,
            concurrency=_cores(),
            spread=True,
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the content."""
        return self.meta.fingerprint

    async def search(self, query: str, k: int) -> list[Hit]:
        """Return the best documents for a query in plain words.

        The first 64 different words of the query count. Equal scores stand by document id. (Where
        more than 65,536 documents of an index of several segments tie for the last place, which
        of them gets it depends on how it was built.)
        """
        return await self._batches.ask((query, k))

    async def open(self, doc_id: str) -> Document | None:
        """Return one document, None if there is none of this id."""
        document: Document | None = await call(self.fetch, doc_id)
        return document

    async def check(self) -> None:
        """Nothing to look for: it is open."""

    async def close(self) -> None:
        """Nothing to close: the files stay mapped."""

    def find(self, query: str, k: int) -> list[Hit]:
        """Search, and block until it is done: :meth:`search` for threads."""
        text = query[:_MAX_CHARS].encode("utf-8", "replace").decode()
        words = list(dict.fromkeys(self._analyzer.analyze(text)))[:MAX_WORDS]
        k = min(k, self.meta.documents)
        if not words or k < 1:
            return []
        query_of, schema = self._tantivy.Query, self._schema
        any_of = [
            (self._tantivy.Occur.Should, query_of.term_query(schema, "words", word, "freq"))
            for word in words
        ]
        best = self._best(query_of.boolean_query(any_of), k)
        hits = [Hit(self._document(address), score) for score, address in best]
        hits.sort(key=lambda hit: (-hit.score, hit.document.id))
        return hits[:k]

    def fetch(self, doc_id: str) -> Document | None:
        """Look a document up, and block until it is done: :meth:`open` for threads."""
        key = doc_id.encode("utf-8", "replace").decode()
        query = self._tantivy.Query.term_query(self._schema, "id", key, "basic")
        hits = self._searcher.search(query, 1, count=False).hits
        return self._document(hits[0][1]) if hits else None

    def _find_all(self, queries: list[tuple[str, int]]) -> list[list[Hit]]:
        return [self.find(query, k) for query, k in queries]

    def _best(self, query: Any, k: int) -> list[tuple[float, Any]]:
        """Return the best hits, all that may be among the first ``k`` once ties are broken.

        Within a segment documents lie in the order of their ids, and of equal scores tantivy takes
        those that lie first. So one segment's best are the right ones; of several segments, each
        one's first ``k`` of the last score are.
        """
        if self._searcher.num_segments == 1:
            return self._searcher.search(query, k, count=False).hits  # type: ignore[no-any-return]
        limit = k + 1
        while True:
            hits = self._searcher.search(query, limit, count=False).hits
            if len(hits) < limit or hits[-1][0] < hits[k - 1][0] or limit >= _MOST_TIES:
                break
            limit = min(8 * limit, max(_MOST_TIES, k + 1))
        if len(hits) <= k:
            return hits  # type: ignore[no-any-return]
        last = hits[k - 1][0]
        kept, ties = [], dict[int, int]()
        for score, address in hits:
            if score == last:
                ties[address.segment_ord] = ties.get(address.segment_ord, 0) + 1
                if ties[address.segment_ord] > k:
                    continue
            if score >= last:
                kept.append((score, address))
        return kept

    def _document(self, address: Any) -> Document:
        stored = self._searcher.doc(address)
        return Document(
            stored.get_first("id"),
            bytes(stored.get_first("title")).decode(),
            bytes(stored.get_first("text")).decode(),
        )


@contextmanager
def _links(path: Path) -> Iterator[Path]:
    """Give a folder of links to an index's files, for as long as it takes to map them.

    tantivy locks a folder that it opens with a file in it, which only its owner could write.
    """
    folder = make_temporary_folder("search")
    try:
        for file in path.resolve().iterdir():
            if file.suffix != ".lock":
                (folder / file.name).symlink_to(file)
        yield folder
    finally:
        # A thread of tantivy's may just be looking for a newer commit, under a lock of its own.
        for _ in range(_REMOVALS):
            rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            sleep(0.01)


@lru_cache(maxsize=1)
def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
