"""The engine from the trainer's view: a server that it owns and publishes weights to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from vf.inference.leases import Leases
from vf.inference.reference_sample import ReferenceSample
from vf.inference.serving import Served
from vf.inference.token_client import TokenClient
from vf.runtime.errors import ModelError


class Weights(Protocol):
    """The trained weights, as an engine can have them."""

    def save(self, folder: Path, *, untied: bool = False) -> None:
        """Write the adapter or the model in Hugging Face's format.

        Args:
            folder: The folder to write to.
            untied: Write a head of its own, also where the model shares the embedding's weights.
        """
        ...

    def named_tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield every parameter of a full fine-tune by its name in Hugging Face's format."""
        ...


class Engine(Protocol):
    """An inference server that the trainer owns, or several as one."""

    @property
    def served(self) -> Served:
        """What requests ask for now."""
        ...

    @property
    def leases(self) -> Leases:
        """Which server a request goes to. Clients in other processes ask here, too."""
        ...

    @property
    def base_url(self) -> str:
        """The OpenAI base URL, up to and including ``/v1``."""
        ...

    def start(self, say: Callable[[str], None]) -> None:
        """Start, and return when requests are answered.

        Args:
            say: Told, now and then, what is being waited for.

        Raises:
            ConfigError: If a setting is at fault.
            EngineError: If the engine does not start.
        """
        ...

    def stop(self) -> None:
        """Stop at once. Safe to call twice."""
        ...

    def check(self) -> None:
        """Do nothing if all is well; a server that can be started again is.

        Raises:
            EngineError: If it is dead; of several servers, if all are.
        """
        ...

    def sampler(self, timeout: float) -> TokenClient:
        """Return a client that samples from it.

        Args:
            timeout: Seconds without progress after which completions are given up; see
                :class:`~vf.inference.patience.Patience`.
        """
        ...

    def samplers(self, timeout: float) -> Mapping[str, TokenClient]:
        """Return a client of each server that can be asked now, by the server's URL."""
        ...

    def leave_out(self, base_url: str, error: ModelError) -> None:
        """Ask a server no more that does not answer as it should, until it was brought back.

        Args:
            base_url: The server's address; see :meth:`samplers`.
            error: The error of a request to it.

        Raises:
            ModelError: If no other server can be asked; it is ``error``.
        """
        ...

    def remember(self, reference: ReferenceSample) -> None:
        """Have a server that comes back answer like this, before it is asked again."""
        ...

    def training(self) -> AbstractContextManager[None]:
        """Make room for the trainer: hold what would disturb it until the block ends."""
        ...

    def publish(self, version: int) -> None:
        """Sample from the weights as they are now, and call them ``version``.

        Of several servers, each that can be asked has them when this returns.

        Raises:
            EngineError: If the weights could not be brought to the server.
        """
        ...
