"""A vLLM server that the trainer starts, feeds with weights, and starts again if it dies."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vf.cluster.fleet import Fleet
from vf.inference.completions import ImageProcessor, Wire, generate_wire
from vf.inference.engine import Weights
from vf.inference.leases import Member, Router, Slot
from vf.inference.model_files import resolve_model
from vf.inference.patience import AWAY_SECONDS
from vf.inference.reference_sample import ReferenceSample
from vf.inference.serving import Served, Serving
from vf.inference.settings import VllmSettings
from vf.inference.token_client import TokenClient
from vf.inference.vllm.admin import (
    Admin,
    check_drafted,
    check_images,
    check_served,
    check_tokenizer,
    check_unfiltered,
)
from vf.inference.vllm.check_settings import api_key
from vf.inference.vllm.launch import drafts, flags
from vf.inference.vllm.pace import Pace
from vf.inference.vllm.publish_methods import swaps_in_place
from vf.inference.vllm.publishers import Delivery
from vf.inference.vllm.server_args import Adapters, server_args
from vf.inference.vllm.servers import OutsideServer, OwnServer, Server
from vf.inference.vllm.sites import LOOPBACK, InFleet, Running, Site, ThisMachine
from vf.inference.vllm.weight_store import WeightStore
from vf.runtime.api_keys import hide_urls
from vf.runtime.errors import ConfigError, EngineError, InfrastructureError, ModelError

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
STUCK_SECONDS = 120.0  # without an answer, after which a server is of no use


class VllmEngine:
    """Serves one model through vLLM's OpenAI-compatible server.

    Args:
        settings: ``[inference]``.
        model: The base model: a folder or a hub name.
        weights: The weights in training.
        store: The weights on disk, where servers read them. Engines of the same weights share one.
        method: The way weights are published; ``FIXED``, or what
            :func:`~vf.inference.vllm.publish_methods.choose_method` returns.
        log_path: The file for the server's output.
        max_seq_len: Tokens in one context at most.
        adapters: The adapters that are loaded at run time, or None for a full fine-tune.
        cpu: Whether there is no GPU.
        shared_gpu: Whether the trainer is on the same GPU, so that memory must be left to it.
        encoded: A text and its token ids by the trainer's tokenizer; the server's must agree.
        note: Told what the user should be able to find again after the run.
        vision: Prepares images for it; without, it is asked in text only.
        fleet: Has a place for the server; without one it is a child of this process.

    Raises:
        ConfigError: If vLLM cannot be found, or a setting is wrong.
    """

    def __init__(
        self,
        settings: VllmSettings,
        model: str,
        weights: Weights,
        store: WeightStore,
        *,
        method: str,
        log_path: Path,
        max_seq_len: int,
        adapters: Adapters | None,
        cpu: bool,
        shared_gpu: bool,
        encoded: tuple[str, list[int]],
        note: Callable[[str], None] = log.warning,
        vision: ImageProcessor | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        self._log_path = log_path
        self._shared_gpu = shared_gpu
        self._encoded = encoded
        self._settings = settings
        self._model = model
        self._max_seq_len = max_seq_len
        self._adapters = adapters
        self._cpu = cpu
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None
        self._reference: ReferenceSample | None = None
        self.serving = Serving(model, keeps_cache=settings.keep_cache)
        self._site: Site | None = None
        if not settings.base_url:
            self._site = ThisMachine(settings) if fleet is None else InFleet(settings, fleet)
            self.base_url = f"{self._site.root}/v1"
        else:
            self.base_url = settings.base_url.rstrip("/").removesuffix("/v1") + "/v1"
        self._api_key = api_key(settings)
        self._admin = Admin(self.base_url, self._api_key)
        # Where weights change under running requests, every token needs its version.
        by_span = swaps_in_place(method, settings)
        images = partial(generate_wire, vision=vision, versions_told=by_span)
        self._vision = vision
        self.wire: Wire | None = None if vision is None else images
        generates = by_span or vision is not None
        member = Member(
            self._admin.root if generates else self.base_url,
            "generate" if generates else "vllm",
            self._api_key,
            settings.away_timeout if settings.base_url else AWAY_SECONDS,
        )
        self.serving.limit(settings.requests_per_server)
        self.slot = Slot(member, self.serving)
        self.leases = Router([self.slot])
        self._server: Server = (
            OutsideServer(settings, self._admin)
            if (site := self._site) is None
            else OwnServer(settings, self._admin, log_path, partial(self._run, site), site.dying)
        )
        self.delivery = Delivery(
            settings,
            model,
            weights,
            store,
            method=method,
            server=self._server,
            admin=self._admin,
            serving=self.serving,
            host=LOOPBACK if self._site is None else self._site.trainer,
            cpu=cpu,
            note=note,
        )

    @property
    def served(self) -> Served:
        """What requests ask for now."""
        return self.serving.served

    def start(self, say: Callable[[str], None]) -> None:
        """Start the server and wait until it is healthy; see :class:`~vf.inference.engine.Engine`.

        Raises:
            ConfigError: If the server refuses its flags, or serves something else.
            EngineError: If it dies or does not become healthy; with its last lines.
        """
        self.delivery.lay_out()
        self.start_server(say)

    def start_server(self, say: Callable[[str], None]) -> None:
        """Do :meth:`start` once the delivery is laid out; in any thread."""
        with self.delivery.starting():
            self._server.start(say)
        check_served(self._admin, self.base_url, self._model, self._max_seq_len)
        check_tokenizer(self._admin, self._model, *self._encoded)
        if self._settings.base_url:  # its flags are not ours
            check_unfiltered(self._admin, self._model, self._encoded[1])
        if self._vision is not None:
            check_images(self._admin, self._model, self._vision)
        speculative = drafts(self._settings.args)
        if self._settings.base_url or speculative:
            say("checking that speculative decoding changes no probability")
            check_drafted(self._admin, self._model, self._encoded[1], certain=speculative)
        self._watcher = threading.Thread(target=self._watch, name="vf-server-watch", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """End the server. Safe to call twice."""
        self.stop_server()
        self._admin.close()

    def stop_server(self) -> None:
        """Do :meth:`stop`, but keep the connections for those who still wait for an answer."""
        self._stopped.set()
        self._server.stop()
        if self._watcher is not None:
            self._watcher.join()

    def check(self) -> None:
        """Bring back a server that has gone, with the newest weights.

        Raises:
            EngineError: If it died too often, does not start again, or was away for too long.
        """
        if not self.is_gone:
            return
        self.serving.down()
        self.revive()
        while not self.restore():
            self.revive()
        self.take_back()

    @property
    def is_gone(self) -> bool:
        """Whether the server has gone, or was not taken back yet."""
        return not self.serving.is_up or self.server_is_gone

    @property
    def server_is_gone(self) -> bool:
        """Whether a server of the run's own has ended."""
        # Asking somebody else's server takes time, so that is left to the watch.
        return not self._settings.base_url and self._server.is_gone()

    def revive(self) -> None:
        """Return once a server that had gone is there again, without weights; in any thread.

        Raises:
            EngineError: If it will not be. Whoever waits for it learns why.
        """
        with self._given_up_on_error(), self.delivery.starting():
            self._server.bring_back()
            self.delivery.forget()

    def restore(self) -> bool:
        """Bring the newest weights to a server that is back, and try whether it has them.

        In the trainer's thread where ``delivery.sends`` says so.

        Returns:
            False if it has gone again.

        Raises:
            ConfigError: If it refuses them.
            EngineError: If it does not take them, or answers as other weights would.
        """
        with self._given_up_on_error():
            try:
                self.delivery.restore()
                if self._reference is not None and not self.delivery.sends:
                    self._reference.check(self.slot.member, self.serving.served, self.wire)
            except (ConfigError, EngineError, ModelError) as error:
                if not self._server.is_failing(error):
                    raise
                return False
        return True

    def remember(self, reference: ReferenceSample) -> None:
        """Try it on a server that comes back; see :class:`~vf.inference.engine.Engine`."""
        self._reference = reference

    def take_down(self) -> None:
        """End a server that is of no use, so that it can be brought back; in any thread.

        One that somebody else runs is sent no requests until then.
        """
        self.serving.down()
        self._server.end()

    def take_back(self) -> None:
        """Let requests to a server that is back."""
        self.serving.up()
        log.warning(
            "the vLLM server at %s is back, with version %d",
            hide_urls(self.base_url),
            self.serving.served.version,
        )

    @contextmanager
    def _given_up_on_error(self) -> Iterator[None]:
        try:
            yield
        except (ConfigError, InfrastructureError) as error:
            self.serving.fail(str(error))
            raise

    def sampler(self, timeout: float) -> TokenClient:
        """Return a client that samples from the server."""
        return TokenClient(self.leases, timeout=timeout, wire=self.wire)

    def samplers(self, timeout: float) -> dict[str, TokenClient]:
        """Return a client of each server; see :class:`~vf.inference.engine.Engine`."""
        return {self.base_url: self.sampler(timeout)}

    def leave_out(self, base_url: str, error: ModelError) -> None:
        """Raise the error: there is no other server."""
        raise error

    @contextmanager
    def training(self, failed: Callable[[EngineError], None] | None = None) -> Iterator[None]:
        """Let the server sleep, if it shall, until the block ends.

        Args:
            failed: Called with what goes wrong, in place of raising it.
        """
        if not self._settings.sleep:
            yield
            return
        with self.serving.still():
            self._tell("/sleep", failed, level="1")
            try:
                yield
            finally:
                self._tell("/wake_up", failed)

    def publish(self, version: int) -> None:
        """Bring the weights as they are now to the server.

        Raises:
            ConfigError: If the server is not set up for it.
            EngineError: If it could not be done.
        """
        self.delivery.write(version)
        self.check()
        while not self.serve(version):  # a server that dies meanwhile is brought back
            self.check()

    def serve(self, version: int) -> bool:
        """Bring weights that were written to the server.

        In the trainer's thread where ``delivery.sends`` says so.

        Returns:
            False if it has gone meanwhile.

        Raises:
            ConfigError: If the server is not set up for it.
            EngineError: If it could not be done.
        """
        try:
            self.delivery.serve(version)
        except (ConfigError, EngineError) as error:
            if not self._server.is_failing(error):
                raise
            self.serving.down()
            return False
        return True

    @property
    def sleeps(self) -> bool:
        """Whether the server's GPU is the trainer's while the model is trained."""
        return self._settings.sleep

    def _tell(self, path: str, failed: Callable[[EngineError], None] | None, **query: Any) -> None:
        """POST, unless the server has died: the next check starts it again, awake."""
        try:
            self._admin.post(path, **query)
        except EngineError as error:
            if self._server.is_failing(error):
                return
            if failed is None:
                raise
            failed(error)

    def _watch(self) -> None:
        """Refuse requests as soon as the server has gone, whatever the trainer does meanwhile.

        While it is there, send it as many as its cache has room for. One that is there, but has
        not answered for long, is of no use; what waits for it fails when it has ended.
        """
        pace = Pace(self._settings.requests_per_server)
        answered = time.monotonic()
        while not self._stopped.wait(WATCH_SECONDS):
            if self.serving.is_up and self._server.is_gone():
                self.serving.down()
            if not self.serving.is_up:
                answered = time.monotonic()
            elif (load := self._admin.load()) is not None:
                self.serving.limit(pace.look(load, self.serving.under_way))
                answered = time.monotonic()
            elif self._admin.answers():
                answered = time.monotonic()
            elif (silent := time.monotonic() - answered) > STUCK_SECONDS:
                where = hide_urls(self.base_url)
                log.warning("the server at %s has not answered for %.0f s", where, silent)
                self.take_down()

    def _run(self, site: Site) -> Running:
        """Start the server's process, and take note of where it is."""
        method = self.delivery.method
        args = server_args(
            self._settings,
            method=method,
            model=resolve_model(self._model),
            name=self._model,
            host=site.host,
            port=site.port,
            max_seq_len=self._max_seq_len,
            adapters=self._adapters,
            cpu=self._cpu,
            shared_gpu=self._shared_gpu,
            copy=self.delivery.copied,
            images=self._vision is not None,
        )
        server = site.run(flags(args), self._log_path, lora=method == "lora", cpu=self._cpu)
        self._admin.root, self.base_url = site.root, f"{site.root}/v1"
        where = site.root if self.slot.member.wire == "generate" else self.base_url
        self.slot.member = replace(self.slot.member, base_url=where)
        return server
