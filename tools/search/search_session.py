"""Search in one episode: its calls, what it has been shown, and the record of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar

from vf.runtime.calling import call, instant
from vf.runtime.errors import ToolError
from vf.tools.episode import Episode
from vf.tools.search import markup
from vf.tools.search.budget import CountTokens, fit
from vf.tools.search.contract import Document, Hit, Index
from vf.tools.search.snippets import sections, snippet
from vf.tools.search.sources import clean


class _Step(Protocol):
    info: dict[str, Any]


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=_Step)

INFO_KEY = "search"  # in Step.info and Trace.info

NOTHING_FOUND = "No results. Try other or fewer words."
LONGEST_QUERY = 1000  # characters
_LEAST_RESULT = 64  # tokens; where the budget has less for each, fewer results are shown
_INLINE = 20_000  # characters that are prepared in the event loop itself; more, in a thread


@dataclass(slots=True)
class SearchLog:
    """What one episode searched for, found and opened, in the order of its calls.

    Rejected calls (an empty query, an unknown id) are not here but among the tool events.

    Attributes:
        queries: The queries, as the model wrote them.
        found: For each query, the ids of the documents that the model was shown, best first.
        opened: The ids of the documents that it opened, once for each section opened.
        index: The index's fingerprint; the address of a server without one.
    """

    queries: list[str] = field(default_factory=list)
    found: list[list[str]] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    index: str = ""

    def to_info(self) -> dict[str, Any]:
        """Return a copy as a plain dict, fit for ``Step.info``."""
        return asdict(self)

    @instant
    def close(self) -> None:
        """Nothing to release: an episode holds the log."""


def search_log(episode: Episode) -> SearchLog:
    """Return the log of an episode, which is empty if nothing was searched yet.

    It lasts until the episode is closed; :func:`recorded` copies it to ``Step.info`` for scoring.
    """
    return episode.hold(SearchLog, SearchLog)


def recorded(step: S, episode: Episode) -> S:
    """Put the episode's log into a step's ``info["search"]``, and so into the trace; return it.

    Example::

        async def step(self, reply: vf.Message) -> vf.Step:
            return recorded(await self.run_tools(reply), self)
    """
    step.info[INFO_KEY] = search_log(episode).to_info()
    return step


class SearchSession:
    """The tools of one episode, and what it has been shown so far.

    Calls of one turn run concurrently, but their answers and their record are as if they had run
    one after the other.

    Args:
        index: The index.
        log: The record.
        max_k: The most results that may be asked for.
        max_result_tokens: The most tokens of one answer.
        count_tokens: Counts them.
        enter: Called before each use of the index, in the loop that uses it.
        leave: Awaited when the episode is closed.
    """

    def __init__(
        self,
        index: Index,
        log: SearchLog,
        *,
        max_k: int,
        max_result_tokens: int,
        count_tokens: CountTokens,
        enter: Callable[[SearchSession], None],
        leave: Callable[[SearchSession], Awaitable[None]],
    ) -> None:
        self._index = index
        self._log = log
        log.index = index.fingerprint
        self._max_k = max_k
        self._limit = max_result_tokens
        self._count = count_tokens
        self._enter = enter
        self._leave = leave
        self._shown: dict[str, Document] = {}  # by the id that was shown
        self._opened: set[tuple[str, int]] = set()
        self._parts: tuple[Document, list[str]] | None = None  # of the document opened last
        self._last: asyncio.Event | None = None  # set when the call before is through

    async def search(self, query: str, k: int) -> str:
        """Answer a search.

        Raises:
            ToolError: If the query is empty or too long, or ``k`` is out of range.
            ToolFailure: If the index did not answer.
        """
        if not query.strip():
            raise ToolError("the query is empty; write the words to look for")
        if len(query) > LONGEST_QUERY:
            raise ToolError(f"the query has {len(query)} characters; use at most {LONGEST_QUERY}")
        if not 1 <= k <= self._max_k:
            raise ToolError(f"k must be 1 to {self._max_k}, got {k}")
        async with self._turn() as my_turn:
            hits = await self._index.search(query, k)
            await my_turn()
            size = sum(len(hit.document.text) for hit in hits)
            text, shown = await self._make(size, self._results, hits, query)
            self._log.index = self._index.fingerprint
            self._log.queries.append(clean(query))
            self._log.found.append([document.id for document in shown.values()])
            self._shown |= shown
            return text

    async def open(self, doc_id: str, section: int = 1) -> str:
        """Read a document that a search has found.

        Args:
            doc_id: Its id.
            section: Number of the section of a long document; the first is 1.

        Raises:
            ToolError: If there is no such document or section.
            ToolFailure: If the index did not answer.
        """
        async with self._turn() as my_turn:
            await my_turn()
            document = self._shown.get(doc_id) or await self._index.open(doc_id)
            if document is None:
                quoted = markup.one_line(markup.escape(doc_id[:100]))
                raise ToolError(
                    f"there is no document {quoted!r}; use an id that a search has shown"
                )
            text = await self._make(len(document.text), self._section, document, section)
            self._log.index = self._index.fingerprint
            self._log.opened.append(document.id)
            self._shown[markup.shown_id(document.id)] = document
            self._opened.add((document.id, section))
            return text

    async def close(self) -> None:
        """Leave the index."""
        await self._leave(self)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Stand in line behind the calls that began before; yield how to wait for them."""
        self._enter(self)
        before, mine = self._last, asyncio.Event()
        self._last = mine

        async def begin() -> None:
            if before is not None:
                await before.wait()

        try:
            yield begin
        finally:
            mine.set()

    async def _make(self, size: int, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make an answer out of so many characters, where that holds up nobody."""
        if size <= _INLINE:
            return make(*args, **kwargs)
        made: T = await call(make, *args, **kwargs)
        return made

    def _results(self, hits: list[Hit], query: str) -> tuple[str, dict[str, Document]]:
        """Return the results that fit, and whose they are, by the id that is shown."""
        parts: list[str] = []
        shown: dict[str, Document] = {}
        once: dict[str, Hit] = {}
        for hit in hits:
            once.setdefault(hit.document.id, hit)
        hits = list(once.values())[: self._limit // _LEAST_RESULT]
        left = self._limit
        for number, hit in enumerate(hits):
            share = left // (len(hits) - number)
            part = self._result(hit.document, query, share)
            parts.append(part)
            shown[markup.shown_id(hit.document.id)] = hit.document
            left -= self._count(part + "\n")
        while parts and self._count("\n".join(parts)) > self._limit:  # counts do not quite add up
            parts.pop()
            shown.popitem()
        return "\n".join(parts) or NOTHING_FOUND, shown

    def _result(self, document: Document, query: str, share: int) -> str:
        doc_id, title = markup.shown_id(document.id), markup.shown_title(document.title)
        seen = doc_id in self._shown
        frame = markup.result(doc_id, title, "", seen=seen)
        if self._count(frame) > share // 2:
            title = fit(title, share // 4, self._count)
            frame = markup.result(doc_id, title, "", seen=seen)
        room = share - self._count(frame) - 1
        text = snippet(document.text, query, max(0, room), self._count)
        return markup.result(doc_id, title, text, seen=seen)

    def _section(self, document: Document, section: int) -> str:
        doc_id, title = markup.shown_id(document.id), markup.shown_title(document.title)
        title = fit(title, self._limit // 4, self._count)
        frame = markup.document(doc_id, title, "", section=10**6, sections=10**6, seen=True)
        room = self._limit - self._count(frame) - 1
        if self._parts is None or self._parts[0] != document:
            self._parts = document, sections(document.text, room, self._count)
        parts = self._parts[1]
        if not 1 <= section <= len(parts):
            many = "1 section" if len(parts) == 1 else f"{len(parts)} sections"
            raise ToolError(f"the document has {many}; there is no section {section}")
        return markup.document(
            doc_id,
            title,
            fit(parts[section - 1], room, self._count),
            section=section,
            sections=len(parts),
            seen=(document.id, section) in self._opened,
        )
