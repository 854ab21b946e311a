"""The connection of a run to a server of the Tinker API, through its SDK."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any
from urllib.parse import urlsplit

from vf.inference.tinker_wire import load_sdk
from vf.runtime.api_keys import hide_urls
from vf.runtime.errors import ConfigError, EngineError, TrainingError
from vf.runtime.http_door import is_loopback
from vf.trainer.settings.config import Config

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between two looks at whether the server is there
ANSWER_SECONDS = 20.0  # that a busy server may take to say so
WAIT_SECONDS = 1.0  # between two looks while a result is waited for
ANY_KEY = "tml-local"  # of a server that asks for none


class TinkerService:
    """A model in training on a server.

    Args:
        config: The run's settings.

    Attributes:
        base_url: The server's URL.
        base_model: The model's name there.
        api_key: What it is asked with.
        trained: The SDK's client of the model in training.

    Raises:
        ConfigError: If the SDK is not installed, or no URL or key is set, or the server refuses.
        EngineError: If the server does not answer.
    """

    def __init__(self, config: Config) -> None:
        settings, args = config.trainer.tinker, config.args
        self._sdk = load_sdk()
        url = settings.base_url or os.environ.get("TINKER_BASE_URL")
        if not url:
            raise ConfigError(
                'trainer.backend = "tinker" without a server: set trainer.tinker.base_url, or the '
                "environment variable TINKER_BASE_URL"
            )
        self.base_url = url.rstrip("/")
        self._name = hide_urls(self.base_url)
        self.api_key = os.environ.get(settings.api_key_env) or ANY_KEY
        if self.api_key == ANY_KEY and not is_loopback(urlsplit(self.base_url).hostname or ""):
            raise ConfigError(
                f"{self._name} asks for a key: put it in the environment variable "
                f"{settings.api_key_env}, or name another in trainer.tinker.api_key_env"
            )
        self.base_model = settings.base_model or config.model
        self._away_timeout = settings.away_timeout
        self._away_since: float | None = None
        self._failure: str | None = None
        self._listener: Callable[[bool], None] = lambda away: None
        self._stopped = threading.Event()
        if (why := self._look()) is not None:
            raise EngineError(
                f"{self._name} does not answer: {why}. Is trainer.tinker.base_url it?"
            )
        self._client = self._sdk.ServiceClient(base_url=self.base_url, api_key=self.api_key)
        threading.Thread(target=self._watch, name="vf-tinker", daemon=True).start()
        try:
            begun = self._client.create_lora_training_client(
                self.base_model,
                rank=args.lora_rank,
                seed=args.seed,
                train_mlp=args.train_mlp,
                train_attn=args.train_attn,
                train_unembed=args.train_unembed,
            )
            self.trained: Any = self.wait(begun, "creating a model")
        except EngineError:
            self.stop()
            raise
        except Exception as error:  # a wrong key is raised at once, a wrong model by the future
            self.stop()
            raise ConfigError(
                f"{self._name} creates no model of {self.base_model!r}: {error}"
            ) from error

    def wait(self, future: Any, doing: str) -> Any:
        """Return the result of what was asked for.

        Args:
            future: The future, from the SDK.
            doing: The work that is waited for, for messages.

        Raises:
            TrainingError: If the server refused or failed.
            EngineError: If it has been away for too long.
        """
        waiting: futures.Future[Any] = future.future()
        while not futures.wait([waiting], WAIT_SECONDS).done:
            self.check()
        try:
            return waiting.result()
        except Exception as error:  # the SDK has no root of all that a request may end with
            raise TrainingError(
                f"{self._name}, {doing}: {error}. If the server lost its models, such as by a "
                "restart, resume from the last checkpoint with vf-rl --resume"
            ) from error

    def listen(self, listener: Callable[[bool], None]) -> None:
        """Have something called, in another thread, when the server goes away or is back.

        Args:
            listener: Called with whether it is away.
        """
        self._listener = listener

    def check(self) -> None:
        """Raise EngineError if the server has been away for too long."""
        if self._failure is not None:
            raise EngineError(self._failure)

    @property
    def failure(self) -> str | None:
        """Why the server is not waited for any longer; None while it is."""
        return self._failure

    def delete(self, path: str) -> None:
        """Delete a checkpoint from the server; where that fails, it is logged and stays there."""
        try:
            rest = self._client.create_rest_client()
            self.wait(rest.delete_checkpoint_from_tinker_path(path), "deleting a checkpoint")
        except (TrainingError, EngineError) as error:
            log.warning("%s stays on the server: %s", path, error)

    def stop(self) -> None:
        """End the session. Safe to call twice."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._away_since is None:
            try:
                self.wait(self._client.close("success"), "ending the session")
            except (TrainingError, EngineError) as error:
                log.warning("%s", error)

    def _look(self) -> str | None:
        """Return why the server cannot be reached; None if it can."""
        import httpx

        try:
            answer = httpx.get(f"{self.base_url}/api/v1/healthz", timeout=ANSWER_SECONDS)
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
        return f"status {answer.status_code}" if answer.status_code in (502, 503) else None

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS if self._away_since is None else WAIT_SECONDS):
            why, now = self._look(), time.monotonic()
            if why is None:
                if self._away_since is not None:
                    self._away_since = None
                    log.warning("%s is back", self._name)
                    self._listener(False)
                continue
            if self._away_since is None:
                self._away_since = now
                log.warning(
                    "%s: %s; it is waited for, up to %g s", self._name, why, self._away_timeout
                )
                self._listener(True)
            elif now - self._away_since > self._away_timeout:
                self._failure = (
                    f"{self._name} was away for {self._away_timeout:g} s "
                    f"(trainer.tinker.away_timeout): {why}"
                )
                self._listener(True)
                return
