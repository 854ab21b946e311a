"""The HTTP server behind the endpoints of all rollouts of one event loop."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web
from pydantic_core import from_json, to_json

from vf.inference.endpoint.address import Endpoint
from vf.inference.endpoint.anthropic import Anthropic
from vf.inference.endpoint.chat import Chat
from vf.inference.endpoint.dialect import Answered, Dialect, ModelRequest, Refusal
from vf.inference.endpoint.request_bodies import RequestBodies
from vf.inference.endpoint.responses import Responses
from vf.inference.request_limits import MOST_BYTES, off_loop
from vf.runtime.batching import PerLoop
from vf.runtime.temporary import make_temporary_folder, remove_tree
from vf.traces.messages import Message

PING_SECONDS = 10.0  # between signs of life while an answer is sampled that is wanted as a stream
_STOP_SECONDS = 1.0  # for responses that are being sent when the last rollout ends
_LINGER_SECONDS = 0.25  # for which more of a refused body is read, so that its sender hears why
_MOST_LINGERING = 32  # bodies that are read so at once; hundreds would keep the event loop busy
_QUIET = logging.getLogger(f"{__name__}.requests")  # requests that are not HTTP are not our errors
_QUIET.setLevel(logging.CRITICAL)
_SOCKET = "socket"
_LONGEST_PARENT = 64  # characters: a socket's path has 37 more; Linux takes 107, macOS 103
_PING = b": the answer is being sampled\n\n"
_EVENTS = "text/event-stream"

CHAT = Chat()
DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": Responses(),
    "/v1/messages": Anthropic(),
}
COUNTS = "/v1/messages/count_tokens"  # of a dialect's path, and what it adds


class Answering(Protocol):
    """A rollout, as the server needs it."""

    endpoint: Endpoint
    strict_model: bool
    stored: Mapping[str, Sequence[Message]]
    reading: asyncio.Lock
    turns: asyncio.Semaphore
    context: int | None

    async def answer(self, request: ModelRequest, *, key: int | None, retry: bool) -> Answered:
        """Answer a request."""
        ...

    async def count(self, request: ModelRequest) -> int:
        """Return how many tokens a request's prompt has."""
        ...

    def report(self, reward: Any) -> None:
        """Take a reward."""
        ...

    def unexpected(self, error: Exception) -> None:
        """Record a fault of the endpoint's own."""
        ...


class _Server:
    """Listens while there are rollouts."""

    def __init__(self) -> None:
        self.sessions: dict[str, Answering | None] = {}  # None: it has ended
        self.request_bodies = RequestBodies()
        self.lingering = 0
        self.open = 0
        self.starting = asyncio.Lock()
        self.runner: web.AppRunner | None = None
        self.folder = Path()
        self.port = 0

    @property
    def socket(self) -> Path:
        return self.folder / _SOCKET

    async def enter(self) -> None:
        async with self.starting:
            self.open += 1
            if self.runner is None:
                try:
                    await self._start()
                except BaseException:
                    self.open -= 1
                    await self._stop()
                    raise

    async def leave(self) -> None:
        async with self.starting:
            self.open -= 1
            if self.open == 0:
                await self._stop()

    async def _start(self) -> None:
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_route("*", "/r/{rollout}{path:/.*}", self.handle)
        app.router.add_route("*", "/{path:.*}", self.lost)
        runner = self.runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,  # a client that has gone waits for no answer
            lingering_time=0.0,  # see refuse
            logger=_QUIET,
            shutdown_timeout=_STOP_SECONDS,
        )
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        self.port = runner.addresses[0][1]
        temporary = tempfile.gettempdir()
        where = "/tmp" if len(temporary) > _LONGEST_PARENT else temporary
        self.folder = await asyncio.to_thread(make_temporary_folder, "endpoint", where)
        await web.UnixSite(runner, str(self.socket), backlog=1024).start()

    async def _stop(self) -> None:
        runner, self.runner = self.runner, None
        self.sessions.clear()
        if runner is not None:
            await runner.cleanup()
        if self.folder != Path():
            remove_tree(self.folder)
            self.folder = Path()

    async def lost(self, request: web.Request) -> web.StreamResponse:
        return _failure(CHAT, Refusal(f"there is nothing at {request.path}", 404))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        dialect = DIALECTS.get(path.removesuffix("/count_tokens"), CHAT)
        session: Answering | None = None
        try:
            session = self._session(request, path)
            if request.method != "POST":
                return _listed(request, path, session)
            rollout = request.match_info["rollout"]
            body = self.request_bodies.read(request, rollout, session.context)
            async with session.turns, body as raw:
                return await _respond(request, raw, path, dialect, session)
        except Refusal as refusal:
            return await self.refuse(request, _failure(dialect, refusal))
        except ConnectionError:
            raise
        except Exception as error:
            if session is not None:
                session.unexpected(error)
            text = f"the endpoint failed: {type(error).__name__}: {error}"
            return _failure(dialect, Refusal(text, 500))

    async def refuse(self, request: web.Request, response: web.Response) -> web.Response:
        """Send a refusal, and read more of the body for a moment, unless there are many."""
        if request.content.is_eof():
            return response
        response.force_close()
        await response.prepare(request)
        await response.write_eof()
        if self.lingering < _MOST_LINGERING:
            self.lingering += 1
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LINGER_SECONDS):
                        while await request.content.readany():
                            pass
            finally:
                self.lingering -= 1
        return response

    def _session(self, request: web.Request, path: str) -> Answering:
        """Return whose request it is.

        Raises:
            Refusal: If it belongs to no running rollout, or its key is wrong.
        """
        rollout = request.match_info["rollout"]
        if rollout not in self.sessions:
            raise Refusal(f"there is no rollout {rollout[:64]!r}", 404, code="rollout_not_found")
        session = self.sessions[rollout]
        if session is None:
            raise Refusal("this rollout has ended", 410, code="rollout_ended")
        endpoint = session.endpoint
        given: str = request.headers.get("x-api-key") or request.headers.get("Authorization") or ""
        given = given[7:] if given[:7].lower() == "bearer " else given
        expected = endpoint.reward_key if path == "/reward" else endpoint.key
        if not hmac.compare_digest(given.strip().encode("utf-8", "replace"), expected.encode()):
            text = "the API key is missing or not that of this rollout"
            raise Refusal(text, 401, code="invalid_api_key")
        return session


_SERVERS = PerLoop(_Server)


@asynccontextmanager
async def serving(session: Answering, rollout: str) -> AsyncIterator[tuple[str, Path]]:
    """Serve a rollout; yield its base URL, and the Unix socket of the same server.

    Requests get 410 after the end of the block, for as long as the server is there for others.
    """
    server = _SERVERS.get()
    await server.enter()
    try:
        server.sessions[rollout] = session
        yield f"http://127.0.0.1:{server.port}/r/{rollout}/v1", server.socket
    finally:
        server.sessions[rollout] = None
        await server.leave()


async def _respond(
    request: web.Request, raw: bytes, path: str, dialect: Dialect, session: Answering
) -> web.StreamResponse:
    if not _is_posted(path):
        raise Refusal(f"there is nothing at {path}", 404)
    if path == "/reward":
        reward = _parsed(raw).get("reward")
        session.report(reward)
        return _json({"reward": reward})

    def read() -> ModelRequest:
        defaults = {"max_tokens": 1} if path == COUNTS else {}
        return dialect.read(defaults | _parsed(raw), session.stored)

    async with session.reading:  # one body of a rollout at a time: others have their turns
        parsed = await off_loop(len(raw), read)
    if path == COUNTS:
        return _json({"input_tokens": await session.count(parsed)})
    retry = _is_retry(request.headers.get("x-stainless-retry-count", ""))
    answer = session.answer(parsed, key=hash((path, raw)), retry=retry)
    if not parsed.stream:
        return _json(dialect.answer(parsed, await answer))
    return await _stream(request, dialect, parsed, asyncio.ensure_future(answer))


async def _stream(
    request: web.Request, dialect: Dialect, parsed: ModelRequest, answer: asyncio.Future[Answered]
) -> web.StreamResponse:
    """Send an answer as events once it is there, and signs of life until then."""
    try:
        await asyncio.wait({answer}, timeout=PING_SECONDS)
        if answer.done():  # a refusal still has its own status
            events = b"".join(dialect.events(parsed, answer.result()))
            return web.Response(body=events, content_type=_EVENTS, headers=_no_cache())
        response = web.StreamResponse(headers={"Content-Type": _EVENTS, **_no_cache()})
        await response.prepare(request)
        while not answer.done():
            await response.write(_PING)
            await asyncio.wait({answer}, timeout=PING_SECONDS)
        try:
            events = b"".join(dialect.events(parsed, answer.result()))
        except Refusal as refusal:
            events = b"".join(dialect.failure(parsed, refusal))
        await response.write(events)
        await response.write_eof()
        return response
    finally:
        if not answer.cancel() and not answer.cancelled():
            answer.exception()  # a client that has gone is not told


def _parsed(raw: bytes) -> dict[str, Any]:
    """Return a body.

    Raises:
        Refusal: If the body is not a JSON object.
    """
    try:
        try:
            body = from_json(raw, allow_inf_nan=False)
        except ValueError:
            # JavaScript writes half a surrogate pair where a text was cut within a character.
            text = json.dumps(json.loads(raw), ensure_ascii=False, allow_nan=False)
            body = from_json(text.encode("utf-8", "replace"), allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal(f"the body must be a JSON object, got {type(body).__name__}")
    return body


def _is_posted(path: str) -> bool:
    return path in {"/reward", COUNTS, *DIALECTS}


def _listed(request: web.Request, path: str, session: Answering) -> web.Response:
    """Answer what is no POST request.

    Raises:
        Refusal: If there is nothing of that kind.
    """
    if path.startswith("/v1/models") and request.method == "GET":
        return _models(path, session)
    if _is_posted(path):
        raise Refusal(f"{path} takes POST requests", 405)
    raise Refusal(f"there is nothing at {path}", 404)


def _is_retry(count: str) -> bool:
    return count.isdecimal() and int(count[:9]) > 0


def _models(path: str, session: Answering) -> web.Response:
    """Return the list of models, as OpenAI's and Anthropic's clients read it, or one of them.

    Raises:
        Refusal: If there is no model of that name.
    """
    model = session.endpoint.model
    card = {
        "id": model,
        "object": "model",
        "type": "model",
        "display_name": model,
        "created": 0,
        "created_at": "1970-01-01T00:00:00Z",
        "owned_by": "vf-rl",
    }
    name = path.removeprefix("/v1/models").removeprefix("/")
    if name and (name == model or not session.strict_model):
        return _json(card | {"id": name})
    if name:
        text = f"The model {name[:64]!r} does not exist; this endpoint has {model!r}"
        raise Refusal(text, 404, code="model_not_found", param="model")
    ends = {"first_id": model, "last_id": model, "has_more": False}
    return _json({"object": "list", "data": [card], **ends})


def _json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=to_json(body), status=status, headers=headers, content_type="application/json"
    )


def _failure(dialect: Dialect, refusal: Refusal) -> web.Response:
    # The model has been asked as often as there is sense in: a client need not try again.
    headers = {"x-should-retry": "false"} if refusal.status >= 500 else None
    return _json(dialect.error(refusal), refusal.status, headers)


def _no_cache() -> dict[str, str]:
    return {"Cache-Control": "no-cache"}
