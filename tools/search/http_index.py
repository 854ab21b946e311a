"""An index on another machine, behind Search-R1's protocol."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from vf.inference.wire import JsonClient
from vf.runtime.batching import Batcher, PerLoop
from vf.runtime.errors import ConfigError, ModelError, ToolFailure
from vf.tools.search.contract import Document, Hit
from vf.tools.search.protocol import document_from_json, hits_from_json
from vf.tools.search.sources import clean

_PROBE = "search"  # a query to see who answers


class HttpIndex:
    """A retriever that speaks Search-R1's protocol: ``vf-rl search serve``, or another's.

    Queries that are asked at about the same time go in one request. A retriever that does not
    answer is an infrastructure error, after retries with backoff; with the defaults it is reported
    before a tool call's own 30 seconds are over.

    A retriever that is not ours cannot look a document up: :meth:`open` finds none there, and the
    search tools open what a search of the same episode returned.

    Args:
        url: ``http://host:port``, with or without ``/retrieve``.
        api_key: Sent as a bearer token if given.
        timeout: Seconds for one attempt.
        max_retries: Attempts after the first.
        batch_size: Most queries in one request.
        max_requests: Most concurrent requests.

    Raises:
        ConfigError: If the URL is not one, or a number is out of range.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 8.0,
        max_retries: int = 2,
        batch_size: int = 64,
        max_requests: int = 8,
    ) -> None:
        if timeout <= 0 or max_retries < 0 or batch_size < 1 or max_requests < 1:
            raise ConfigError(
                f"the retriever's timeout ({timeout}), batch_size ({batch_size}) and max_requests "
                f"({max_requests}) must be positive, max_retries ({max_retries}) not negative"
            )
        self.url = _base(url)
        self._clients = PerLoop(
            lambda: JsonClient(self.url, api_key=api_key, timeout=timeout, max_retries=max_retries)
        )
        self._batches: Batcher[tuple[str, int], list[Hit]] = Batcher(
            self._retrieve, size=batch_size, concurrency=max_requests
        )
        self._fingerprint: str | None = None
        self._has_fingerprint = False

    @property
    def fingerprint(self) -> str:
        """The server's hash of its content; its URL if there is none, or none yet."""
        return self._fingerprint or self.url

    async def search(self, query: str, k: int) -> list[Hit]:
        """Return the best documents for a query in plain words.

        Raises:
            ToolFailure: If the server refused, did not answer, or broke the protocol.
        """
        return await self._batches.ask((query, k))

    async def open(self, doc_id: str) -> Document | None:
        """Return one document; None if the server has none of this id or cannot look it up.

        Raises:
            ToolFailure: If the server did not answer.
        """
        if not self._has_fingerprint:
            await self.search(_PROBE, 1)
        if self._fingerprint is None:
            return None
        answer = await self._post("/open", {"ids": [clean(doc_id)]})
        try:
            [raw] = answer["documents"]
            return None if raw is None else document_from_json(raw)
        except (KeyError, TypeError, ValueError) as error:
            raise ToolFailure(f"{self.url}/open answered with {_start(answer)}") from error

    async def check(self) -> None:
        """Ask the server something.

        Raises:
            ConfigError: If it does not answer.
        """
        try:
            await self.search(_PROBE, 1)
        except ToolFailure as error:
            raise ConfigError(
                f"cannot search: {error}. Is it running? `vf-rl search serve INDEX` starts one"
            ) from error

    async def close(self) -> None:
        """Close this loop's connections. The next search opens them again."""
        client = self._clients.pop()
        if client is not None:
            await client.close()

    async def _retrieve(self, queries: list[tuple[str, int]]) -> list[list[Hit]]:
        body = {
            "queries": [clean(query) for query, _ in queries],
            "topk": max(k for _, k in queries),
            "return_scores": True,
        }
        answer = await self._post("/retrieve", body)
        try:
            results = [hits_from_json(result) for result in answer["result"]]
            if len(results) != len(queries):
                raise ValueError(f"{len(results)} results for {len(queries)} queries")
        except (KeyError, TypeError, ValueError) as error:
            raise ToolFailure(
                f"{self.url}/retrieve does not speak Search-R1's protocol ({error}): "
                f"{_start(answer)}"
            ) from error
        fingerprint = answer.get("index")
        self._fingerprint, self._has_fingerprint = (
            fingerprint if isinstance(fingerprint, str) else None,
            True,
        )
        return [hits[:k] for hits, (_, k) in zip(results, queries, strict=True)]

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._clients.get().post(path, body)
        except ModelError as error:  # the client is the models', the failure is a tool's
            raise ToolFailure(f"the retriever did not answer: {error}") from error


def _base(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"{url!r} is not a retriever's URL: write it as http://host:port")
    return url.rstrip("/").removesuffix("/retrieve").rstrip("/")


def _start(answer: dict[str, Any]) -> str:
    text = repr(answer)
    return text if len(text) <= 300 else text[:300] + "..."
