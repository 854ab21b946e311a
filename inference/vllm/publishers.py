"""How new weights reach a vLLM server: a publisher for each method, and a fallback from NCCL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from vf.inference.engine import Weights
from vf.inference.serving import Serving
from vf.inference.settings import VllmSettings
from vf.inference.vllm.admin import Admin, Refused, swapped
from vf.inference.vllm.nccl import NcclPublisher
from vf.inference.vllm.publish_methods import FIXED, swaps_in_place
from vf.inference.vllm.servers import Server
from vf.inference.vllm.weight_store import StoredWeights, WeightStore
from vf.runtime.errors import ConfigError, EngineError


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
        store: The adapters' folders; the server must be able to read them.
        model: Name of the base model on the server.
    """

    admin: Admin
    serving: Serving
    store: WeightStore
    model: str
    _loaded: dict[str, StoredWeights] = field(default_factory=dict, init=False)

    def publish(self, version: int) -> None:
        """Load the newest adapter; see :class:`Publisher`."""
        self._serve_newest(lambda name: name in self._loaded)
        self._unload_unused()

    def restore(self) -> None:
        """Load the newest adapter again; see :class:`Publisher`."""
        for written in self._loaded.values():
            self.store.release(written)
        self._loaded.clear()
        if self.store.newest is not None:
            # A server that was only out of reach still has it.
            self._serve_newest(lambda name: name in self.admin.models())

    def _serve_newest(self, is_there: Callable[[str], bool]) -> None:
        written = self.store.hold()
        name = f"{self.model}@{written.folder.name}"
        there = is_there(name)
        if name in self._loaded:
            self.store.release(written)  # it is held already
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
                self.store.release(self._loaded.pop(name))


@dataclass(eq=False)
class DiskPublisher:
    """Has the server read the whole model again, between two of its steps.

    Args:
        admin: The server.
        serving: Told what is served.
        store: The model's folder; the server must be able to read it.
        drain: Whether to let requests in progress end first; otherwise they pause, and
            continue with the new weights.
    """

    admin: Admin
    serving: Serving
    store: WeightStore
    _: KW_ONLY
    drain: bool = False

    def publish(self, version: int) -> None:
        """Reload the newest model; see :class:`Publisher`."""
        with (
            self.store.held() as written,
            swapped(self.admin, self.serving, written.version, drain=self.drain),
        ):
            self.admin.post(
                "/collective_rpc",
                {"method": "reload_weights", "kwargs": {"weights_path": str(written.folder)}},
            )
            self.serving.switch(self.serving.served.model, written.version)

    def restore(self) -> None:
        """Reload the newest model again; see :class:`Publisher`."""
        if self.store.newest is not None:
            self.publish(self.store.newest.version)


class Delivery:
    """Brings weights to one server; through the disk from the moment NCCL fails.

    Args:
        settings: ``[inference]``.
        model: Name of the base model on the server.
        weights: The weights in training.
        store: The weights on disk, where servers read them.
        method: The way weights are published.
        server: The server, which is started again where NCCL has failed.
        admin: Its control.
        serving: Told what is served.
        host: Address of this process, as the server reaches it.
        cpu: Whether there is no GPU.
        note: Told what the user should be able to find again after the run.

    Attributes:
        method: How weights are published now.
        copied: Weights that the server begins with in place of the model's, while it starts.
    """

    def __init__(
        self,
        settings: VllmSettings,
        model: str,
        weights: Weights,
        store: WeightStore,
        *,
        method: str,
        server: Server,
        admin: Admin,
        serving: Serving,
        host: str,
        cpu: bool,
        note: Callable[[str], None],
    ) -> None:
        self.method = method
        self.copied: Path | None = None
        self._settings = settings
        self._model = model
        self._weights = weights
        self._store = store
        self._server = server
        self._admin = admin
        self._serving = serving
        self._host = host
        self._cpu = cpu
        self._note = note
        self._publisher = self._make_publisher()

    @property
    def sends(self) -> bool:
        """Whether the trainer's process sends the weights itself, from its own memory."""
        return self.method == "nccl"

    def lay_out(self) -> None:
        """Write the weights that the server begins with, if they are not the model's."""
        if self._serves_copy:
            self.write(0)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Keep the weights that a server reads while it starts."""
        if not self._serves_copy:
            yield
            return
        with self._store.held() as written:
            self.copied = written.folder
            yield

    def write(self, version: int) -> None:
        """Write the weights as they are now for servers that read them, as ``version``."""
        if self.method in ("lora", "disk"):
            self._store.write(version, untied=self._serves_copy)

    def serve(self, version: int) -> None:
        """Serve weights that were written.

        Raises:
            ConfigError: If the server is not set up for it.
            EngineError: If it failed.
        """
        self._bring(lambda: self._publisher.publish(version), version)

    def restore(self) -> None:
        """Bring the newest weights to a server that is back.

        Raises:
            ConfigError: If the server is not set up for it.
            EngineError: If it failed.
        """
        self._bring(self._publisher.restore, self._serving.served.version)

    def forget(self) -> None:
        """Note, in any thread, that the server has begun again."""
        if isinstance(self._publisher, NcclPublisher):
            self._publisher.forget()

    def _bring(self, act: Callable[[], None], version: int) -> None:
        try:
            act()
        except EngineError as error:
            publisher = self._publisher
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
        self._serving.down()
        self.method = "disk"
        self._publisher = self._make_publisher()
        self.write(version)
        with self.starting():
            self._server.start_again()
        self._publisher.publish(version)
        self._serving.up()

    @property
    def _serves_copy(self) -> bool:
        """Whether the server begins with weights from the store.

        On a CPU, vLLM 0.32 packs a tied head apart from the embedding and forgets it when weights
        are read again. So it serves a copy whose head is not tied.
        """
        return self.method == "disk" and self._cpu and not self._settings.base_url

    def _make_publisher(self) -> Publisher:
        if self.method == "lora":
            return LoraPublisher(self._admin, self._serving, self._store, self._model)
        if self.method == "nccl":
            return NcclPublisher(self._admin, self._serving, self._weights, self._host)
        if self.method == FIXED:
            return FixedWeights()
        drain = not swaps_in_place(self.method, self._settings)
        return DiskPublisher(self._admin, self._serving, self._store, drain=drain)
