"""The embedded engine with its server, as the trainer owns them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import uvicorn
from starlette.applications import Starlette
from transformers import PreTrainedModel

from vf.inference.completions import TokenClient
from vf.inference.embedded.app import build_app
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.rendering.renderer import Renderer
from vf.inference.serving import Serving
from vf.inference.settings import EmbeddedSettings
from vf.inference.wire import JsonClient
from vf.runtime.errors import EngineError


class EmbeddedServer:
    """Serves the trainer's own module; an :class:`~vf.inference.engine.Engine`.

    Args:
        settings: ``[inference]``.
        module: The module to generate with, adapters included. Shared, never copied.
        renderer: Chat template and parser.
        model: The name to serve it under.
        max_seq_len: Most tokens in one context.
    """

    def __init__(
        self,
        settings: EmbeddedSettings,
        module: PreTrainedModel,
        renderer: Renderer,
        model: str,
        *,
        max_seq_len: int,
    ) -> None:
        self.serving = Serving(model)
        self.engine = EmbeddedEngine(
            module,
            max_seq_len=max_seq_len,
            max_requests=settings.args.max_requests,
            max_batch_tokens=settings.args.max_batch_tokens,
        )
        app = build_app(self.engine, renderer, model)
        self._server = ServerThread(app, settings.port, settings.host)

    @property
    def base_url(self) -> str:
        """The OpenAI base URL, up to and including ``/v1``."""
        return self._server.base_url

    def start(self, say: Callable[[str], None]) -> None:
        """Start generation and serving; both are up in a moment.

        Raises:
            EngineError: The model cannot generate this way, or the port is in use.
        """
        self.engine.start()
        self._server.start()

    def stop(self) -> None:
        """Stop immediately. Safe to call twice."""
        try:
            self._server.stop()
        finally:  # a signal may come while it waits
            self.engine.stop()

    def check(self) -> None:
        """Raise EngineError if a thread has died."""
        self.engine.check()
        self._server.check()

    def sampler(self, timeout: float) -> TokenClient:
        """Return a client that samples from the server."""
        return TokenClient(JsonClient(self.base_url, timeout=timeout), self.serving)

    def training(self) -> AbstractContextManager[None]:
        """Hold generation still: the weights that it samples from are about to change."""
        return self.engine.paused()

    def publish(self, version: int) -> None:
        """Call the weights now in the module ``version``."""
        self.engine.publish(version)
        self.serving.switch(self.serving.served.model, version)


START_TIMEOUT = 30.0


class ServerThread:
    """Serves an ASGI app until :meth:`stop`.

    Args:
        app: What to serve.
        port: 0 takes a free one.
        host: The address to listen on.

    Raises:
        EngineError: The port is in use, or the server does not come up (from :meth:`start`).
    """

    def __init__(self, app: Starlette, port: int = 0, host: str = "127.0.0.1") -> None:
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._port = port
        # A server that listens on all addresses is asked on this machine's own.
        own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
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
            self._server.run()
        except BaseException as error:  # uvicorn exits with SystemExit if it cannot bind
            self._failure = error
