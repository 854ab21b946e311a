"""Small corpora, and an episode that searches one."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import vf
from vf.tools.search.build import build_index
from vf.tools.search.contract import Document, Index
from vf.tools.search.search_session import SearchLog, recorded
from vf.tools.search.search_tools import SearchTools
from vf.tools.search.tantivy_index import TantivyIndex

TOWNS = [
    Document("paris", "Paris", "Paris is the capital of France. The Seine flows through it."),
    Document("lyon", "Lyon", "Lyon is a city in France, where Rhône and Saône meet."),
    Document("oslo", "Oslo", "Oslo is the capital of Norway. It lies on a fjord."),
    Document("ouaga", "Ouagadougou", "Ouagadougou is the capital of Burkina Faso."),
    Document("sao", "São Paulo", "São Paulo is the largest city of Brazil."),
]


def make_index(folder: Path, documents: Sequence[Document] = TOWNS) -> TantivyIndex:
    """Build an index in a folder, and open it."""
    build_index(documents, folder / "index")
    return TantivyIndex(folder / "index")


def drawn(count: int, seed: int = 0, words: int = 2000) -> Iterator[Document]:
    """Yield documents of words as rare as in a natural language."""
    rng = random.Random(seed)
    vocabulary = ["".join(pair) for pair in itertools.product("bdfgklmnprstvz", "aeiou", repeat=2)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, words + 1)))
    names = ["".join(rng.choices(vocabulary, k=3)) for _ in range(words)]
    for number in range(count):
        text = " ".join(rng.choices(names, cum_weights=weights, k=rng.randint(5, 30)))
        yield Document(f"d{number}", f"Title {number}", text)


class Quiz(vf.Environment):
    """An environment with nothing but the search tools."""

    def __init__(self, index: Index | str, **settings: Any) -> None:
        self.tools = [SearchTools(index, **settings)]

    async def step(self, reply: vf.Message) -> vf.Step:
        return recorded(await self.run_tools(reply), self)


def in_episode(
    index: Index,
    use: Callable[[Callable[..., Any], Callable[..., Any]], Awaitable[Any]],
    **settings: Any,
) -> tuple[Any, SearchLog]:
    """Run ``use(search, open)`` in an episode; return what it returns, and the episode's log."""
    from vf.tools.search.search_session import search_log

    async def run() -> tuple[Any, SearchLog]:
        episode = Quiz(index, **settings).episode(0)
        tools = episode.toolbox.tools
        try:
            return await use(tools["search"].fn, tools["open"].fn), search_log(episode)
        finally:
            await episode.release()

    return asyncio.run(run())
