"""An Elasticsearch or OpenSearch index, through its official client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from vf.runtime.batching import PerLoop
from vf.runtime.errors import ConfigError, ToolFailure
from vf.runtime.extras import load
from vf.tools.search.contract import Document, Hit
from vf.tools.search.sources import clean

_TIES = 16  # more than asked for, so that equal scores at the end can be ordered


class ElasticIndex:
    """One index of an Elasticsearch- or OpenSearch-compatible server.

    It is searched with ``multi_match`` over title and text. Equal scores stand by document id;
    where many documents tie for the last place, name ``id_field`` to have the server decide by
    it. Replicas may score differently: the searches of an index stay with the same copies.

    Args:
        url: URL of the server.
        index: Name of the index.
        client: The official client: ``elasticsearch`` or ``opensearch``. Each has an extra.
        title_field: Field of the title; None if there is none.
        text_field: Field of the text.
        id_field: A keyword field that holds the document id, to break ties by.
        timeout: Seconds for one attempt.
        max_retries: Attempts after the first.
        settings: More arguments for the client, such as ``basic_auth``.

    Raises:
        ConfigError: If the client is not installed, or refuses its arguments.
    """

    def __init__(
        self,
        url: str,
        index: str,
        *,
        client: Literal["elasticsearch", "opensearch"] = "elasticsearch",
        title_field: str | None = "title",
        text_field: str = "text",
        id_field: str | None = None,
        timeout: float = 8.0,
        max_retries: int = 2,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.index = index
        self._title, self._text, self._id = title_field, text_field, id_field
        common = {"max_retries": max_retries, "retry_on_timeout": True, **(settings or {})}
        make: Callable[[], Any]
        if client == "elasticsearch":
            elasticsearch = load("elasticsearch", "elasticsearch")
            make = lambda: elasticsearch.AsyncElasticsearch(  # noqa: E731
                url, request_timeout=timeout, **common
            )
        elif client == "opensearch":
            opensearch = load("opensearchpy", "opensearch")
            make = lambda: opensearch.AsyncOpenSearch(url, timeout=timeout, **common)  # noqa: E731
        else:
            raise ConfigError(f"client must be elasticsearch or opensearch, got {client!r}")
        self._clients = PerLoop(make)

    @property
    def fingerprint(self) -> str:
        """The address: such a server has no hash of its content."""
        return f"{self.url}/{self.index}"

    async def search(self, query: str, k: int) -> list[Hit]:
        """Return the best documents for a query in plain words.

        Raises:
            ToolFailure: If the server refused or did not answer.
        """
        fields = [self._text] if self._title is None else [self._title, self._text]
        body: dict[str, Any] = {
            "query": {
                "multi_match": {"query": clean(query), "fields": fields, "type": "most_fields"}
            },
            "size": k + _TIES,
            "_source": fields,
            "track_total_hits": False,
        }
        if self._id is not None:
            body |= {"sort": ["_score", {self._id: "asc"}], "track_scores": True, "size": k}
        try:
            answer = await self._client().search(index=self.index, body=body, preference="vf-rl")
            hits = [
                Hit(self._document(raw), float(raw["_score"])) for raw in answer["hits"]["hits"]
            ]
        except Exception as error:  # the two clients have a tree of errors each
            raise self._failed(error) from error
        if self._id is None:
            hits.sort(key=lambda hit: (-hit.score, hit.document.id))
        return hits[:k]

    async def open(self, doc_id: str) -> Document | None:
        """Return one document, None if there is none of this id.

        Raises:
            ToolFailure: If the server refused or did not answer.
        """
        if not doc_id or len(doc_id.encode("utf-8", "replace")) > 512:  # the servers' own limit
            return None
        try:
            return self._document(await self._client().get(index=self.index, id=clean(doc_id)))
        except Exception as error:
            if getattr(error, "status_code", None) == 404:
                return None
            raise self._failed(error) from error

    async def check(self) -> None:
        """Search for a word.

        Raises:
            ConfigError: If the server or the index does not answer.
        """
        try:
            await self.search("search", 1)
        except ToolFailure as error:
            raise ConfigError(f"cannot search: {error}") from error

    async def close(self) -> None:
        """Close this loop's connections. The next search opens them again."""
        client = self._clients.pop()
        if client is not None:
            await client.close()

    def _client(self) -> Any:
        return self._clients.get()

    def _document(self, raw: Mapping[str, Any]) -> Document:
        source = raw["_source"]
        title = "" if self._title is None else source.get(self._title) or ""
        return Document(str(raw["_id"]), clean(str(title)), clean(str(source[self._text])))

    def _failed(self, error: Exception) -> ToolFailure:
        return ToolFailure(f"{self.fingerprint} did not answer: {type(error).__name__}: {error}")
