"""Running the embedded engine's app on a local port, in a thread of its own."""

from __future__ import annotations

import threading
import time

import uvicorn
from starlette.applications import Starlette

from vf.runtime.errors import EngineError

START_TIMEOUT = 30.0


class ServerThread:
    """Serves an ASGI app on 127.0.0.1 until :meth:`stop`.

    Args:
        app: What to serve.
        port: 0 takes a free one.

    Raises:
        EngineError: The port is in use, or the server does not come up (from :meth:`start`).
    """

    def __init__(self, app: Starlette, port: int = 0) -> None:
        config = uvicorn.Config(
            app,
            host="127.0.0.1",
            port=port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._port = port
        self._thread = threading.Thread(target=self._serve, name="vf-embedded-server", daemon=True)
        self._failure: BaseException | None = None

    @property
    def base_url(self) -> str:
        """The OpenAI base URL, up to and including ``/v1``."""
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/v1"

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
            self._server.run()
        except BaseException as error:  # uvicorn exits with SystemExit if it cannot bind
            self._failure = error
