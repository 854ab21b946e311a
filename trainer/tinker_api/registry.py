"""Who is served with what: sessions, models and samplers, and the order of their requests."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch

from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.lora_mixture import Lora
from vf.runtime.http_door import Refused
from vf.runtime.temporary import make_temporary_folder, remove_tree
from vf.trainer.learning.sharding.weights import fingerprint
from vf.trainer.tinker_api.adapter import lora_from_peft, peft_tensors
from vf.trainer.tinker_api.checkpoints import CheckpointInfo, CheckpointPath, Checkpoints
from vf.trainer.tinker_api.datums import Limits
from vf.trainer.tinker_api.futures import Futures, Result
from vf.trainer.tinker_api.passes import Passes, same_weights
from vf.trainer.tinker_api.requests import CreateSession
from vf.trainer.tinker_api.tenants import Sampler, Session, Tenant, now
from vf.trainer.tinker_api.turns import Turns

T = TypeVar("T")

MOST_SESSIONS = 1024
MOST_WAITING = 256  # requests of one model
SESSION_SECONDS = 900.0  # without a heartbeat, after which a session ends; they come every 10
RESIDENT = 16  # adapters in memory that only samplers need


class Registry:
    """What one base model is served to.

    All methods but the constructor and :meth:`close` are for one event loop. What computes runs in
    one thread: requests of one model in their order, those of different models by turns, see
    :class:`~vf.trainer.tinker_api.turns.Turns`.

    Args:
        names: The model's names in requests; the first is its name in answers, and the last is the
            one that its tokenizer is loaded from.
        engine: Samples from the model; it has started.
        checkpoints: The store of checkpoints.

    Attributes:
        names: As given.
        engine: As given.
        checkpoints: As given.
        fingerprint: A short hash of the model.
        limits: What data must keep to.
        passes: Computes with the model, in the thread, inside :meth:`computing`.
        snapshots: What samplers need, likewise.
        sessions: By their ids.
        tenants: The models, by their ids.
        samplers: The sampling sessions, by their ids.
        futures: Requests under way.
    """

    def __init__(
        self, names: tuple[str, ...], engine: EmbeddedEngine, checkpoints: Checkpoints
    ) -> None:
        self.names, self.engine, self.checkpoints = names, engine, checkpoints
        model = engine.model
        self.limits = Limits(model.config.get_text_config().vocab_size, engine.max_seq_len)
        with engine.paused():
            for parameter in model.parameters():
                parameter.requires_grad_(False)
            self.fingerprint = fingerprint(model)
            if engine.single_threaded:
                model = same_weights(model)
            self.passes = Passes(model, engine.max_seq_len)
        self.snapshots = Snapshots(checkpoints, model.get_input_embeddings().weight.device)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vf-train")
        self._turns = Turns(self._thread)
        self.sessions: dict[str, Session] = {}
        self.tenants: dict[str, Tenant] = {}
        self.samplers: dict[str, Sampler] = {}
        self.futures = Futures()

    def close(self) -> None:
        """Drop what waits, and end the thread after the request under way."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.snapshots.close()
        self.checkpoints.close()

    def create_session(self, body: CreateSession) -> Session:
        """Begin a session.

        Raises:
            Refused: If there are too many.
        """
        self.end_silent()
        if len(self.sessions) >= MOST_SESSIONS:
            raise Refused(f"there are {MOST_SESSIONS} sessions; end one first", 400)
        session = Session(
            uuid.uuid4().hex, now(), time.time(), body.user_metadata, body.display_name
        )
        self.sessions[session.id] = session
        return session

    def session(self, session_id: str) -> Session:
        """Return a session, which has been heard of now.

        Raises:
            Refused: If there is none.
        """
        if session_id not in self.sessions:
            raise Refused(
                f"session {session_id[:200]!r} is unknown: it ended, or the server was restarted. "
                "Create a new client; what was saved can be loaded by its path",
                404,
            )
        self.sessions[session_id].seen = now()
        return self.sessions[session_id]

    def end_session(self, session_id: str) -> None:
        """End a session with its models, samplers and requests."""
        self.sessions.pop(session_id, None)
        self.futures.end_session(session_id)
        for tenant in [t for t in self.tenants.values() if t.session == session_id]:
            del self.tenants[tenant.id]
            self._thread.submit(self.checkpoints.close_run, tenant.id)
        for sampler in [s for s in self.samplers.values() if s.session == session_id]:
            del self.samplers[sampler.id]
            self._thread.submit(self.snapshots.drop, sampler)

    def add_sampler(self, sampler: Sampler) -> None:
        """Keep a new sampler, or drop its adapter if its session has ended meanwhile."""
        if sampler.session in self.sessions:
            self.samplers[sampler.id] = sampler
        else:
            self._thread.submit(self.snapshots.drop, sampler)

    def end_silent(self) -> None:
        """End the sessions whose clients have vanished."""
        for session in [*self.sessions.values()]:
            if session.seen < now() - SESSION_SECONDS:
                self.end_session(session.id)

    def tenant(self, model_id: str) -> Tenant:
        """Return a model.

        Raises:
            Refused: If there is none.
        """
        if model_id not in self.tenants:
            raise Refused(
                f"model {model_id[:200]!r} is not here: it was unloaded, its session ended, or the "
                "server was restarted. Create a training client from its last checkpoint",
                404,
            )
        return self.tenants[model_id]

    def sampler(self, sampler_id: str) -> Sampler:
        """Return a sampling session.

        Raises:
            Refused: If there is none.
        """
        if sampler_id not in self.samplers:
            raise Refused(
                f"sampling session {sampler_id[:200]!r} is not here: its session ended, or the "
                "server was restarted. Create a sampling client from a saved path",
                404,
            )
        return self.samplers[sampler_id]

    def check_base(self, name: str) -> None:
        """See that a base model is the one that is served.

        Raises:
            Refused: If it is another.
        """
        if name not in self.names:
            raise Refused(
                f"base_model {name[:200]!r} is not served here; this is {self.names[0]!r}", 400
            )

    def check_checkpoint(self, path: CheckpointPath, info: CheckpointInfo) -> None:
        """See that a checkpoint is of the model that is served.

        Raises:
            Refused: If it is of another.
        """
        if info.fingerprint != self.fingerprint:
            raise Refused(
                f"{path}: it is of the base model {info.base_model!r}; this server has another", 400
            )

    def in_order(
        self,
        tenant: Tenant,
        seq_id: int | None,
        work: Callable[[], Result],
        *,
        long: bool = False,
    ) -> str:
        """Run a request after those of its model before it, unless it is one of them."""
        if (repeated := tenant.repeated(seq_id)) is not None:
            return repeated
        number = uuid.uuid4().hex if seq_id is None else seq_id
        request_id = self.enqueue(tenant, f"{tenant.id}:{number}", work, long=long)
        tenant.remember(seq_id, request_id)
        return request_id

    def enqueue(
        self,
        tenant: Tenant,
        request_id: str,
        work: Callable[[], Result],
        *,
        long: bool = False,
    ) -> str:
        """Run a request after those of its model before it; return its id.

        Args:
            tenant: The model.
            request_id: The id.
            work: The request.
            long: Whether it is a pass, before which others' short requests go.

        Raises:
            Refused: If too many wait; clients try it again later.
        """
        if tenant.waiting >= MOST_WAITING:
            raise Refused(f"{MOST_WAITING} requests of model {tenant.id} wait already", 429)
        tenant.waiting += 1

        def timed() -> Result:
            begun = time.perf_counter()
            try:
                return work()
            finally:
                tenant.seconds += time.perf_counter() - begun

        async def run() -> Result:
            try:
                return await asyncio.wrap_future(self._turns.submit(tenant.id, timed, long=long))
            finally:
                tenant.waiting -= 1

        self.futures.start(request_id, tenant.session, run())
        return request_id

    def computing(self) -> AbstractContextManager[None]:
        """Hold what would get in the way of :attr:`passes` still until the block ends.

        Where the engine uses one core, passes run beside it, on a module of their own.
        """
        return nullcontext() if self.engine.single_threaded else self.engine.paused()

    async def compute(self, work: Callable[[], T]) -> T:
        """Run something in the thread that computes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def lines(self) -> list[str]:
        """Return a line for each model."""
        return [tenant.line() for tenant in [*self.tenants.values()]]

    def metrics(self) -> str:
        """Return counters and gauges in Prometheus' format."""
        tenants = [*self.tenants.values()]
        values = {
            "vf:generation_tokens_total counter": self.engine.sampled,
            "vf:sessions gauge": len(self.sessions),
            "vf:models gauge": len(tenants),
            "vf:samplers gauge": len(self.samplers),
            "vf:waiting_requests gauge": sum(tenant.waiting for tenant in tenants),
        }
        lines = []
        for name, value in values.items():
            lines += [f"# TYPE {name}", f"{name.split()[0]} {value}"]
        for name, counts in (
            ("vf:trained_steps_total", [tenant.steps for tenant in tenants]),
            ("vf:trained_tokens_total", [tenant.tokens for tenant in tenants]),
        ):
            lines.append(f"# TYPE {name} counter")
            for tenant, count in zip(tenants, counts, strict=True):
                lines.append(f'{name}{{model="{tenant.id}"}} {count}')
        return "\n".join(lines) + "\n"


class Snapshots:
    """Loads and keeps what samplers sample with. One thread at a time may call it.

    Args:
        checkpoints: The store of saved ones.
        device: The device of the model.
    """

    def __init__(self, checkpoints: Checkpoints, device: torch.device) -> None:
        self._checkpoints, self._device = checkpoints, device
        self._folder = make_temporary_folder("snapshots")
        self._resident: OrderedDict[Sampler, None] = OrderedDict()
        self._written: set[Sampler] = set()

    def close(self) -> None:
        """Remove what was written."""
        remove_tree(self._folder)

    def hold(self, sampler: Sampler, lora: Lora) -> None:
        """Keep a sampler's adapter; the one that was not used for longest goes to the disk."""
        sampler.lora = lora
        self._resident[sampler] = None
        self._resident.move_to_end(sampler)
        while len(self._resident) > RESIDENT:
            oldest, _ = self._resident.popitem(last=False)
            if oldest.path is None and oldest.lora is not None:
                self._write(oldest, oldest.lora)
            oldest.lora = None

    def load(self, sampler: Sampler) -> Lora | None:
        """Return a sampler's adapter; None if it samples from the model alone.

        Raises:
            ConfigError: If its checkpoint was deleted.
        """
        if not sampler.adapted:
            return None
        if sampler.lora is None:
            self.hold(sampler, self._read(sampler))
        elif sampler in self._resident:
            self._resident.move_to_end(sampler)
        return sampler.lora

    def drop(self, sampler: Sampler) -> None:
        """Forget a sampler's adapter."""
        self._resident.pop(sampler, None)
        sampler.lora = None
        self._written.discard(sampler)
        self._file(sampler).unlink(missing_ok=True)

    def _write(self, sampler: Sampler, lora: Lora) -> None:
        from safetensors.torch import save_file

        if sampler not in self._written:
            save_file(peft_tensors(lora.weights), self._file(sampler))
            self._written.add(sampler)

    def _read(self, sampler: Sampler) -> Lora:
        from safetensors.torch import load_file

        if sampler.path is not None:
            info, tensors = self._checkpoints.weights(sampler.path)
            return lora_from_peft(tensors, info.shape["rank"], self._device)
        tensors = load_file(self._file(sampler))
        return lora_from_peft(tensors, _rank(tensors), self._device)

    def _file(self, sampler: Sampler) -> Path:
        return self._folder / f"{id(sampler)}.safetensors"


def _rank(tensors: dict[str, Any]) -> int:
    return next(len(tensor) for name, tensor in tensors.items() if ".lora_A." in name)
