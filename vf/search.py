"""Search in an environment: the tools, the record of an episode, and a rubric that reads it.

class Quiz(vf.Environment):
    rubric = vf.search.search_rubric()

    def __init__(self, index: str) -> None:
        self.tools = [vf.search.SearchTools(index)]

    async def step(self, reply: vf.Message) -> vf.Step:
        return vf.search.recorded(await self.run_tools(reply), self)
"""

from vf.rubrics.penalties.search import search_record, search_rubric
from vf.tools.search.contract import Document, Hit, Index
from vf.tools.search.search_session import recorded
from vf.tools.search.search_tools import SearchTools, open_index

__all__ = [
    "Document",
    "Hit",
    "Index",
    "SearchTools",
    "open_index",
    "recorded",
    "search_record",
    "search_rubric",
]
