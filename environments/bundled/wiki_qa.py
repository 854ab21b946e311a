"""Your own questions about your own corpus: NQ, HotpotQA, MuSiQue and the like, by searching."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf.environments.bundled.cached_index import cached_index
from vf.environments.environment import Environment, Split, Step
from vf.inference.models.scripted_model import Line, Script
from vf.rubrics.outcomes.text import normalize_answer
from vf.rubrics.penalties.search import Outcome, search_rubric
from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.rows import ENDINGS, Row, json_rows, kind_of
from vf.tools.search.contract import Index
from vf.tools.search.markup import result_ids
from vf.tools.search.meta import Fingerprint
from vf.tools.search.search_session import LONGEST_QUERY, recorded
from vf.tools.search.search_tools import SearchTools
from vf.tools.search.sources import Documents
from vf.traces.messages import Message
from vf.traces.task import Task

FIELDS = ("id", "question", "golden_answers")


class WikiQA(Environment):
    """Answer questions from a file by searching a corpus.

    Question files are JSONL, each line with ``id``, ``question`` and ``golden_answers``. The
    corpus is one of two: ``index``, which ``vf-rl search build`` has made or a retriever serves, or
    ``corpus``, which is indexed once per machine, in the user's cache folder.

    Args:
        train: File of the training questions; None to evaluate only.
        eval: File of the held-out questions; None to train only. No question may be in both.
        index: Folder of an index, or URL of a retriever that speaks Search-R1's protocol.
        corpus: A corpus to index: a folder of Markdown, text or HTML files, or ``.jsonl``,
            ``.jsonl.gz`` or ``.parquet`` with ``id``, ``title`` and ``text``, or ``contents`` as
            Search-R1's. It is read whole at every start, to see whether it has changed, so build
            an index of a large one.
        outcome: ``em`` for exact match, ``f1`` for token F1.
        free_calls: Number of tool calls that cost nothing.
        k: Number of results of a search if the model does not set it.
        max_result_tokens: The most tokens of one tool result.
        max_turns: Maximum answers of the model to one question.

    Raises:
        ConfigError: If a file is wrong (line and field are named), a question is in both files, or
            the corpus is not given in exactly one way.
    """

    system_prompt = (
        "Answer the question. Look for passages with search and read them with open, as often as "
        "you need. End with 'Answer: ' and, in that line, nothing but a short answer."
    )

    def __init__(
        self,
        train: str | None = None,
        eval: str | None = None,
        index: str | None = None,
        corpus: str | None = None,
        outcome: Outcome = "em",
        free_calls: int = 6,
        k: int = 3,
        max_result_tokens: int = 1024,
        max_turns: int = 8,
    ) -> None:
        if train is None and eval is None:
            raise ConfigError("wiki-qa: give a file of questions: train, eval, or both")
        if (index is None) == (corpus is None):
            raise ConfigError(
                "wiki-qa: give either index (a folder or URL) or corpus (a file or folder)"
            )
        if free_calls < 0:
            raise ConfigError(f"wiki-qa: free_calls must be at least 0, got {free_calls}")
        self.rubric = search_rubric(outcome, free_calls=free_calls)
        files: dict[Split, str | None] = {"train": train, "eval": eval}
        self.items: dict[Split, list[Item]] = {
            split: [] if path is None else read_questions(path) for split, path in files.items()
        }
        _check_answers(self.items["train"] + self.items["eval"])
        _check_apart(self.items["train"], self.items["eval"], str(eval))
        source = _expanded(str(index)) if corpus is None else _indexed(Path(corpus).expanduser())
        self.search = SearchTools(source, k=k, max_result_tokens=max_result_tokens)
        self.tools = [self.search]
        self.max_turns = max_turns

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield a file's questions in its order."""
        for item in self.items[split]:
            yield Task(id=item.id, prompt=item.question, answer=list(item.golden_answers))

    def oracle(self, task: Task) -> Script:
        """Search for the question and its answer at once, open what comes first, and answer."""
        answer = task.answer[0]

        def speak(messages: list[Message]) -> Line:
            last = messages[-1]
            if last.role != "tool":
                return {"search": {"query": f"{answer} {task.prompt}"[:LONGEST_QUERY]}}
            if ids := result_ids(last.content):
                return {"open": {"doc_id": ids[0]}}
            return f"Answer: {answer}"

        return speak

    async def step(self, reply: Message) -> Step:
        """Run the reply's searches; record what was found and opened."""
        return recorded(await self.run_tools(reply), self)


def _check_answers(items: list[Item]) -> None:
    for item in items:
        for answer in item.golden_answers:
            if not normalize_answer(answer):
                raise ConfigError(
                    f"wiki-qa: of the golden answer {answer!r} to question {item.id!r} nothing is "
                    "left without punctuation, so no answer could be right; remove it"
                )


def _check_apart(train: list[Item], held_out: list[Item], path: str) -> None:
    by_question = {normalize_answer(item.question): item for item in train}
    for item in held_out:
        twin = by_question.get(normalize_answer(item.question))
        if twin is not None:
            raise ConfigError(
                f"{path}: question {item.id!r} is question {twin.id!r} of the training file as "
                "well; remove one of them"
            )


def _expanded(index: str) -> str:
    return index if "://" in index else str(Path(index).expanduser())


def _indexed(corpus: Path) -> Index:
    if kind_of(corpus) in ENDINGS and not corpus.is_dir():
        try:
            with corpus.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(f"cannot read the corpus {corpus}: {error}") from error
    else:  # of a folder, what its documents are called counts as well
        fingerprint = Fingerprint(None)
        for _, document in Documents(corpus):
            fingerprint.add(document)
        content = fingerprint.hexdigest()
    return cached_index("wiki-qa", content, corpus, progress=sys.stderr.isatty())


@dataclass(frozen=True, slots=True)
class Item:
    """One question of a file and the answers that are right, at least one."""

    id: str
    question: str
    golden_answers: tuple[str, ...]


def read_questions(path: str | Path) -> list[Item]:
    """Read a file of questions; empty lines are skipped.

    Each line is a JSON object with ``id`` (a text or a whole number, unique in the file),
    ``question`` (a text) and ``golden_answers`` (a text or a list of texts). Other fields are
    ignored.

    Raises:
        ConfigError: If the file cannot be read, is empty, or a line is wrong; the message names
            line and field.
    """
    source = Path(path).expanduser()
    items: list[Item] = []
    locations: dict[str, str] = {}
    for where, row in json_rows(source):
        item = _item(row, where)
        if item.id in locations:
            raise ConfigError(
                f"{where}: the id {item.id!r} is that of {locations[item.id]} as well"
            )
        locations[item.id] = where
        items.append(item)
    if not items:
        raise ConfigError(f"{source} holds no questions")
    return items


def _item(raw: Row, where: str) -> Item:
    for name in FIELDS:
        if name not in raw:
            hint = did_you_mean(name, [key for key in raw if key not in FIELDS])
            raise ConfigError(f"{where}: the field {name!r} is missing.{hint}")
    return Item(
        id=_id(raw["id"], where),
        question=_text(raw["question"], f"{where}: the field 'question'"),
        golden_answers=_answers(raw["golden_answers"], f"{where}: the field 'golden_answers'"),
    )


def _id(value: Any, where: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(value, f"{where}: the field 'id'")


def _answers(value: Any, where: str) -> tuple[str, ...]:
    answers = [value] if isinstance(value, str) else value
    if not isinstance(answers, list) or not answers:
        raise ConfigError(f"{where} must be a text or a list of texts, got {value!r}")
    return tuple(_text(answer, where) for answer in answers)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where} must be a text that is not empty, got {value!r}")
    return value
