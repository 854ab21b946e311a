"""Search-R1's protocol, from both sides: our server, our client, and other people's servers."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.tools.search.corpus import TOWNS, Quiz, drawn, in_episode, make_index
from tests.tools.search.serving import served
from tests.waiting import until
from vf.runtime.errors import ConfigError, ToolFailure
from vf.testing import FakeServer, Request, Response
from vf.testing.fake_server import Script
from vf.tools.search.contract import Document, Index
from vf.tools.search.http_index import HttpIndex
from vf.tools.search.search_tools import SearchTools, open_index
from vf.tools.search.tantivy_index import TantivyIndex


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> TantivyIndex:
    return make_index(tmp_path_factory.mktemp("served"), [*TOWNS, *drawn(300)])


@pytest.fixture(scope="module")
def url(local: TantivyIndex) -> Iterator[str]:
    with served(local.path) as (address, _):
        yield address


def post(url: str, body: object) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


def test_the_server_speaks_search_r1s_protocol(url: str, local: TantivyIndex) -> None:
    queries = ["capital of Norway", "xylophone"]
    body = {"queries": queries, "topk": 2, "return_scores": True}
    answer = post(f"{url}/retrieve", body)
    hits = local.find(queries[0], 2)
    assert answer["result"] == [
        [
            {
                "document": {
                    "id": hit.document.id,
                    "title": hit.document.title,
                    "contents": f'"{hit.document.title}"\n{hit.document.text}',
                },
                "score": hit.score,
            }
            for hit in hits
        ],
        [],
    ]
    assert answer["index"] == local.fingerprint
    bare = post(f"{url}/retrieve", {"queries": queries[:1]})
    assert [document["id"] for document in bare["result"][0]][:2] == [h.document.id for h in hits]
    assert len(bare["result"][0]) == 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "Invalid JSON"),
        ({"topk": 3}, "queries: Field required"),
        ({"queries": "x"}, "queries: "),
        ({"queries": ["x"], "topk": 0}, "topk: "),
        ({"queries": ["x"], "topk": 10**9}, "topk: "),
        ({"queries": ["x"] * 5000}, "queries: "),
    ],
)
def test_a_wrong_request_gets_an_error_that_says_what_is_wrong(
    url: str, body: object, message: str
) -> None:
    status, said = post(f"{url}/retrieve", body)
    assert status == 400
    assert message in said


def test_the_client_answers_as_the_index_itself_does(url: str, local: TantivyIndex) -> None:
    index = open_index(url)
    assert isinstance(index, Index)
    queries = ["capital", "Norway fjord", "", "\ud800", "“quoted” +a -b", "a" * 20_000, "東京"]
    queries += [document.text for document in drawn(40)]

    async def run() -> None:
        found = await asyncio.gather(
            *(index.search(query, k) for k, query in enumerate(queries, start=1))
        )
        for k, (query, hits) in enumerate(zip(queries, found, strict=True), start=1):
            assert hits == local.find(query, k)
        for town in TOWNS:
            assert await index.open(town.id) == town
        assert await index.open("atlantis") is None
        assert await index.open("\ud800") is None
        assert index.fingerprint == local.fingerprint
        await index.check()
        await index.close()

    asyncio.run(run())
    asyncio.run(run())


def test_a_document_is_opened_that_no_search_has_shown(url: str, local: TantivyIndex) -> None:
    async def use(search: Any, open_: Any) -> str:
        return await open_("oslo")  # type: ignore[no-any-return]

    text, log = in_episode(open_index(url), use)
    assert "Oslo lies" not in text
    assert "It lies on a fjord." in text
    assert (log.opened, log.index) == (["oslo"], local.fingerprint)


def test_a_server_can_stand_before_another(url: str, local: TantivyIndex) -> None:
    with served(url) as (outer, _):
        index = open_index(outer)

        async def run() -> tuple[list[Any], Document | None]:
            found = await index.search("capital", 4), await index.open("lyon")
            await index.close()
            return found

        assert asyncio.run(run()) == (local.find("capital", 4), TOWNS[1])


SILENCE = Response(after=asyncio.Event())


def ask(answer: Script, *queries: str, k: int = 3, **settings: Any) -> tuple[Any, list[Any]]:
    """Ask a server that answers what the test says; return hits (or the error) and requests."""

    async def run() -> tuple[Any, list[Any]]:
        async with FakeServer(answer) as server:
            index = HttpIndex(server.base_url, **{"max_retries": 0} | settings)
            try:
                return await asyncio.gather(*(index.search(q, k) for q in queries)), server.bodies
            except ToolFailure as error:
                return error, server.bodies
            finally:
                await index.close()

    return asyncio.run(run())


def entry(title: str, text: str, **more: Any) -> dict[str, Any]:
    return {"contents": f'"{title}"\n{text}', **more}


def echo(request: Request) -> Response:
    """Answer every query with itself."""
    result = [[{"document": entry(q, q, id=q), "score": 1.0}] for q in request.body["queries"]]
    return Response({"result": result})


def test_queries_of_the_same_moment_share_a_request() -> None:
    queries = [f"q{n}" for n in range(100)]
    found, bodies = ask(echo, *queries, batch_size=30, max_requests=2)
    assert [hits[0].document.id for hits in found] == queries
    assert sorted(len(body["queries"]) for body in bodies) == [10, 30, 30, 30]
    assert all(body["topk"] == 3 and body["return_scores"] is True for body in bodies)


def test_a_document_that_comes_twice_is_shown_once() -> None:
    texts = {"one": 0.9, "other": 0.8, "two": 0.7}
    ids = {"one": "d", "other": "e", "two": "d"}
    result = [{"document": entry("T", t, id=ids[t]), "score": s} for t, s in texts.items()]

    async def run() -> tuple[str, list[list[str]]]:
        async with FakeServer(Response({"result": [result]})) as server:
            model = vf.ScriptedModel([call_search(), "Done."])
            trace = await vf.rollout(Quiz(server.base_url), vf.Task("t", "Go."), model)
            return trace.messages[2].content, trace.info["search"]["found"]

    text, found = asyncio.run(run())
    assert text == (
        '<result id="d" title="T">\none\n</result>\n<result id="e" title="T">\nother\n</result>'
    )
    assert found == [["d", "e"]]


def test_a_request_that_nobody_waits_for_is_ended() -> None:
    async def run() -> None:
        async with FakeServer(SILENCE) as server:
            index = HttpIndex(server.base_url, timeout=600.0)
            asked = [asyncio.create_task(index.search(q, 1)) for q in "abc"]
            await until(lambda: server.bodies)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            await until(lambda: not index._batches._lanes.get().tasks)
            await index.close()

    asyncio.run(run())


def test_other_peoples_documents_are_read_too() -> None:
    """Without an id it is a hash of the contents; equal scores stand by id."""
    result = [
        {"document": entry("B", "two", id="b"), "score": 0.5},
        {"document": entry("A", "one", id=7), "score": 0.5},
        {"document": {"contents": "no title here"}, "score": 0.9},
        {"document": {"title": "T", "text": "other names", "docid": "z"}, "score": 0.1},
    ]
    (hits,), _ = ask(Response({"result": [result]}), "q", k=9)
    first, *rest = [hit.document for hit in hits]
    assert (first.title, first.text) == ("", "no title here")
    assert rest == [
        Document("7", "A", "one"),
        Document("b", "B", "two"),
        Document("z", "T", "other names"),
    ]
    (again,), _ = ask(Response({"result": [result[2:3]]}), "q")
    assert again[0].document.id == first.id


def test_documents_without_scores_keep_their_order() -> None:
    result = [entry(name, "x", id=name) for name in "cab"]
    (hits,), _ = ask(Response({"result": [result]}), "q")
    assert [hit.document.id for hit in hits] == ["c", "a", "b"]


def test_what_a_foreign_server_returned_can_be_opened() -> None:
    async def run() -> tuple[vf.Trace, list[Any]]:
        result = [[{"document": entry("T", "The text", id="d1"), "score": 1}]]
        async with FakeServer(Response({"result": result})) as server:
            calls = [
                vf.ToolCall("1", "open", '{"doc_id": "d1"}'),
                vf.ToolCall("2", "search", '{"query": "x"}'),
                vf.ToolCall("3", "open", '{"doc_id": "d1"}'),
            ]
            model = vf.ScriptedModel(
                [*(vf.Message("assistant", tool_calls=[c]) for c in calls), "."]
            )
            trace = await vf.rollout(Quiz(server.base_url), vf.Task("t", "Go."), model)
            assert trace.info["search"]["index"] == server.base_url
            return trace, server.bodies

    trace, bodies = asyncio.run(run())
    before, _, after = [message.content for message in trace.messages if message.role == "tool"]
    assert before == "Error: there is no document 'd1'; use an id that a search has shown"
    assert after == '<document id="d1" title="T">\nThe text\n</document>'
    assert all("queries" in body for body in bodies)


@pytest.mark.parametrize(
    "answer",
    [
        {"result": []},
        {"results": [[]]},
        {"result": [["text", 5]]},
        {"result": [{}]},
        {"result": [[{"document": {"id": "x"}, "score": 1}]]},
        {"result": [[{"document": {"contents": "x"}, "score": "high"}]]},
        {"result": [[{"document": {"contents": "x"}, "score": float("nan")}]]},
        {"result": None},
        {},
    ],
)
def test_an_answer_that_is_not_the_protocol_is_an_infrastructure_error(answer: Any) -> None:
    error, _ = ask(Response(answer), "q")
    assert isinstance(error, ToolFailure)
    assert "does not speak Search-R1's protocol" in str(error)


def test_passing_failures_are_tried_again() -> None:
    good = {"result": [[{"document": entry("T", "x", id="d"), "score": 1.0}]]}
    script = [Response("warming up", 503), Response(good)]
    (hits,), bodies = ask(script, "q", max_retries=2)
    assert hits[0].document.id == "d"
    assert len(bodies) == 2


def test_a_slow_retriever_is_an_infrastructure_error_in_time() -> None:
    error, bodies = ask(SILENCE, "a", "b", timeout=0.2, max_retries=1)
    assert isinstance(error, ToolFailure)
    assert "did not answer within 0.2 s (after 2 attempts)" in str(error)
    assert len(bodies) == 2


def call_search() -> vf.Message:
    return vf.Message("assistant", tool_calls=[vf.ToolCall("1", "search", '{"query": "x"}')])


def rollout(index: Index) -> vf.Trace:
    model = vf.ScriptedModel([call_search(), "Done."])
    return asyncio.run(vf.rollout(Quiz(index), vf.Task("t", "Go."), model))


def test_a_retriever_that_dies_costs_the_reward_and_is_never_text(tmp_path: Path) -> None:
    path = make_index(tmp_path).path
    with served(path) as (url, server):
        index = HttpIndex(url, timeout=60.0, max_retries=1)
        assert rollout(index).error is None
        server.kill()
        server.wait(60)
        trace = rollout(index)
    assert trace.error is not None
    assert (trace.error.boundary, trace.reward) == ("tool", None)
    assert "the retriever did not answer" in trace.error.message
    assert not [message for message in trace.messages if message.role == "tool"]
    with pytest.raises(ConfigError, match="`vf-rl search serve INDEX` starts one"):
        asyncio.run(SearchTools(index).check())


@pytest.mark.parametrize(
    "url", ["http://", "http://host:notaport", "ftp://x", "host:80", "http://x:99999"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a retriever's URL"):
        HttpIndex(url)


def test_search_r1s_own_form_of_the_url_is_taken() -> None:
    assert HttpIndex("http://127.0.0.1:8000/retrieve").url == "http://127.0.0.1:8000"


@pytest.mark.parametrize("settings", [{"timeout": 0}, {"max_retries": -1}, {"batch_size": 0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        HttpIndex("http://127.0.0.1:1", **settings)
