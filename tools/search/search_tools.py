"""The tools ``search`` and ``open``, which any environment can take."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

from vf.runtime.batching import PerLoop
from vf.runtime.errors import ConfigError
from vf.tools.episode import Episode
from vf.tools.search.budget import CountTokens, estimate_tokens
from vf.tools.search.contract import Index
from vf.tools.search.search_session import SearchSession, search_log

LEAST_RESULT_TOKENS = 128


class SearchTools:
    """A tool set: ``search(query, k)`` and ``open(doc_id, section)`` over one index.

    Give it to an environment, and record in ``step`` what was searched::

        class Quiz(vf.Environment):
            def __init__(self, index: str) -> None:
                self.tools = [vf.search.SearchTools(index)]

            async def step(self, reply: vf.Message) -> vf.Step:
                return vf.search.recorded(await self.run_tools(reply), self)

    Each episode remembers what it has been shown, in its
    :class:`~vf.tools.search.search_session.SearchLog`.

    Args:
        index: An index, or the path or URL of one.
        k: Number of results of a search if the model does not set it.
        max_k: The most that the model may ask for.
        max_result_tokens: The most tokens of one tool result, markup included.
        count_tokens: Counts a text's tokens. By default an estimate that needs no tokenizer, see
            :func:`~vf.tools.search.budget.estimate_tokens`; with
            ``lambda text: len(tokenizer.encode(text))`` the budget is exact.

    Raises:
        ConfigError: If a number is out of range, or the index cannot be opened.
    """

    def __init__(
        self,
        index: Index | str | Path,
        *,
        k: int = 5,
        max_k: int = 20,
        max_result_tokens: int = 1024,
        count_tokens: CountTokens = estimate_tokens,
    ) -> None:
        if not 1 <= k <= max_k:
            raise ConfigError(f"search: k must be 1 to max_k ({max_k}), got {k}")
        if max_result_tokens < LEAST_RESULT_TOKENS:
            raise ConfigError(
                f"search: max_result_tokens must be at least {LEAST_RESULT_TOKENS}, "
                f"got {max_result_tokens}"
            )
        self.index = open_index(index) if isinstance(index, str | Path) else index
        self.services = [self]
        self.max_k = max_k
        self.max_result_tokens = max_result_tokens
        self.count_tokens = count_tokens
        self._search = _search_tool(k, max_k)
        self._sessions: PerLoop[set[SearchSession]] = PerLoop(set)

    def bind(self, episode: Episode) -> Sequence[Callable[..., Any]]:
        """Return the tools of one episode."""
        session = episode.hold(
            self,
            lambda: SearchSession(
                self.index,
                search_log(episode),
                max_k=self.max_k,
                max_result_tokens=self.max_result_tokens,
                count_tokens=self.count_tokens,
                enter=lambda session: self._sessions.get().add(session),
                leave=self._leave,
            ),
        )
        return [MethodType(self._search, session), session.open]

    async def check(self) -> None:
        """Check that the index can be searched, before a run begins.

        Raises:
            ConfigError: If it cannot.
        """
        try:
            await self.index.check()
        finally:
            await self.index.close()

    async def start(self) -> None:
        """Nothing to do: an index is opened when it is made."""

    async def _leave(self, session: SearchSession) -> None:
        """Close the index's connections when the last episode of this loop has ended."""
        sessions = self._sessions.get()
        sessions.discard(session)
        if not sessions:
            await self.index.close()


def open_index(path: str | Path) -> Index:
    """Open an index: a folder that ``vf-rl search build`` made, or the URL of a retriever.

    Args:
        path: The folder, or ``http://host:port`` of a server that speaks Search-R1's protocol.

    Raises:
        ConfigError: If there is no index, it cannot be read, the URL is not one, or a package is
            missing.
    """
    if str(path).startswith(("http://", "https://")):
        from vf.tools.search.http_index import HttpIndex

        return HttpIndex(str(path))
    from vf.tools.search.tantivy_index import TantivyIndex

    return TantivyIndex(path)


def _search_tool(default: int, most: int) -> Callable[..., Coroutine[Any, Any, str]]:
    """Return the tool, whose schema shows the model the numbers of this tool set."""

    async def search(session: SearchSession, query: str, k: int = default) -> str:
        return await session.search(query, k)

    search.__doc__ = f"""Search the documents.

    Args:
        query: What to look for, in plain words.
        k: How many results to show, 1 to {most}.
    """
    return search
