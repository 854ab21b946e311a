"""An ASGI app behind a port, in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
import time

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from vf.runtime.errors import EngineError
from vf.runtime.garbage import fewer_collections
from vf.runtime.open_files import burst, connections

START_TIMEOUT = 30.0
OTHERS = 16  # connections beside those of the run's own client


class BoundedHttp(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """HTTP that closes connections beyond what the limit of open files allows.

    At the limit itself, the process could open nothing any more, and asyncio does not recover.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin a connection, or close it: its client is to come back."""
        super().connection_made(transport)
        if len(self.connections) > connections() + OTHERS:
            transport.abort()


class ServerThread:
    """Serves an ASGI app until :meth:`stop`.

    Args:
        app: The ASGI app to serve.
        port: 0 takes a free one.
        host: The address to listen on.
        address: Under which a server that listens on all addresses is asked, if not on this
            machine's own.

    Raises:
        EngineError: If the port is in use, or the server does not come up (from :meth:`start`).
    """

    def __init__(
        self, app: ASGIApp, port: int = 0, host: str = "127.0.0.1", address: str | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedHttp,
            ws="none",
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
            backlog=burst(),
        )
        self._server = uvicorn.Server(config)
        self._port = port
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        own = (address or everywhere[host]) if host in everywhere else host
        self._host = f"[{own}]" if ":" in own else own
        self._thread = threading.Thread(target=self._serve, name="vf-embedded-server", daemon=True)
        self._failure: BaseException | None = None

    @property
    def base_url(self) -> str:
        """The OpenAI base URL, up to and including ``/v1``."""
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://{self._host}:{port}/v1"

    def start(self) -> None:
        """Start serving, and return when requests are answered."""
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise EngineError(
                    f"the embedded server could not listen on port {self._port}; "
                    "is it in use? port = 0 takes a free one"
                ) from self._failure
            time.sleep(0.01)

    def check(self) -> None:
        """Raise EngineError if the server's thread has died."""
        if not self._thread.is_alive():
            raise EngineError(f"the embedded server died: {self._failure!r}") from self._failure

    def stop(self) -> None:
        """Stop serving. Safe to call twice."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(timeout=10.0)

    def _serve(self) -> None:
        try:
            with fewer_collections():  # of torch's objects, one takes a second, and answers wait
                self._server.run()
        except BaseException as error:  # uvicorn exits with SystemExit if it cannot bind
            self._failure = error
