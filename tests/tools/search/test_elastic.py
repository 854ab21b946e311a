"""The Elasticsearch and OpenSearch adapter: official clients against a small server of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest

from tests.tools.search.corpus import TOWNS
from vf.runtime.errors import ConfigError, ToolFailure
from vf.testing import FakeServer, Request, Response
from vf.tools.search.contract import Index
from vf.tools.search.elastic import ElasticIndex

Client = Literal["elasticsearch", "opensearch"]
MODULES: dict[Client, str] = {"elasticsearch": "elasticsearch", "opensearch": "opensearchpy"}


def towns(request: Request) -> Response:
    """Answer as those servers do: every town that shares a word scores 1."""

    def answer(body: object, status: int = 200) -> Response:
        return Response(body, status, {"X-Elastic-Product": "Elasticsearch"})

    def source(town: Any) -> dict[str, Any]:
        return {"_id": town.id, "_source": {"title": town.title, "text": town.text}}

    match request.path.split("/")[1:]:
        case ["broken", "_search"]:
            return answer({"error": {"type": "x", "reason": "shards failed"}, "status": 500}, 500)
        case [_, "_search"]:
            words = set(request.body["query"]["multi_match"]["query"].lower().split())
            found = [town for town in reversed(TOWNS) if words & set(town.text.lower().split())]
            hits = [source(town) | {"_score": 1.0} for town in found[: request.body["size"]]]
            return answer({"took": 1, "timed_out": False, "hits": {"hits": hits}})
        case [_, "_doc", id] if found := [town for town in TOWNS if town.id == id]:
            return answer({"found": True, **source(found[0])})
    return answer({"_index": "towns", "_id": "x", "found": False}, 404)


def ask(
    client: Client, use: Callable[[ElasticIndex], Any], name: str = "towns", **settings: Any
) -> tuple[Any, list[Request]]:
    pytest.importorskip(MODULES[client])

    async def run() -> tuple[Any, list[Request]]:
        async with FakeServer(towns) as server:
            index = ElasticIndex(server.url, name, client=client, max_retries=0, **settings)
            assert isinstance(index, Index)
            try:
                return await use(index), server.requests
            finally:
                await index.close()

    return asyncio.run(run())


@pytest.mark.parametrize("client", MODULES)
def test_what_the_server_finds_comes_in_the_order_of_the_contract(client: Client) -> None:
    hits, [asked] = ask(client, lambda index: index.search("the capital (of ~ norway\ud800", 2))
    assert [hit.document.id for hit in hits] == ["oslo", "ouaga"]
    assert asked.body["query"]["multi_match"]["query"] == "the capital (of ~ norway?"
    assert asked.query["preference"]


@pytest.mark.parametrize("client", MODULES)
def test_with_a_field_for_the_id_the_server_breaks_ties(client: Client) -> None:
    _, [asked] = ask(client, lambda index: index.search("capital", 2), id_field="key")
    assert (asked.body["sort"], asked.body["size"]) == (["_score", {"key": "asc"}], 2)


@pytest.mark.parametrize("client", MODULES)
def test_documents_are_opened_by_id(client: Client) -> None:
    async def use(index: ElasticIndex) -> list[Any]:
        return [await index.open(doc_id) for doc_id in ("oslo", "atlantis", "", "x" * 600)]

    assert ask(client, use)[0] == [TOWNS[2], None, None, None]


@pytest.mark.parametrize("client", MODULES)
def test_a_server_that_fails_or_is_gone_is_an_infrastructure_error(client: Client) -> None:
    async def search(index: ElasticIndex) -> None:
        await index.search("capital", 2)

    with pytest.raises(ToolFailure, match="/broken did not answer"):
        ask(client, search, "broken")

    async def gone() -> None:
        index = ElasticIndex("http://127.0.0.1:9", "towns", client=client, max_retries=0)
        try:
            await index.check()
        finally:
            await index.close()

    with pytest.raises(ConfigError, match=r"cannot search: http://127\.0\.0\.1:9/towns did not"):
        asyncio.run(gone())


@pytest.mark.parametrize("client", MODULES)
def test_a_closed_index_opens_its_connections_again(client: Client) -> None:
    pytest.importorskip(MODULES[client])

    async def run() -> list[int]:
        async with FakeServer(towns) as server:
            index = ElasticIndex(server.url, "towns", client=client)
            found = []
            for _ in range(2):
                found.append(len(await index.search("capital", 9)))
                await index.close()
            return found

    assert asyncio.run(run()) == [3, 3]


def test_the_client_must_be_one_of_two() -> None:
    with pytest.raises(ConfigError, match="must be elasticsearch or opensearch"):
        ElasticIndex("http://x", "y", client="solr")  # type: ignore[arg-type]
