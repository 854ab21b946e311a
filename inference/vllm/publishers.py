"""How new weights reach a vLLM server: one interface, and a rung for each kind of run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from vf.inference.engine import Weights
from vf.inference.serving import Serving
from vf.inference.vllm.admin import Admin, Refused
from vf.runtime.errors import ConfigError

RESUME_SECONDS = 60.0  # a server that failed may not answer any more


class Publisher(Protocol):
    """Brings weights to the server."""

    def publish(self, version: int) -> None:
        """Serve the weights as they are now, as ``version``; requests in progress continue.

        Raises:
            ConfigError: The server is not set up for it.
            EngineError: The server failed.
        """
        ...

    def restore(self) -> None:
        """Bring the newest published weights to a server that has just started, or is back."""
        ...


class FixedWeights:
    """Brings nothing: the server read the weights when it started, and they never change."""

    def publish(self, version: int) -> None:
        """Do nothing."""

    def restore(self) -> None:
        """Do nothing: the server has read them again."""


@dataclass(eq=False)
class LoraPublisher:
    """Loads each version of the adapter under its own name, and unloads unused ones.

    A request keeps the adapter that it began with, so no token is sampled by half-changed
    weights, and no cached prefix of one version is taken for another's.

    Args:
        admin: The server.
        serving: Told what is served.
        weights: The adapter.
        folder: Where adapters are written; the server must be able to read it.
        model: Name of the base model on the server.
    """

    admin: Admin
    serving: Serving
    weights: Weights
    folder: Path
    model: str
    _loaded: dict[str, Path] = field(default_factory=dict, init=False)
    _count: int = field(default=0, init=False)

    def publish(self, version: int) -> None:
        """Load the adapter as it is now; see :class:`Publisher`."""
        # A version that is published again, after a restart say, still gets a fresh name.
        self._count += 1
        name = f"{self.model}@{version}-{self._count}"
        folder = self.folder.absolute() / f"{version}-{self._count}"
        shutil.rmtree(folder, ignore_errors=True)
        self.weights.save(folder)
        self._loaded[name] = folder
        self._load(name, folder)
        self.serving.switch(name, version)
        self._unload_unused()

    def restore(self) -> None:
        """Load the newest adapter again; see :class:`Publisher`."""
        newest = self.serving.served.model
        for name in [name for name in self._loaded if name != newest]:
            shutil.rmtree(self._loaded.pop(name), ignore_errors=True)
        # A server that was only out of reach still has it.
        if newest in self._loaded and newest not in self.admin.models():
            self._load(newest, self._loaded[newest])

    def _load(self, name: str, folder: Path) -> None:
        try:
            self.admin.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except Refused as error:
            raise ConfigError(
                f"the server does not take the adapter: {error}. It must run with --enable-lora, "
                "a --max-lora-rank of at least trainer.args.lora_rank, and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment, and see the folder "
                f"{folder}"
            ) from error

    def _unload_unused(self) -> None:
        newest = self.serving.served.model
        for name in [name for name in self._loaded if name != newest]:
            if not self.serving.in_use(name):
                self.admin.post("/v1/unload_lora_adapter", {"lora_name": name})
                shutil.rmtree(self._loaded.pop(name), ignore_errors=True)


@dataclass(eq=False)
class DiskPublisher:
    """Writes the whole model; the server reloads it between two of its steps.

    Args:
        admin: The server.
        serving: Told what is served.
        weights: The model.
        folder: Where it is written; the server must be able to read it.
        drain: Whether to let requests in progress end first; otherwise they stand still, and
            continue with the new weights.
        untied: Whether to write a head of its own, also where it is tied to the embedding.
    """

    admin: Admin
    serving: Serving
    weights: Weights
    folder: Path
    _: KW_ONLY
    drain: bool = False
    untied: bool = False

    @property
    def newest(self) -> Path:
        """Where the newest model is."""
        return self.folder.absolute() / "newest"

    def write(self) -> None:
        """Write the model as it is now."""
        writing = self.newest.with_name("writing")
        shutil.rmtree(writing, ignore_errors=True)
        self.weights.save(writing, untied=self.untied)
        shutil.rmtree(self.newest, ignore_errors=True)
        writing.rename(self.newest)

    def publish(self, version: int) -> None:
        """Write the model and reload it; see :class:`Publisher`."""
        self.write()
        self._reload(version)

    def restore(self) -> None:
        """Reload the newest model; see :class:`Publisher`."""
        if self.newest.is_dir():
            self._reload(self.serving.served.version)

    def _reload(self, version: int) -> None:
        with swapped(self.admin, self.serving, version, drain=self.drain):
            self.admin.post(
                "/collective_rpc",
                {"method": "reload_weights", "kwargs": {"weights_path": str(self.newest)}},
            )
            self.serving.switch(self.serving.served.model, version)


@contextmanager
def swapped(admin: Admin, serving: Serving, version: int, *, drain: bool = False) -> Iterator[None]:
    """Hold the server still while its weights change in place, and then forget what is stale.

    New requests wait on this side. While it is drained, vLLM 0.33 would refuse them.

    Args:
        admin: The server.
        serving: What it serves.
        version: Of the new weights.
        drain: Let requests under way end first; otherwise they stand still, and continue with the
            new weights.

    Raises:
        ConfigError: The server has no such control.
    """
    with serving.hold(drain=drain):
        try:
            admin.post("/pause", mode="wait" if drain else "keep")
        except Refused as error:
            if error.status != 404:
                raise
            raise ConfigError(
                "the server cannot be paused for new weights; it must run with "
                "VLLM_SERVER_DEV_MODE=1 in its environment"
            ) from error
        try:
            yield
            # Requests in progress recompute their contexts: their keys and values are of old
            # weights.
            admin.post("/reset_prefix_cache", reset_running_requests="true")
            admin.post("/update_weight_version", {"new_version": str(version)})
        finally:
            admin.post("/resume", seconds=RESUME_SECONDS)
