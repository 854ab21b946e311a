"""How new weights reach a vLLM server: one interface, and a rung for each kind of run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from vf.inference.serving import Serving
from vf.inference.vllm.admin import Admin, Refused
from vf.inference.vllm.shelf import Shelf, Written
from vf.runtime.errors import ConfigError

RESUME_SECONDS = 60.0  # a server that failed may not answer any more


class Publisher(Protocol):
    """Brings weights to one server."""

    def publish(self, version: int) -> None:
        """Serve the newest weights, as ``version``; requests in progress continue.

        Raises:
            ConfigError: If the server is not set up for it.
            EngineError: If the server failed.
        """
        ...

    def restore(self) -> None:
        """Bring the newest weights to a server that has just started, or is back."""
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
        shelf: The adapters' folders; the server must be able to read them.
        model: Name of the base model on the server.
    """

    admin: Admin
    serving: Serving
    shelf: Shelf
    model: str
    _loaded: dict[str, Written] = field(default_factory=dict, init=False)

    def publish(self, version: int) -> None:
        """Load the newest adapter; see :class:`Publisher`."""
        self._serve_newest(lambda name: name in self._loaded)
        self._unload_unused()

    def restore(self) -> None:
        """Load the newest adapter again; see :class:`Publisher`."""
        for written in self._loaded.values():
            self.shelf.release(written)
        self._loaded.clear()
        if self.shelf.newest is not None:
            # A server that was only out of reach still has it.
            self._serve_newest(lambda name: name in self.admin.models())

    def _serve_newest(self, is_there: Callable[[str], bool]) -> None:
        written = self.shelf.hold()
        name = f"{self.model}@{written.folder.name}"
        there = is_there(name)
        if name in self._loaded:
            self.shelf.release(written)  # it is held already
        else:
            self._loaded[name] = written
        if not there:
            self._load(name, written.folder)
        self.serving.switch(name, written.version)

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
                self.shelf.release(self._loaded.pop(name))


@dataclass(eq=False)
class DiskPublisher:
    """Has the server read the whole model again, between two of its steps.

    Args:
        admin: The server.
        serving: Told what is served.
        shelf: The model's folder; the server must be able to read it.
        drain: Whether to let requests in progress end first; otherwise they pause, and
            continue with the new weights.
    """

    admin: Admin
    serving: Serving
    shelf: Shelf
    _: KW_ONLY
    drain: bool = False

    def publish(self, version: int) -> None:
        """Reload the newest model; see :class:`Publisher`."""
        with (
            self.shelf.held() as written,
            swapped(self.admin, self.serving, written.version, drain=self.drain),
        ):
            self.admin.post(
                "/collective_rpc",
                {"method": "reload_weights", "kwargs": {"weights_path": str(written.folder)}},
            )
            self.serving.switch(self.serving.served.model, written.version)

    def restore(self) -> None:
        """Reload the newest model again; see :class:`Publisher`."""
        if self.shelf.newest is not None:
            self.publish(self.shelf.newest.version)


@contextmanager
def swapped(admin: Admin, serving: Serving, version: int, *, drain: bool = False) -> Iterator[None]:
    """Hold the server still while its weights change in place, and then forget what is stale.

    New requests wait on this side. While it is drained, vLLM 0.33 would refuse them.

    Args:
        admin: The server.
        serving: The server's present weights.
        version: The version of the new weights.
        drain: Let requests under way end first; otherwise they pause, and continue with the
            new weights.

    Raises:
        ConfigError: If the server has no such control.
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
