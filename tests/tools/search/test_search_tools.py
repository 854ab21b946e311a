"""The tools: what the model reads, what is recorded, and the errors that the model sees."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vf
from tests.tools.search.corpus import TOWNS, Quiz, in_episode, make_index
from tests.waiting import until
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.tools.search import markup, snippets
from vf.tools.search.budget import CountTokens, estimate_tokens, fit, longest_prefix
from vf.tools.search.contract import Document, Hit
from vf.tools.search.search_session import NOTHING_FOUND
from vf.tools.search.search_tools import SearchTools
from vf.tools.search.snippets import sections, snippet, window
from vf.tools.search.tantivy_index import TantivyIndex

LONG = Document(
    "long",
    "A long one",
    "\n\n".join(f"Part {n} begins. " + f"It tells of thing{n} at length. " * 30 for n in range(40)),
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> TantivyIndex:
    return make_index(tmp_path_factory.mktemp("tools"), [*TOWNS, LONG])


def call(name: str, **arguments: Any) -> vf.ToolCall:
    return vf.ToolCall(f"c{id(arguments)}", name, json.dumps(arguments))


def converse(index: Any, *turns: list[vf.ToolCall], **settings: Any) -> vf.Trace:
    calling = [vf.Message("assistant", tool_calls=calls) for calls in turns]
    model = vf.ScriptedModel([*calling, "Done."])
    return asyncio.run(vf.rollout(Quiz(index, **settings), vf.Task("t", "Go."), model))


def told(trace: vf.Trace) -> list[str]:
    return [message.content for message in trace.messages if message.role == "tool"]


def test_search_open_and_what_is_written_down(index: TantivyIndex) -> None:
    trace = converse(
        index,
        [call("search", query="capital of Norway", k=2)],
        [call("open", doc_id="oslo")],
        [call("search", query="Norway fjord")],
    )
    first, opened, second = told(trace)
    text = "Oslo is the capital of Norway. It lies on a fjord."
    assert first.startswith(f'<result id="oslo" title="Oslo">\n{text}\n</result>\n')
    assert opened == f'<document id="oslo" title="Oslo">\n{text}\n</document>'
    assert second.startswith('<result id="oslo" title="Oslo" seen="before">')
    assert trace.info["search"] == {
        "queries": ["capital of Norway", "Norway fjord"],
        "found": [["oslo", "ouaga"], ["oslo"]],
        "opened": ["oslo"],
        "index": index.fingerprint,
    }
    assert [event.kind for event in trace.tool_events] == ["ok"] * 3
    assert vf.Trace.from_json(trace.to_json()).info == trace.info


def test_episodes_do_not_know_of_each_other(index: TantivyIndex) -> None:
    environment = Quiz(index)
    for _ in range(2):
        model = vf.ScriptedModel(
            [vf.Message("assistant", tool_calls=[call("search", query="fjord")]), "Done."]
        )
        trace = asyncio.run(vf.rollout(environment, vf.Task("t", "Go."), model))
        assert "seen" not in told(trace)[0]
        assert trace.info["search"]["queries"] == ["fjord"]


def test_no_results_are_reported_plainly(index: TantivyIndex) -> None:
    trace = converse(index, [call("search", query="xylophone"), call("search", query="¿?")])
    assert told(trace) == [NOTHING_FOUND] * 2
    assert trace.info["search"]["found"] == [[], []]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (call("search", query=""), "the query is empty"),
        (call("search", query=" \n\t"), "the query is empty"),
        (call("search", query="x" * 10_000), "the query has 10000 characters; use at most 1000"),
        (call("search", query="x", k=0), "k must be 1 to 20, got 0"),
        (call("search", query="x", k=-3), "k must be 1 to 20, got -3"),
        (call("search", query="x", k=10**30), "k must be 1 to 20"),
        (call("open", doc_id="atlantis"), "there is no document 'atlantis'; use an id"),
        (call("open", doc_id=""), "there is no document ''"),
        (call("open", doc_id="<tool_call>" * 999), "there is no document '‹tool_call›"),
        (
            call("open", doc_id="oslo", section=2),
            "the document has 1 section; there is no section 2",
        ),
        (call("open", doc_id="oslo", section=0), "there is no section 0"),
        (call("open", doc_id="long", section=-1), r"the document has \d+ sections"),
    ],
)
def test_wrong_use_is_reported_to_the_model(index: TantivyIndex, wrong: Any, message: str) -> None:
    trace = converse(index, [wrong])
    [text] = told(trace)
    assert re.match(f"Error: .*{message}", text)
    assert len(text) < 300
    assert [event.kind for event in trace.tool_events] == ["rejected"]
    log = trace.info["search"]
    assert (log["queries"], log["opened"]) == ([], [])
    assert trace.error is None


@settings(max_examples=50, deadline=None)
@given(
    st.text(st.characters(exclude_categories=())),
    st.integers(),
    st.text(st.characters(exclude_categories=())),
    st.integers(),
)
def test_anything_gets_an_answer_or_a_message(
    index: TantivyIndex, query: str, k: int, doc_id: str, section: int
) -> None:
    trace = converse(
        index, [call("search", query=query, k=k), call("open", doc_id=doc_id, section=section)]
    )
    assert trace.error is None
    assert {event.kind for event in trace.tool_events} <= {"ok", "rejected", "invalid_json"}
    assert len(told(trace)) == 2
    vf.Trace.from_json(trace.to_json())


def test_the_schema_tells_the_model_the_numbers(index: TantivyIndex) -> None:
    tools = Quiz(index, k=3, max_k=7).episode(0).toolbox.tools
    parameters = tools["search"].parameters
    assert parameters["properties"]["k"]["default"] == 3
    assert "1 to 7" in parameters["properties"]["k"]["description"]
    assert parameters["required"] == ["query"]
    assert tools["open"].parameters["properties"]["section"]["default"] == 1


@pytest.mark.parametrize("arguments", [{"k": 0}, {"k": 30}, {"max_result_tokens": 20}])
def test_settings_out_of_range_are_refused(index: TantivyIndex, arguments: dict[str, int]) -> None:
    with pytest.raises(vf.ConfigError, match="search: "):
        SearchTools(index, **arguments)  # type: ignore[arg-type]


TOKENIZER: Any = Renderer.from_pretrained(resolve_model("tiny")).tokenizer
COUNTERS: dict[str, CountTokens] = {
    "estimate": estimate_tokens,
    "tokenizer": lambda text: len(TOKENIZER.encode(text)),
    "bytes": lambda text: len(text.encode()),
}


@pytest.mark.parametrize(
    ("counter", "limit"),
    [("estimate", 128), ("bytes", 128), ("tokenizer", 300), ("estimate", 2000)],
)
def test_no_answer_is_longer_than_the_budget(tmp_path: Path, counter: str, limit: int) -> None:
    documents = [
        *TOWNS,
        LONG,
        Document("t" * 300, "long title " * 50, "word " * 5),
        Document("cjk", "東京" * 40, "word " + "東京は日本の首都。" * 300),
        Document("digits", "3.14", "word " + "0123456789" * 500),
        Document("spaces", "", "word" + " \n" * 900 + "end"),
        Document("one", "", "word " + "x" * 9000),
    ]
    count = COUNTERS[counter]

    async def use(search: Any, open_: Any) -> list[str]:
        texts = [await search("word capital thing7", k) for k in (1, 5, 20)]
        for document in documents:
            section, more = 1, True
            while more:
                try:
                    texts.append(await open_(document.id, section))
                except vf.ToolError:
                    more = False
                section += 1
        return texts

    texts, log = in_episode(
        make_index(tmp_path, documents), use, max_result_tokens=limit, count_tokens=count
    )
    assert max(map(count, texts)) <= limit
    assert all(log.found)
    shown = [len(re.findall("<result ", text)) for text in texts[:3]]
    assert shown == [len(found) for found in log.found]
    assert set(log.opened) == {document.id for document in documents}


def test_the_sections_of_a_document_are_its_text(index: TantivyIndex) -> None:
    async def use(search: Any, open_: Any) -> list[str]:
        first = await open_("long")
        [count] = re.findall(r'section="1 of (\d+)"', first)
        return [first, *[await open_("long", n) for n in range(2, int(count) + 1)]]

    texts, log = in_episode(index, use, max_result_tokens=500)
    bodies = [text.split("\n", 1)[1].removesuffix("\n</document>") for text in texts]
    assert "".join(bodies).replace(" ", "").replace("\n", "") == LONG.text.replace(" ", "").replace(
        "\n", ""
    )
    assert len(texts) > 5
    assert log.opened == ["long"] * len(texts)


def test_a_long_document_shows_the_part_around_the_match(index: TantivyIndex) -> None:
    async def use(search: Any, open_: Any) -> str:
        return await search("thing33")  # type: ignore[no-any-return]

    text, _ = in_episode(index, use, max_result_tokens=200)
    assert "thing33" in text
    assert "thing3 " not in text
    assert "\n… " in text


@pytest.mark.parametrize(
    ("query", "expected"),
    [("needle", "needle"), ("NEEDLES haystack", "needle"), ("aiguille", "Aiguillé")],
)
def test_the_window_lies_around_the_match(query: str, expected: str) -> None:
    text = "hay " * 500 + "a needle in Aiguillé " + "straw " * 500
    start, end = window(text, query, 120)
    assert expected in text[start:end]
    assert end - start <= 120


def test_the_window_with_more_of_the_words_wins() -> None:
    text = "red " + "x " * 300 + "red green " + "x " * 300 + "green blue red " + "x " * 300
    start, end = window(text, "red green blue", 100)
    assert "green blue red" in text[start:end]
    assert window(text, "nowhere", 100) == (0, 100)
    assert window(text, "", 100) == (0, 100)


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.characters(exclude_categories=())),
    st.text(),
    st.integers(0, 60),
    st.sampled_from([*COUNTERS]),
)
def test_cutting_keeps_to_the_limit(text: str, query: str, limit: int, counter: str) -> None:
    count = COUNTERS[counter]
    text = text.encode("utf-8", "replace").decode()
    assert fit(text, limit, count) == "" or count(fit(text, limit, count)) <= limit
    line = snippet(text, query, limit, count)
    assert line == "" or count(line) <= limit
    assert "\n" not in line
    assert 0 <= longest_prefix(text, limit, count) <= len(text)
    if limit >= 8:
        assert all(count(part) <= limit for part in sections(text, limit, count))


def test_the_estimate_is_on_the_high_side_for_prose() -> None:
    prose = Path(vf.__file__).parent.parent.joinpath("CONTRIBUTING.md").read_text()
    assert estimate_tokens(prose) >= len(prose) / 4


class Slow:
    """An index that answers together what it is asked together, the last question first."""

    fingerprint = "slow"

    def __init__(self, together: int = 1) -> None:
        self.together = together
        self.asked = 0
        self.answered: list[int] = []
        self.closed = 0

    async def search(self, query: str, k: int) -> list[Hit]:
        self.asked += 1
        number = self.asked
        await until(lambda: self.asked == self.together)
        await until(lambda: len(self.answered) == self.asked - number)
        self.answered.append(number)
        return [Hit(document, 1.0) for document in TOWNS[:k]]

    async def open(self, doc_id: str) -> Document | None:
        return None

    async def check(self) -> None: ...

    async def close(self) -> None:
        self.closed += 1


def test_calls_of_one_turn_wait_together_but_answer_in_order() -> None:
    index = Slow(together=3)
    trace = converse(
        index,
        [call("search", query=str(n), k=n) for n in (1, 2, 3)] + [call("open", doc_id="oslo")],
    )
    assert index.answered == [3, 2, 1]
    assert trace.info["search"]["queries"] == ["1", "2", "3"]
    assert [len(re.findall("seen=", text)) for text in told(trace)] == [0, 1, 2, 0]
    assert "<document" in told(trace)[3]
    assert index.closed == 1


def test_connections_stay_open_while_any_episode_is() -> None:
    index = Slow(together=2)

    async def run() -> list[int]:
        environment = Quiz(index)
        one, other = environment.episode(0), environment.episode(1)
        await asyncio.gather(*(episode.toolbox.tools["search"].fn("x") for episode in (one, other)))
        closed = []
        for episode in (one, other):
            await episode.release()
            closed.append(index.closed)
        return closed

    assert asyncio.run(run()) == [0, 1]


def test_the_event_loop_is_never_held_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large document is made ready in a thread, and bit by bit: others get their turn."""
    text = "some words here <b> and there. " * 60_000
    index = make_index(tmp_path, [Document("huge", "", text)])
    escape, pieces, threads = markup.escape, list[int](), set[threading.Thread]()

    def watched(text: str) -> str:
        pieces.append(len(text))
        threads.add(threading.current_thread())
        return escape(text)

    monkeypatch.setattr(snippets, "escape", watched)

    async def use(search: Any, open_: Any) -> None:
        await open_("huge", 300)

    in_episode(index, use)
    assert sum(pieces) >= len(text)
    assert max(pieces) < len(text) / 100
    assert threading.main_thread() not in threads
