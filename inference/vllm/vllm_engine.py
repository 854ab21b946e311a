"""A vLLM server that the trainer starts, feeds with weights, and starts again if it dies."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vf.inference.completions import TokenClient, generate_wire
from vf.inference.engine import Weights
from vf.inference.model_files import resolve_model
from vf.inference.ports import choose_port
from vf.inference.serving import Serving
from vf.inference.settings import VllmSettings
from vf.inference.vllm import nccl
from vf.inference.vllm.admin import Admin, check_served, check_tokenizer
from vf.inference.vllm.launch import check_args, flags, launcher, server_env
from vf.inference.vllm.publishers import (
    DiskPublisher,
    FixedWeights,
    LoraPublisher,
    Publisher,
)
from vf.inference.vllm.server_process import ServerProcess
from vf.inference.wire import JsonClient
from vf.runtime.errors import ConfigError, EngineError

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
DYING_SECONDS = 15.0  # until a server that is no longer well has ended
SHARED_GPU_SHARE = 0.45  # of the memory, where the trainer is on the same GPU
RUNGS = {
    "lora": "each version of the adapter is loaded by its name",
    "disk": "new weights are written to disk and read again by the server",
    "nccl": "new weights go from GPU to GPU by NCCL",
}
FIXED = "fixed"  # the rung of an engine whose weights never change
BAD_USAGE = 2  # argparse's exit code: the server did not like its flags


class VllmEngine:
    """Serves one model through vLLM's OpenAI-compatible server.

    Args:
        settings: ``[inference]``.
        model: The base model: a folder or a hub name.
        weights: What is trained.
        rung: How weights are published; see :func:`choose_rung`. Or ``FIXED``.
        folder: For the weights on their way.
        log_path: Where the server's output goes.
        max_seq_len: Tokens in one context at most.
        lora_rank: Rank of the adapter, or None for a full fine-tune.
        cpu: Whether there is no GPU.
        shared_gpu: Whether the trainer is on the same GPU, so that memory must be left to it.
        encoded: A text and its token ids by the trainer's tokenizer; the server's must agree.

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
        lora_rank: int | None,
        cpu: bool,
        shared_gpu: bool,
        encoded: tuple[str, list[int]],
    ) -> None:
        self._shared_gpu = shared_gpu
        self._encoded = encoded
        self._settings = settings
        self._model = model
        self._log_path = log_path
        self._max_seq_len = max_seq_len
        self._lora_rank = lora_rank
        self._cpu = cpu
        self._rung = rung
        self._process: ServerProcess | None = None
        self._restarted = False
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
        self._served_copy: DiskPublisher | None = None
        self._publisher = self._make_publisher(weights, folder)

    def start(self, say: Callable[[str], None]) -> None:
        """Start the server and wait until it is healthy; see :class:`~vf.inference.engine.Engine`.

        Raises:
            ConfigError: The server refuses its flags, or serves something else.
            EngineError: It dies or does not become healthy; with its last lines.
        """
        if self._settings.base_url is None:
            if self._served_copy is not None:
                self._served_copy.write()
            self._launch(say)
        check_served(self._admin, self.base_url, self._model, self._max_seq_len)
        check_tokenizer(self._admin, self._model, *self._encoded)

    def stop(self) -> None:
        """End the server. Safe to call twice."""
        if self._process is not None:
            process, self._process = self._process, None
            process.stop()
        self._admin.close()

    def check(self) -> None:
        """Start a server that died again, once; raise EngineError if it dies again."""
        process = self._process
        if process is None or process.returncode is None:
            return
        died = f"the vLLM server died (exit code {process.returncode}):\n{process.tail()}"
        self.serving.down()
        if self._restarted:
            self.serving.fail(died)
            raise EngineError(f"{died}\nIt had been restarted once before.")
        self._restarted = True
        log.warning("%s\nIt is started again.", died)
        process.stop()
        try:
            self._launch(lambda text: log.info("%s", text))
            self._publisher.restore()
        except (ConfigError, EngineError) as error:
            self.serving.fail(str(error))
            raise EngineError(f"{died}\nStarting it again failed: {error}") from error
        self.serving.up()
        log.warning("the vLLM server is back, with version %d", self.serving.served.version)

    def sampler(self, timeout: float) -> TokenClient:
        """Return a client that samples from the server."""
        if self._tells_versions:
            return TokenClient(
                JsonClient(self._admin.root, timeout=timeout), self.serving, generate_wire
            )
        client = JsonClient(self.base_url, api_key=self._api_key, timeout=timeout)
        return TokenClient(client, self.serving)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Let the server sleep, if it shall, until the block ends."""
        if not self._settings.sleep:
            yield
            return
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
                return self._publisher.publish(version)
            except (ConfigError, EngineError):
                # If it died under our hands, it is started again and then asked again.
                if not self._is_dying():
                    raise

    def _tell(self, path: str, **query: str) -> None:
        """POST, unless the server has died: the next check starts it again, awake."""
        try:
            self._admin.post(path, **query)
        except EngineError:
            if not self._is_dying():
                raise

    def _is_dying(self) -> bool:
        """Return whether our server is dead or unwell, and then wait for its end."""
        process = self._process
        deadline = time.monotonic() + DYING_SECONDS
        while process is not None and process.returncode is None:
            if self._admin.healthy() or time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return process is not None

    @property
    def _tells_versions(self) -> bool:
        """Whether weights change under running requests, so that every token needs its version."""
        return self._rung in ("disk", "nccl") and self._settings.base_url is None

    def _make_publisher(self, weights: Weights, folder: Path) -> Publisher:
        if self._rung == "lora":
            return LoraPublisher(self._admin, self.serving, weights, folder, self._model)
        if self._rung == "nccl":
            return nccl.NcclPublisher(self._admin, self.serving, weights)
        if self._rung == FIXED:
            return FixedWeights()
        mode = "keep" if self._tells_versions else "wait"
        ours = self._cpu and self._settings.base_url is None
        publisher = DiskPublisher(self._admin, self.serving, weights, folder, mode, untied=ours)
        if ours:
            # On a CPU, vLLM 0.32 packs a tied head apart from the embedding and forgets it when
            # weights are read again. So it serves a copy whose head is not tied.
            self._served_copy = publisher
        return publisher

    def _launch(self, say: Callable[[str], None]) -> None:
        settings = self._settings
        env = server_env(settings, os.environ, lora=self._rung == "lora", cpu=self._cpu)
        command = [*self._command, *flags(self._server_args())]
        log.info("starting %s", " ".join(command))
        self._process = process = ServerProcess(command, env, self._log_path)
        started = time.monotonic()
        while not self._admin.healthy():
            seconds = time.monotonic() - started
            code = process.returncode
            if code is not None:
                kind = ConfigError if code == BAD_USAGE else EngineError
                raise kind(
                    f"the vLLM server did not start (exit code {code}); the end of "
                    f"{self._log_path}:\n{process.tail()}"
                )
            if seconds > settings.startup_timeout:
                raise EngineError(
                    f"the vLLM server is not healthy after inference.startup_timeout = "
                    f"{settings.startup_timeout:g} s; the end of {self._log_path}:\n"
                    f"{process.tail()}"
                )
            say(f"vLLM is starting, {seconds:.0f} s: {process.last_line()}")
            time.sleep(POLL_SECONDS)

    def _server_args(self) -> dict[str, Any]:
        settings = self._settings
        args: dict[str, Any] = {
            "model": resolve_model(self._model),
            "served_model_name": self._model,
            "host": settings.host,
            "port": self._port,
            "max_model_len": self._max_seq_len,
            "logprobs_mode": "processed_logprobs",
        }
        if self._served_copy is not None:
            args |= {"model": str(self._served_copy.newest), "tokenizer": args["model"]}
        if self._cpu:
            # A seeded request whose prompt is prefilled in parts kills vLLM 0.32 on a CPU: it
            # rewinds the generator, which a CPU's cannot.
            args |= {"dtype": "float32", "enforce_eager": True, "enable_chunked_prefill": False}
        if self._shared_gpu:
            args["gpu_memory_utilization"] = SHARED_GPU_SHARE
        if self._lora_rank is not None:
            args |= {
                "enable_lora": True,
                "max_lora_rank": rank_bucket(self._lora_rank),
                "max_loras": 2,  # the newest, and the one before for requests under way
                "max_cpu_loras": 4,
            }
        if self._rung == "nccl":
            args |= nccl.SERVER_ARGS
        if self._tells_versions:
            args["enable_scale_out"] = True  # for its tokens-in, tokens-out API
        if settings.sleep:
            args["enable_sleep_mode"] = True
        given = {name.lstrip("-").replace("-", "_"): value for name, value in settings.args.items()}
        return args | given


def choose_rung(settings: VllmSettings, *, use_lora: bool, cpu: bool) -> str:
    """Return how weights are published: ``lora``, ``disk`` or ``nccl``.

    Raises:
        ConfigError: What the settings ask for does not fit what is trained.
    """
    wanted = settings.publish
    if wanted == "auto":
        if use_lora:
            return "lora"
        apart = settings.gpus is not None and settings.base_url is None and not cpu
        return "nccl" if apart and nccl.available() else "disk"
    if (wanted == "lora") != use_lora:
        raise ConfigError(
            f'inference.publish = "{wanted}" does not fit trainer.args.use_lora = '
            f'{str(use_lora).lower()}; leave it at "auto"'
        )
    if wanted == "nccl" and cpu:
        raise ConfigError('inference.publish = "nccl" needs GPUs; set it to "auto"')
    if wanted == "nccl" and not nccl.available():
        raise ConfigError(
            'inference.publish = "nccl" needs vLLM in the trainer\'s environment too: '
            "pip install 'vf-rl[vllm]', or set publish = \"disk\""
        )
    return wanted


def check_settings(settings: VllmSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Find out, before anything is started, what the settings get wrong on this machine.

    Args:
        settings: ``[inference]``.
        environ: What the server's environment will start from.

    Raises:
        ConfigError: vLLM is not to be found, a flag is ours, the port is in use, or a GPU or key
            is missing.
    """
    check_args(settings.args)
    _api_key(settings)
    if settings.base_url is None:
        launcher(settings)
        choose_port(settings.host, settings.port)
        server_env(settings, environ, lora=False, cpu=False)


def rank_bucket(rank: int) -> int:
    """Return the smallest --max-lora-rank that vLLM accepts for an adapter's rank."""
    return next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank)


def _api_key(settings: VllmSettings) -> str | None:
    if settings.api_key_env is None:
        return None
    key = os.environ.get(settings.api_key_env)
    if not key:
        raise ConfigError(
            f"inference.api_key_env names {settings.api_key_env}, which is not set; export it"
        )
    return key
