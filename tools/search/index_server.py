"""An index served with Search-R1's protocol: ``vf-rl search serve``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from vf.runtime.errors import ToolFailure
from vf.runtime.extras import load
from vf.runtime.http_door import Door
from vf.tools.search.contract import Index
from vf.tools.search.protocol import document_to_json

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MOST_BYTES = 8 * 2**20  # of a body
MOST_QUERIES = 4096  # in one request
MOST_RESULTS = 1000  # for one query
B = TypeVar("B", bound=BaseModel)


class Retrieve(BaseModel):
    """The body of ``POST /retrieve``."""

    queries: Annotated[list[str], Field(max_length=MOST_QUERIES)]
    topk: Annotated[int, Field(ge=1, le=MOST_RESULTS)] | None = None
    return_scores: bool = False


class Open(BaseModel):
    """The body of ``POST /open``."""

    ids: Annotated[list[str], Field(max_length=MOST_QUERIES)]


def build_app(index: Index, *, default_topk: int = 3, host: str = "127.0.0.1") -> Starlette:
    """Return the ASGI app that serves an index.

    Args:
        index: Any index, also another server's.
        default_topk: Documents per query of a request that does not say.
        host: Address that it listens on.

    Raises:
        ConfigError: If starlette is not installed.
    """
    load("starlette", "search")
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.routing import Route

    server = _Server(index, default_topk)
    return Starlette(
        middleware=[Middleware(Door, host=host, most=MOST_BYTES)],
        routes=[
            Route("/health", server.health),
            Route("/retrieve", server.retrieve, methods=["POST"]),
            Route("/open", server.open, methods=["POST"]),
        ],
    )


def serve(index: Index, *, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve an index until the process is stopped.

    Args:
        index: The index to serve.
        host: Address to listen on. The server has no passwords: other than on 127.0.0.1, anyone
            who reaches the port can read the documents.
        port: Port to listen on; 0 takes a free one, which is printed.

    Raises:
        ConfigError: If uvicorn is not installed.
    """
    uvicorn = load("uvicorn", "search")
    uvicorn.run(
        build_app(index, host=host), host=host, port=port, log_level="info", access_log=False
    )


class _Server:
    def __init__(self, index: Index, default_topk: int) -> None:
        self.index = index
        self.default_topk = default_topk

    async def health(self, request: Request) -> Response:
        return _json({"status": "ok", "index": self.index.fingerprint})

    async def retrieve(self, request: Request) -> Response:
        body = _parse(Retrieve, await request.body())
        if isinstance(body, str):
            return _error(body, 400)
        topk = body.topk or self.default_topk
        try:
            results = await asyncio.gather(*(self.index.search(q, topk) for q in body.queries))
        except ToolFailure as error:
            return _error(str(error), 502)
        result: list[list[Any]] = [
            [
                {"document": document_to_json(hit.document), "score": hit.score}
                if body.return_scores
                else document_to_json(hit.document)
                for hit in hits
            ]
            for hits in results
        ]
        return _json({"result": result, "index": self.index.fingerprint})

    async def open(self, request: Request) -> Response:
        body = _parse(Open, await request.body())
        if isinstance(body, str):
            return _error(body, 400)
        try:
            opened = await asyncio.gather(*(self.index.open(doc_id) for doc_id in body.ids))
        except ToolFailure as error:
            return _error(str(error), 502)
        documents = [
            None if document is None else document_to_json(document) for document in opened
        ]
        return _json({"documents": documents, "index": self.index.fingerprint})


def _parse(kind: type[B], raw: bytes) -> B | str:
    """Return the body, or what is wrong with it."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, p['loc'])) or 'body'}: {p['msg']}" for p in problems)


def _json(body: dict[str, Any], status: int = 200) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(body, status)


def _error(message: str, status: int) -> Response:
    return _json({"error": {"message": message, "code": status}}, status)
