"""The server of the Tinker API, with the engine that samples for it."""

from __future__ import annotations

from pathlib import Path

from vf.inference.embedded.app import build_app as build_openai_app
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.server_thread import ServerThread
from vf.inference.model_files import Checkpoint, resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.inference.settings import EmbeddedSettings
from vf.trainer.tinker_api.app import build_app
from vf.trainer.tinker_api.checkpoints import Checkpoints
from vf.trainer.tinker_api.registry import Registry

# Requests decoded at once on a CPU, unless the settings say otherwise: of several clients, each
# with groups of samples. A cache on a CPU takes memory only where it is written.
CPU_REQUESTS = 256


class TinkerServer:
    """Serves a model to be trained and sampled from, and the OpenAI-compatible API beside.

    Args:
        name: The model's name.
        checkpoint: The model's checkpoint; it has no adapter.
        settings: ``[inference]``.
        renderer: The model's.
        max_seq_len: Most tokens in one context.
        folder: The folder to save checkpoints in.
        key: The API key that clients must send; None to require none.

    Raises:
        ConfigError: If the model cannot be loaded, or the folder cannot be written to.
    """

    def __init__(
        self,
        name: str,
        checkpoint: Checkpoint,
        settings: EmbeddedSettings,
        renderer: Renderer,
        *,
        max_seq_len: int,
        folder: Path,
        key: str | None,
    ) -> None:
        self._checkpoints = Checkpoints(folder)
        self._names = tuple(dict.fromkeys((name, resolve_model(checkpoint.base))))
        self._settings, self._renderer, self._key = settings, renderer, key
        model, requests = checkpoint.load(), settings.args.max_requests
        if model.device.type == "cpu" and "max_requests" not in settings.args.model_fields_set:
            requests = CPU_REQUESTS
        self._engine = EmbeddedEngine(
            model,
            max_seq_len=max_seq_len,
            max_requests=requests,
            max_batch_tokens=settings.args.max_batch_tokens,
        )
        self._registry: Registry | None = None
        self._server: ServerThread | None = None

    @property
    def base_url(self) -> str:
        """The URL that clients are given."""
        assert self._server is not None
        return self._server.base_url.removesuffix("/v1")

    def start(self) -> None:
        """Start generation and serving.

        Raises:
            EngineError: If the model cannot be served, or the port is in use.
        """
        self._engine.start()
        self._registry = Registry(self._names, self._engine, self._checkpoints)
        host, name = self._settings.host, self._names[0]
        openai = build_openai_app(self._engine, self._renderer, name, host)
        app = build_app(self._registry, self._renderer, self._key, host, openai)
        self._server = ServerThread(app, self._settings.port, host)
        self._server.start()

    def check(self) -> None:
        """Raise EngineError if a thread has died."""
        self._engine.check()
        if self._server is not None:
            self._server.check()

    def lines(self) -> list[str]:
        """Return what each model in training does."""
        return [] if self._registry is None else self._registry.lines()

    def stop(self) -> None:
        """Stop immediately. Safe to call twice."""
        try:
            if self._server is not None:
                self._server.stop()
        finally:
            if self._registry is not None:
                self._registry.close()
            self._engine.stop()
