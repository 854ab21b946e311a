"""A server with OpenAI's API that answers from a script."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, Self, TypeAlias

from aiohttp import web

from vf.inference.models.scripted_model import Line, as_reply
from vf.testing.responses import Request, Response
from vf.traces.messages import Message

POLL_SECONDS = 0.01

# A line as ScriptedModel has it, a whole response, or an error that ends the connection.
Answer: TypeAlias = Line | Response | ConnectionError
Script: TypeAlias = Answer | Iterable[Answer] | Callable[[Request], Answer | Awaitable[Answer]]


class FakeServer:
    """An OpenAI-compatible API on this machine that answers from a script. It does not stream.

    Use it as a context manager, ``async with`` in the running event loop or ``with`` in a thread.
    Each takes a free port.

    Example::

        with FakeServer([Response("busy", status=503), "Paris"]) as server:
            model = vf.ChatModel("fake", base_url=server.base_url)
            ...
        assert server.requests[0].body["messages"][0]["content"] == "The capital of France?"

    Args:
        script: The answers in their order, one for each request, or a function of the
            :class:`Request`, sync or async. A single answer is given to every request. An answer is
            a line as :class:`~vf.inference.models.scripted_model.ScriptedModel` has it (text, a
            message, or ``{tool_name: arguments}``), a :class:`Response`, or a ``ConnectionError``,
            which closes the connection without an answer.
        models: The entries of ``GET /v1/models``, as names or with more fields; such a request is
            not in ``requests``. With None, the script answers it, too.
        port: The port; 0 chooses a free one, which stays the same if the server is started again.

    Attributes:
        requests: The requests so far.

    Raises:
        LookupError: If a request came after the end of the script. Like every exception of the
            script, it is answered with status 400 and raised at the end of the block.
    """

    def __init__(
        self,
        script: Script = (),
        *,
        models: Sequence[str | Mapping[str, Any]] | None = ("fake",),
        port: int = 0,
    ) -> None:
        if isinstance(script, str | Message | Mapping | Response | ConnectionError):
            script = itertools.repeat(script)
        self._script = script if callable(script) else iter(script)
        self._models = models
        self._port = port
        self._failure: Exception | None = None
        self._running = AsyncExitStack()
        self._thread = ExitStack()
        self.requests: list[Request] = []

    @property
    def url(self) -> str:
        """Where it listens, such as ``http://127.0.0.1:40123``."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        """Where its API is, up to and including ``/v1``."""
        return f"{self.url}/v1"

    @property
    def bodies(self) -> list[Any]:
        """The bodies of the requests."""
        return [request.body for request in self.requests]

    async def start(self) -> None:
        """Listen; after ``stop``, at the same port.

        Raises:
            OSError: If the port is in use.
        """
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._port = await self._running.enter_async_context(listening(app, self._port))

    async def stop(self) -> None:
        """Close all connections, and refuse new ones."""
        await self._running.aclose()

    async def __aenter__(self) -> Self:
        """Listen."""
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Stop, and raise what went wrong in the script."""
        await self.stop()
        failure, self._failure = self._failure, None
        if failure is not None and error is None:
            raise failure
        if failure is not None and error is not None:
            error.add_note(f"the fake server's script failed: {failure!r}")

    def __enter__(self) -> Self:
        """Listen, in a thread."""
        with ExitStack() as exits:
            run = exits.enter_context(_loop_in_a_thread())
            run(self.start())
            exits.push(lambda *error: run(self.__aexit__(*error)))
            self._thread = exits.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop, and raise what went wrong in the script."""
        self._thread.__exit__(*error)

    async def _handle(self, incoming: web.Request) -> web.Response:
        if self._models is not None and (incoming.method, incoming.path) == ("GET", "/v1/models"):
            cards = [{"id": card} if isinstance(card, str) else card for card in self._models]
            data = [{"object": "model", "owned_by": "fake", **card} for card in cards]
            return web.json_response({"object": "list", "data": data})
        model = ""
        try:
            request = await _read(incoming)
            self.requests.append(request)
            if isinstance(request.body, dict):
                model = str(request.body.get("model"))
                if request.body.get("stream"):
                    raise NotImplementedError("the fake server does not stream")
            response = await self._response(request, len(self.requests) - 1)
            body = response.content(model)
        except ConnectionError:
            if incoming.transport is not None:
                incoming.transport.abort()
            return web.Response()
        except Exception as failure:
            self._failure = self._failure or failure
            response = Response(f"the fake server's script failed: {failure!r}", status=400)
            body = response.content(model)
        # Its event may be set in another thread, where asyncio's wake nobody.
        while response.after is not None and not response.after.is_set():  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        headers = {"Content-Type": "application/json", **(response.headers or {})}
        return web.Response(body=body, status=response.status, headers=headers)

    async def _response(self, request: Request, number: int) -> Response:
        if not callable(self._script):
            answer = next(self._script, None)
            if answer is None:
                target = f"{request.method} {request.path}"
                raise LookupError(f"the script has no answer to request {number + 1}, {target}")
        else:
            result = self._script(request)
            answer = await result if inspect.isawaitable(result) else result
        if isinstance(answer, ConnectionError):
            raise answer
        return answer if isinstance(answer, Response) else Response(as_reply(answer, number))


async def _read(request: web.Request) -> Request:
    text = await request.text()
    try:
        body = json.loads(text) if text else None
    except ValueError:
        body = text
    return Request(request.method, request.path, request.query, request.headers, body)


@asynccontextmanager
async def listening(app: web.Application, port: int = 0) -> AsyncIterator[int]:
    """Serve an application on this machine; yields the port.

    A handler is cancelled when its client goes away.
    """
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextmanager
def _loop_in_a_thread() -> Iterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """Yield a function that runs a coroutine in the thread's event loop, and waits."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake-server", daemon=True)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
