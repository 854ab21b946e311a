"""The sampler of a server of the Tinker API, as the trainer owns it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from vf.inference.leases import Member, Router, Slot
from vf.inference.reference_sample import ReferenceSample
from vf.inference.serving import Served, Serving
from vf.inference.token_client import TokenClient
from vf.runtime.errors import ModelError
from vf.trainer.tinker_backend.service import TinkerService


class TinkerEngine:
    """Samples on the server that trains; an :class:`~vf.inference.engine.Engine`.

    Args:
        service: The connection.
        away: Seconds for which the server is waited for.
    """

    def __init__(self, service: TinkerService, away: float) -> None:
        self._service = service
        self.serving = Serving(service.base_model)
        self._member = Member(service.base_url, "tinker", service.api_key, away)
        self.leases = Router([Slot(self._member, self.serving)])
        self._holding = ExitStack()
        service.listen(self._hold)

    @property
    def served(self) -> Served:
        """What requests ask for now."""
        return self.serving.served

    @property
    def base_url(self) -> str:
        """The server's URL."""
        return self._service.base_url

    def start(self, say: Callable[[str], None]) -> None:
        """Do nothing: the server is there."""

    def stop(self) -> None:
        """End the session. Safe to call twice."""
        self._service.stop()

    def check(self) -> None:
        """Raise EngineError if the server has been away for too long."""
        self._service.check()

    def sampler(self, timeout: float) -> TokenClient:
        """Return a client that samples; see :class:`~vf.inference.engine.Engine`."""
        return TokenClient(self.leases, timeout=timeout)

    def samplers(self, timeout: float) -> dict[str, TokenClient]:
        """Return a client of each server; see :class:`~vf.inference.engine.Engine`."""
        return {self.base_url: self.sampler(timeout)}

    def leave_out(self, base_url: str, error: ModelError) -> None:
        """Raise the error: there is no other server."""
        raise error

    def remember(self, reference: ReferenceSample) -> None:
        """Do nothing: a server that was restarted has lost the model."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """Hold nothing: the server samples and trains in turns."""
        yield

    def publish(self, version: int) -> None:
        """Sample from the weights as they are now, and call them ``version``.

        Raises:
            TrainingError: If the server refused or failed.
            EngineError: If it has been away for too long.
        """
        trained = self._service.trained
        sampler = self._service.wait(
            trained.save_weights_and_get_sampling_client(), "publishing the weights"
        )
        self.serving.switch(sampler.get_sampler_handle(), version)

    def _hold(self, away: bool) -> None:
        """Let requests wait while the server is away, and give them up where that is for good."""
        self._holding.close()
        if (failure := self._service.failure) is not None:
            self.serving.fail(failure)
            self.serving.down()
        elif away:
            self._holding.enter_context(self.serving.hold(drain=False))
