"""Several vLLM servers as one engine: one that dies is left out until it is back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vf.inference.engine import Weights
from vf.inference.leases import Router
from vf.inference.reference_sample import ReferenceSample
from vf.inference.serving import Served
from vf.inference.settings import VllmSettings
from vf.inference.token_client import TokenClient
from vf.inference.vllm.check_settings import check_divided
from vf.inference.vllm.server_args import Adapters, each_server
from vf.inference.vllm.vllm_engine import VllmEngine
from vf.inference.vllm.weight_store import WeightStore
from vf.runtime.api_keys import hide_urls
from vf.runtime.errors import ConfigError, EngineError, InfrastructureError, ModelError

T = TypeVar("T")
log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
STOP_SECONDS = 30.0  # for the threads that bring servers back


def vllm_engine(
    settings: VllmSettings,
    model: str,
    weights: Weights,
    *,
    folder: Path,
    log_path: Path,
    adapters: Adapters | None,
    cpu: bool,
    note: Callable[[str], None] = log.warning,
    **how: Any,
) -> VllmEngine | ReplicatedEngine:
    """Return the engine of as many servers as the settings ask for, not started.

    Args:
        settings: ``[inference]``.
        model: The base model: a folder or a hub name.
        weights: The weights in training.
        folder: For the weights on their way.
        log_path: The file for the output of the first server; the others' are beside it.
        adapters: The adapters that are loaded at run time, or None for a full fine-tune.
        cpu: Whether there is no GPU.
        note: Told what the user should be able to find again after the run.
        **how: Further arguments of :class:`VllmEngine`.

    Raises:
        ConfigError: If vLLM cannot be found, or a setting is wrong.
    """
    check_divided(settings, cpu=cpu)
    store = WeightStore(weights, folder, None if adapters is None else adapters.form)
    members = [
        VllmEngine(
            server,
            model,
            weights,
            store,
            log_path=log_path if not number else log_path.with_stem(f"{log_path.stem}-{number}"),
            adapters=adapters,
            cpu=cpu,
            note=note,
            **how,
        )
        for number, server in enumerate(each_server(settings))
    ]
    return members[0] if len(members) == 1 else ReplicatedEngine(members, note)


class ReplicatedEngine:
    """Servers of one model that have the same weights; an :class:`~vf.inference.engine.Engine`.

    A server that dies is brought back in a thread, while the others are asked. It gets the newest
    weights, those of a version that was published meanwhile included, and is tried, before it is
    asked again. One that cannot be brought back is left out for the rest of the run, which ends
    when there is none left. One that fails or refuses while others serve is ended, and brought back
    in the same way; but if it fails at the first publish, the run has been set up wrongly.

    Where the trainer sends weights from its own memory (NCCL), a server that is back gets the next
    version that is published, since these weights are in no file. Without any other server it gets
    them at once.

    Args:
        members: One for each server, with the same store.
        note: Told what the user should be able to find again after the run.
    """

    def __init__(
        self, members: Sequence[VllmEngine], note: Callable[[str], None] = log.warning
    ) -> None:
        self.members = tuple(members)
        self.leases = Router([member.slot for member in self.members])
        self._note = note
        self._version = 0
        # Which servers get a version that is published, and which version one gets that is back,
        # is decided under this lock: so none is taken back with an older one.
        self._lock = threading.Lock()
        self._returning: dict[VllmEngine, threading.Thread] = {}
        self._bare: set[VllmEngine] = set()  # back, and waiting for weights to be sent
        self._given_up: set[VllmEngine] = set()
        self._begun = False  # all have been given weights once
        self._stopped = False

    @property
    def served(self) -> Served:
        """What requests ask for now, of a server that can be asked."""
        return (self._live() or self.members)[0].served

    @property
    def base_url(self) -> str:
        """The OpenAI base URL of the first server."""
        return self.members[0].base_url

    def start(self, say: Callable[[str], None]) -> None:
        """Start all servers at the same time; see :class:`~vf.inference.engine.Engine`.

        Raises:
            ConfigError: If a setting is wrong.
            EngineError: If one of them does not start.
        """
        self.members[0].delivery.lay_out()
        count = len(self.members)

        def start(number: int, member: VllmEngine) -> None:
            member.start_server(lambda text: say(f"server {number} of {count}: {text}"))

        _at_once(lambda numbered: start(*numbered), list(enumerate(self.members, 1)), self.stop)

    def stop(self) -> None:
        """Stop all servers. Safe to call twice."""
        self._stopped = True
        _at_once(VllmEngine.stop_server, self.members)
        deadline = time.monotonic() + STOP_SECONDS
        for thread in list(self._returning.values()):
            thread.join(max(0.0, deadline - time.monotonic()))
        for member in self.members:
            member.stop()

    def check(self) -> None:
        """Have servers that have gone brought back, without waiting for them.

        Raises:
            EngineError: If none is left, and none will come back.
        """
        for member in self.members:
            if member in self._returning or member in self._given_up:
                continue
            if member.is_gone and (member not in self._bare or member.server_is_gone):
                self._bare.discard(member)
                self._bring_back(member)
        if len(self._given_up) == len(self.members):
            raise EngineError(
                f"none of the {len(self.members)} vLLM servers is left; the first: "
                f"{self.members[0].serving.failure}"
            )
        if self._bare and not self._live():
            self._send(self._version)

    def sampler(self, timeout: float) -> TokenClient:
        """Return a client that samples from the servers."""
        return TokenClient(self.leases, timeout=timeout, wire=self.members[0].wire)

    def samplers(self, timeout: float) -> dict[str, TokenClient]:
        """Return a client of each server; see :class:`~vf.inference.engine.Engine`."""
        return {
            member.base_url: TokenClient(
                self.leases.only(member.slot), timeout=timeout, wire=member.wire
            )
            for member in self._live()
        }

    def leave_out(self, base_url: str, error: ModelError) -> None:
        """Do without a server until it is back; see :class:`~vf.inference.engine.Engine`."""
        for member in self.members:
            if member.base_url == base_url:
                self._leave_out(member, error)

    def remember(self, reference: ReferenceSample) -> None:
        """Try it on servers that come back; see :class:`~vf.inference.engine.Engine`."""
        for member in self.members:
            member.remember(reference)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Let the servers that are there sleep, if they shall, until the block ends."""
        with ExitStack() as stack:
            for member in self._live():
                stack.enter_context(member.training(partial(self._leave_out, member)))
            yield

    def publish(self, version: int) -> None:
        """Bring the weights as they are now to all servers that can be asked.

        Those that are away get them when they are back.

        Raises:
            ConfigError: If a server is not set up for it.
            EngineError: If none of them takes it, or none is left.
        """
        for member in self.members:
            if not member.delivery.sends:
                member.delivery.write(version)  # for all of them
                break
        with self._lock:
            self._version = version
            live = self._live()
        _at_once(lambda m: self._serve(m, version), [m for m in live if not m.delivery.sends])
        for member in live:
            if member.delivery.sends:  # in this thread, one at a time
                self._serve(member, version)
        self._send(version)
        self._begun = True
        while not self._live():
            self.check()
            time.sleep(POLL_SECONDS)

    def _live(self) -> list[VllmEngine]:
        return [member for member in self.members if member.serving.is_up]

    def _send(self, version: int) -> None:
        """Send weights to the servers that are back and wait for them."""
        for member in list(self._bare):
            self._bare.discard(member)
            if self._serve(member, version):
                member.take_back()

    def _serve(self, member: VllmEngine, version: int) -> bool:
        """Bring weights to one server; return whether it has them."""
        try:
            return member.serve(version)
        except (ConfigError, EngineError) as error:
            if not self._begun:
                raise
            self._leave_out(member, error)
            return False

    def _leave_out(self, member: VllmEngine, error: ConfigError | ModelError) -> None:
        """Take down a server that failed.

        Raises:
            ConfigError: If no other can be asked: the error.
            ModelError: If no other can be asked: the error.
        """
        with self._lock:
            if not any(other is not member for other in self._live()):
                raise error
            member.serving.down()
        log.warning("the vLLM server at %s is left out: %s", hide_urls(member.base_url), error)
        member.take_down()

    def _bring_back(self, member: VllmEngine) -> None:
        member.serving.down()
        left = len(self._live())
        where = hide_urls(member.base_url)
        log.warning("the vLLM server at %s has gone; %d others are asked", where, left)
        if member.sleeps:  # it would start on the trainer's GPU while that trains
            self._return(member)
            return
        thread = threading.Thread(
            target=self._return, args=[member], name="vf-server-return", daemon=True
        )
        self._returning[member] = thread
        thread.start()

    def _return(self, member: VllmEngine) -> None:
        """Bring one server back, and give it the newest weights."""
        try:
            member.revive()
            while not (member.delivery.sends or self._restored(member)):
                member.revive()
            if member.delivery.sends:
                self._bare.add(member)
        except (ConfigError, InfrastructureError) as error:
            if not self._stopped:
                self._given_up.add(member)
                member.take_down()
                self._note(f"a vLLM server is given up, and the run continues without it: {error}")
        finally:
            self._returning.pop(member, None)

    def _restored(self, member: VllmEngine) -> bool:
        """Return whether a server has the newest weights, and is asked again."""
        while member.restore():
            with self._lock:
                if member.served.version == self._version:
                    member.take_back()
                    return True
        return False


def _at_once(
    act: Callable[[T], object], items: Sequence[T], give_up: Callable[[], None] | None = None
) -> None:
    """Do something with each of several servers at the same time.

    Args:
        act: The function to call.
        items: Its arguments, one for each server.
        give_up: Called at the first error, and ends what is still under way.

    Raises:
        Exception: If one raised it first; once all have ended.
    """
    pool = ThreadPoolExecutor(max(1, len(items)), thread_name_prefix="vf-servers")
    try:
        done, _ = wait([pool.submit(act, one) for one in items], return_when=FIRST_EXCEPTION)
        for ended in done:
            ended.result()
    except BaseException:
        if give_up is not None:
            give_up()
        raise
    finally:
        pool.shutdown()
