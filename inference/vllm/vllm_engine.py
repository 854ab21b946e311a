"""A vLLM server that the trainer starts, feeds with weights, and starts again if it dies."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vf.inference.completions import TokenClient
from vf.inference.engine import Weights
from vf.inference.leases import Member, Router, Slot
from vf.inference.model_files import resolve_model
from vf.inference.patience import AWAY_SECONDS
from vf.inference.ports import choose_port
from vf.inference.serving import Serving
from vf.inference.settings import VllmSettings
from vf.inference.vllm.admin import Admin, check_served, check_tokenizer
from vf.inference.vllm.launch import check_args, flags, launcher, server_env
from vf.inference.vllm.nccl import NcclPublisher
from vf.inference.vllm.publishers import (
    DiskPublisher,
    FixedWeights,
    LoraPublisher,
    Publisher,
)
from vf.inference.vllm.rungs import FIXED
from vf.inference.vllm.server_args import Adapters, parallel_args, server_args, swaps_in_place
from vf.inference.vllm.servers import OutsideServer, OwnServer, Server
from vf.runtime.errors import ConfigError, EngineError

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0


class VllmEngine:
    """Serves one model through vLLM's OpenAI-compatible server.

    Args:
        settings: ``[inference]``.
        model: The base model: a folder or a hub name.
        weights: What is trained.
        rung: How weights are published; see :func:`~vf.inference.vllm.rungs.choose_rung`. Or
            ``FIXED``.
        folder: For the weights on their way.
        log_path: Where the server's output goes.
        max_seq_len: Tokens in one context at most.
        adapters: What adapters are loaded at run time, or None for a full fine-tune.
        cpu: Whether there is no GPU.
        shared_gpu: Whether the trainer is on the same GPU, so that memory must be left to it.
        encoded: A text and its token ids by the trainer's tokenizer; the server's must agree.
        note: Told what the user should be able to find again after the run.

    Raises:
        ConfigError: vLLM is not to be found, or a setting is at fault.
    """

    def __init__(
        self,
        settings: VllmSettings,
        model: str,
        weights: Weights,
        *,
        rung: str,
        folder: Path,
        log_path: Path,
        max_seq_len: int,
        adapters: Adapters | None,
        cpu: bool,
        shared_gpu: bool,
        encoded: tuple[str, list[int]],
        note: Callable[[str], None] = log.warning,
    ) -> None:
        self._note = note
        self._weights = weights
        self._folder = folder
        self._shared_gpu = shared_gpu
        self._encoded = encoded
        self._settings = settings
        self._model = model
        self._max_seq_len = max_seq_len
        self._adapters = adapters
        self._cpu = cpu
        self._rung = rung
        self._stopped = threading.Event()
        self.serving = Serving(model)
        if settings.base_url is None:
            self._command = launcher(settings)
            port = choose_port(settings.host, settings.port)
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            self._port = port
            self.base_url = f"http://{host}:{port}/v1"
        else:
            self.base_url = settings.base_url.rstrip("/").removesuffix("/v1") + "/v1"
        self._api_key = _api_key(settings)
        self._admin = Admin(self.base_url, self._api_key)
        tells = self._tells_versions
        member = Member(
            self._admin.root if tells else self.base_url,
            "generate" if tells else "openai",
            self._api_key,
            AWAY_SECONDS if settings.base_url is None else settings.away_timeout,
        )
        self.slot = Slot(member, self.serving)
        self.leases = Router([self.slot])
        self._server: Server = (
            OwnServer(settings, self._admin, log_path, self._command_and_env)
            if settings.base_url is None
            else OutsideServer(settings, self._admin)
        )
        self._served_copy: DiskPublisher | None = None
        self._publisher = self._make_publisher()

    def start(self, say: Callable[[str], None]) -> None:
        """Start the server and wait until it is healthy; see :class:`~vf.inference.engine.Engine`.

        Raises:
            ConfigError: The server refuses its flags, or serves something else.
            EngineError: It dies or does not become healthy; with its last lines.
        """
        if self._served_copy is not None:
            self._served_copy.write()
        self._server.start(say)
        check_served(self._admin, self.base_url, self._model, self._max_seq_len)
        check_tokenizer(self._admin, self._model, *self._encoded)
        threading.Thread(target=self._watch, name="vf-server-watch", daemon=True).start()

    def stop(self) -> None:
        """End the server. Safe to call twice."""
        self._stopped.set()
        self._server.stop()
        self._admin.close()

    def check(self) -> None:
        """Bring back a server that has gone, with the newest weights.

        Raises:
            EngineError: It died too often, does not start again, or was away for too long.
        """
        # Asking somebody else's server takes time, so that is left to the watch.
        if self.serving.is_up and (self._settings.base_url or not self._server.is_gone()):
            return
        self.serving.down()
        try:
            self._server.bring_back()
            while not self._restored():
                self._server.bring_back()
        except (ConfigError, EngineError) as error:
            self.serving.fail(str(error))
            raise
        self.serving.up()
        log.warning("the vLLM server is back, with version %d", self.serving.served.version)

    def _restored(self) -> bool:
        """Return whether the server was given the newest weights, and not gone again before."""
        try:
            self._bring(self._publisher.restore, self.serving.served.version)
        except (ConfigError, EngineError) as error:
            if not self._server.is_failing(error):
                raise
            return False
        return True

    def sampler(self, timeout: float) -> TokenClient:
        """Return a client that samples from the server."""
        return TokenClient(self.leases, timeout=timeout)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Let the server sleep, if it shall, until the block ends."""
        if not self._settings.sleep:
            yield
            return
        with self.serving.still():
            self._tell("/sleep", level="1")
            try:
                yield
            finally:
                self._tell("/wake_up")

    def publish(self, version: int) -> None:
        """Bring the weights as they are now to the server.

        Raises:
            ConfigError: The server is not set up for it.
            EngineError: It could not be done.
        """
        while True:
            self.check()
            try:
                return self._bring(lambda: self._publisher.publish(version), version)
            except (ConfigError, EngineError) as error:
                # A server that dies meanwhile is brought back and then asked again.
                if not self._server.is_failing(error):
                    raise
                self.serving.down()

    def _tell(self, path: str, **query: Any) -> None:
        """POST, unless the server has died: the next check starts it again, awake."""
        try:
            self._admin.post(path, **query)
        except EngineError as error:
            if not self._server.is_failing(error):
                raise

    def _watch(self) -> None:
        """Refuse requests as soon as the server has gone, whatever the trainer does meanwhile."""
        while not self._stopped.wait(WATCH_SECONDS):
            if self.serving.is_up and self._server.is_gone():
                self.serving.down()

    def _bring(self, act: Callable[[], None], version: int) -> None:
        """Bring weights to the server, from now on through the disk if NCCL fails.

        Args:
            act: What brings them.
            version: Of the weights.
        """
        publisher = self._publisher
        try:
            act()
        except EngineError as error:
            if not isinstance(publisher, NcclPublisher) or self._server.is_failing(error):
                raise
            if self._settings.publish == "nccl":
                if publisher.sent:
                    raise
                raise ConfigError(
                    f'inference.publish = "nccl" does not work here: {error}; leave it at "auto", '
                    'or set it to "disk"'
                ) from error
            self._note(f"weights are published through the disk from now on: {error}")
        else:
            return
        # Its workers may still wait for a broadcast, so the server begins again without NCCL.
        self.serving.down()
        self._rung = "disk"
        self._publisher = self._make_publisher()
        self._server.stop()
        self._server.start(lambda text: log.info("%s", text))
        self._publisher.publish(version)
        self.serving.up()

    @property
    def _tells_versions(self) -> bool:
        """Whether weights change under running requests, so that every token needs its version."""
        return swaps_in_place(self._rung, self._settings)

    def _make_publisher(self) -> Publisher:
        parts = self._admin, self.serving, self._weights
        if self._rung == "lora":
            return LoraPublisher(*parts, self._folder, self._model)
        if self._rung == "nccl":
            return NcclPublisher(*parts)
        if self._rung == FIXED:
            return FixedWeights()
        drain = not self._tells_versions
        ours = self._cpu and self._settings.base_url is None
        publisher = DiskPublisher(*parts, self._folder, drain=drain, untied=ours)
        if ours:
            # On a CPU, vLLM 0.32 packs a tied head apart from the embedding and forgets it when
            # weights are read again. So it serves a copy whose head is not tied.
            self._served_copy = publisher
        return publisher

    def _command_and_env(self) -> tuple[list[str], dict[str, str]]:
        args = server_args(
            self._settings,
            rung=self._rung,
            model=resolve_model(self._model),
            name=self._model,
            port=self._port,
            max_seq_len=self._max_seq_len,
            adapters=self._adapters,
            cpu=self._cpu,
            shared_gpu=self._shared_gpu,
            copy=None if self._served_copy is None else self._served_copy.newest,
        )
        env = server_env(self._settings, os.environ, lora=self._rung == "lora", cpu=self._cpu)
        return [*self._command, *flags(args)], env


def check_settings(settings: VllmSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Find out, before anything is started, what the settings get wrong on this machine.

    Args:
        settings: ``[inference]``.
        environ: What the server's environment will start from.

    Raises:
        ConfigError: vLLM is not to be found, a flag is ours, the port is in use, a GPU or key is
            missing, or the GPUs do not fit the parallel sizes.
    """
    check_args(settings.args)
    parallel_args(settings)
    _api_key(settings)
    if settings.base_url is None:
        launcher(settings)
        choose_port(settings.host, settings.port)
        server_env(settings, environ, lora=False, cpu=False)


def _api_key(settings: VllmSettings) -> str | None:
    if settings.api_key_env is None:
        return None
    key = os.environ.get(settings.api_key_env)
    if not key:
        raise ConfigError(
            f"inference.api_key_env names {settings.api_key_env}, which is not set; export it"
        )
    return key
