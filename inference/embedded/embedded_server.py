"""The embedded engine with its server, as the trainer owns them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from vf.inference.completions import TokenClient
from vf.inference.embedded.app import build_app
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.server_thread import ServerThread
from vf.inference.rendering.renderer import Renderer
from vf.inference.serving import Serving
from vf.inference.settings import EmbeddedSettings
from vf.inference.wire import JsonClient


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

    @contextmanager
    def training(self) -> Iterator[None]:
        """Hold generation still: the weights that it samples from are about to change."""
        with self.serving.still(), self.engine.paused():
            yield

    def publish(self, version: int) -> None:
        """Call the weights now in the module ``version``."""
        self.engine.publish(version)
        self.serving.switch(self.serving.served.model, version)
