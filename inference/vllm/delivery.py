"""Delivery of weights to one vLLM server, with a fallback when NCCL fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vf.inference.engine import Weights
from vf.inference.serving import Serving
from vf.inference.settings import VllmSettings
from vf.inference.vllm.admin import Admin
from vf.inference.vllm.nccl import NcclPublisher
from vf.inference.vllm.publishers import DiskPublisher, FixedWeights, LoraPublisher, Publisher
from vf.inference.vllm.rungs import FIXED
from vf.inference.vllm.server_args import swaps_in_place
from vf.inference.vllm.servers import Server
from vf.inference.vllm.shelf import Shelf
from vf.runtime.errors import ConfigError, EngineError


class Delivery:
    """Brings weights to one server: from now on through the disk if NCCL fails.

    Args:
        settings: ``[inference]``.
        model: Name of the base model on the server.
        weights: The weights in training.
        shelf: The weights on disk, where servers read them.
        rung: The way weights are published.
        server: The server, which is started again where NCCL has failed.
        admin: Its control.
        serving: Told what is served.
        host: Address of this process, as the server reaches it.
        cpu: Whether there is no GPU.
        note: Told what the user should be able to find again after the run.

    Attributes:
        rung: How weights are published now.
        copied: Weights that the server begins with in place of the model's, while it starts.
    """

    def __init__(
        self,
        settings: VllmSettings,
        model: str,
        weights: Weights,
        shelf: Shelf,
        *,
        rung: str,
        server: Server,
        admin: Admin,
        serving: Serving,
        host: str,
        cpu: bool,
        note: Callable[[str], None],
    ) -> None:
        self.rung = rung
        self.copied: Path | None = None
        self._settings = settings
        self._model = model
        self._weights = weights
        self._shelf = shelf
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
        return self.rung == "nccl"

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
        with self._shelf.held() as written:
            self.copied = written.folder
            yield

    def write(self, version: int) -> None:
        """Write the weights as they are now for servers that read them, as ``version``."""
        if self.rung in ("lora", "disk"):
            self._shelf.write(version, untied=self._serves_copy)

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
        self.rung = "disk"
        self._publisher = self._make_publisher()
        self.write(version)
        with self.starting():
            self._server.start_again()
        self._publisher.publish(version)
        self._serving.up()

    @property
    def _serves_copy(self) -> bool:
        """Whether the server begins with weights from the shelf.

        On a CPU, vLLM 0.32 packs a tied head apart from the embedding and forgets it when weights
        are read again. So it serves a copy whose head is not tied.
        """
        return self.rung == "disk" and self._cpu and not self._settings.base_url

    def _make_publisher(self) -> Publisher:
        if self.rung == "lora":
            return LoraPublisher(self._admin, self._serving, self._shelf, self._model)
        if self.rung == "nccl":
            return NcclPublisher(self._admin, self._serving, self._weights, self._host)
        if self.rung == FIXED:
            return FixedWeights()
        drain = not swaps_in_place(self.rung, self._settings)
        return DiskPublisher(self._admin, self._serving, self._shelf, drain=drain)
