"""The embedded engine with its server, as the trainer owns them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from vf.inference.completions import Completion
from vf.inference.embedded.app import build_app
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.server_thread import ServerThread
from vf.inference.leases import Member, Router, Slot
from vf.inference.model import Sampling
from vf.inference.reference_sample import ReferenceSample
from vf.inference.rendering.renderer import Renderer
from vf.inference.serving import Served, Serving
from vf.inference.settings import EmbeddedSettings
from vf.inference.token_client import TokenClient
from vf.inference.wire import JsonClient
from vf.runtime.errors import ModelError
from vf.runtime.seeding import derive_seed


class EmbeddedServer:
    """Serves the trainer's own module; an :class:`~vf.inference.engine.Engine`.

    Args:
        settings: ``[inference]``.
        module: The module to generate with, adapters included. Shared, never copied.
        renderer: Chat template and parser.
        model: The name to serve it under.
        max_seq_len: Most tokens in one context.
        address: The address by which other machines reach this one, if any are to.
        deterministic: See :class:`~vf.inference.embedded.embedded_engine.EmbeddedEngine`.
        record_experts: See there.
    """

    def __init__(
        self,
        settings: EmbeddedSettings,
        module: PreTrainedModel,
        renderer: Renderer,
        model: str,
        *,
        max_seq_len: int,
        address: str | None = None,
        deterministic: bool = False,
        record_experts: bool = False,
    ) -> None:
        self.serving = Serving(model)
        self._slot = Slot(Member(""), self.serving)  # which says where once the port is known
        self.leases = Router([self._slot])
        self.engine = EmbeddedEngine(
            module,
            max_seq_len=max_seq_len,
            max_requests=settings.args.max_requests,
            max_batch_tokens=settings.args.max_batch_tokens,
            deterministic=deterministic,
            record_experts=record_experts,
            vision=renderer.vision,
        )
        app = build_app(self.engine, renderer, model, settings.host)
        self._server = ServerThread(app, settings.port, settings.host, address)

    @property
    def served(self) -> Served:
        """What requests ask for now."""
        return self.serving.served

    @property
    def base_url(self) -> str:
        """The OpenAI base URL, up to and including ``/v1``."""
        return self._server.base_url

    def start(self, say: Callable[[str], None]) -> None:
        """Start generation and serving; both are up in a moment.

        Raises:
            EngineError: If the model cannot generate this way, or the port is in use.
        """
        self.engine.start()
        self._server.start()
        self._slot.member = Member(self.base_url)

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
        """Return a client that asks the engine directly, without HTTP: it is in this process."""

        async def ask(
            client: JsonClient,
            served: Served,
            prompt_ids: list[int],
            sampling: Sampling,
            stop_token_ids: list[int],
        ) -> Completion:
            if sampling.seed is not None:  # as the first choice of a request over HTTP
                sampling = sampling.with_(seed=derive_seed(sampling.seed, 0))
            return await self.engine.generate(prompt_ids, sampling, stop_token_ids)

        return TokenClient(self.leases, timeout=timeout, wire=ask)

    def samplers(self, timeout: float) -> dict[str, TokenClient]:
        """Return a client of each server; see :class:`~vf.inference.engine.Engine`."""
        return {self.base_url: self.sampler(timeout)}

    def leave_out(self, base_url: str, error: ModelError) -> None:
        """Raise the error: there is no other server."""
        raise error

    def remember(self, reference: ReferenceSample) -> None:
        """Do nothing: the engine does not come back without its process."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """Hold generation still: the weights that it samples from are about to change."""
        with self.serving.still(), self.engine.paused():
            yield

    def publish(self, version: int) -> None:
        """Call the weights now in the module ``version``."""
        self.engine.publish(version)
        self.serving.switch(self.serving.served.model, version)
