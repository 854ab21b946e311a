"""Who is served: sessions, the adapters that they train, and what they sample from."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from vf.inference.embedded.lora_mixture import Lora
from vf.runtime.http_door import Refused
from vf.trainer.tinker_api.adapter import Adapter, AdapterShape
from vf.trainer.tinker_api.checkpoints import CheckpointPath

REMEMBERED = 1024  # requests of a tenant by their sequence numbers


@dataclass(slots=True)
class Session:
    """A client's session.

    Attributes:
        id: Its id, which nobody can guess.
        seen: When it was last heard of, in monotonic seconds.
        created_at: When it began, in seconds since 1970.
        user_metadata: The client's.
        display_name: The client's.
    """

    id: str
    seen: float
    created_at: float
    user_metadata: dict[str, Any] | None = None
    display_name: str | None = None


@dataclass(slots=True, eq=False)
class Tenant:
    """An adapter that is trained, and its requests in their order.

    Attributes:
        id: The model's id, which is its run's, too.
        session: The session's id.
        shape: What the adapter is for.
        adapter: The adapter; None until it is made.
        waiting: Requests that have not ended.
        tokens: That went through passes.
        seconds: That its requests took.
        since_step: Loss, tokens and seconds of the passes since the last optimizer step.
    """

    id: str
    session: str
    shape: AdapterShape
    adapter: Adapter | None = None
    waiting: int = 0
    tokens: int = 0
    seconds: float = 0.0
    since_step: tuple[float, int, float] = (0.0, 0, 0.0)
    _stepped: float = field(default_factory=time.perf_counter)
    _requests: OrderedDict[int, str] = field(default_factory=OrderedDict)
    _highest: int = 0

    @property
    def trained(self) -> Adapter:
        """The adapter.

        Raises:
            Refused: If it could not be made.
        """
        if self.adapter is None:
            raise Refused(f"model {self.id}: it could not be created", 400)
        return self.adapter

    def repeated(self, seq_id: int | None) -> str | None:
        """Return the request that had this number before, or None for a new one.

        Raises:
            Refused: If its request was forgotten.
        """
        if seq_id is None or seq_id > self._highest:
            return None
        if seq_id not in self._requests and self._highest - seq_id >= REMEMBERED:
            raise Refused(
                f"seq_id = {seq_id}: it is older than the last {REMEMBERED} requests", 400
            )
        return self._requests.get(seq_id)

    def remember(self, seq_id: int | None, request_id: str) -> None:
        """Keep a request by its number."""
        if seq_id is not None:
            self._requests[seq_id] = request_id
            self._highest = max(self._highest, seq_id)
            if len(self._requests) > REMEMBERED:
                self._requests.popitem(last=False)

    @property
    def steps(self) -> int:
        """Optimizer steps that were taken."""
        return 0 if self.adapter is None else self.adapter.steps

    def count_pass(self, loss: float | None, tokens: int, seconds: float) -> None:
        """Count a pass.

        Args:
            loss: The sum over its tokens; None where no gradient was taken.
            tokens: The number of tokens in it.
            seconds: Its duration.
        """
        self.tokens += tokens
        if loss is not None:
            before = self.since_step
            self.since_step = (before[0] + loss, before[1] + tokens, before[2] + seconds)

    def count_step(self, learning_rate: float, grad_norm: float) -> dict[str, float]:
        """Count an optimizer step; return its metrics by the names that a run's have."""
        loss, tokens, seconds = self.since_step
        now, before = time.perf_counter(), self._stepped
        self.since_step, self._stepped = (0.0, 0, 0.0), now
        return {
            "step": self.steps,
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "tokens_per_s/train": tokens / seconds if seconds else 0.0,
            "time/total": now - before,
        }

    def line(self) -> str:
        """Return what it does, in one line."""
        rate = self.tokens / self.seconds if self.seconds else 0.0
        return f"{self.id}: {self.steps} steps, {rate:,.0f} tokens/s, {self.waiting} waiting"


@dataclass(slots=True, eq=False)
class Sampler:
    """What a sampling session samples from.

    Attributes:
        id: Its id.
        session: The session's id.
        path: The checkpoint, if it is one.
        lora: The adapter, if it is in memory.
        adapted: Whether there is one at all.
        clients: How many clients have joined it.
    """

    id: str
    session: str
    path: CheckpointPath | None = None
    lora: Lora | None = None
    adapted: bool = False
    clients: int = 0


def now() -> float:
    """Return the time that sessions are measured by, in seconds."""
    return time.monotonic()
