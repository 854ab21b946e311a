"""A process that runs rollouts: `python -m vf.trainer.collecting.worker SILENCE`.

The trainer's process starts it (:mod:`vf.trainer.collecting.worker_pool`) and calls it. It has an
environment, a renderer and connections to the inference servers of its own, and ends with the
connection to the trainer's process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import logging
import pickle
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

from vf.environments.environment import Environment
from vf.environments.episode import Activity
from vf.environments.runner import rollout
from vf.environments.sandboxes import prefetch
from vf.inference.model import Sampling
from vf.inference.models.token_model import TokenModel
from vf.inference.token_client import TokenClient
from vf.rubrics.group import score_group
from vf.runtime.calling import call
from vf.runtime.command import complain, quiet_transformers
from vf.runtime.errors import ConfigError, VfError, WorkerLost
from vf.runtime.garbage import fewer_collections
from vf.runtime.meeting import connect
from vf.runtime.open_files import raise_limit
from vf.runtime.peers import Handler, Peer
from vf.runtime.share import take_share
from vf.runtime.visible import VisibleFormatter
from vf.runtime.workers import in_thread
from vf.traces.task import Task
from vf.traces.trace import Origin, Trace
from vf.trainer.collecting.worker_leases import RemoteLeases
from vf.trainer.collecting.worker_setup import Doing, Scored, WorkerSetup
from vf.trainer.run.components import make_environments, make_renderer, token_models
from vf.trainer.run.run_folder import LOG_FORMAT

REPORT_SECONDS = 0.25  # between two reports of what the rollouts do


class Worker:
    """The rollouts of one process. The handlers are for the peer."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {
            "begin": self._begin,
            "prefetch": self._prefetch,
            "rollout": self._rollout,
            "score_group": self._score_group,
        }
        self._peer: Peer | None = None
        self._ending: asyncio.Task[None] | None = None
        self._environments: dict[str, Environment] = {}
        self._client: TokenClient | None = None
        self._models: dict[str, TokenModel] = {}  # by the environment's name
        self._held = ExitStack()  # until it ends
        self._stall = 0.0  # seconds without news of any rollout that are a stall
        self._live = 0  # rollouts under way
        self._news: dict[int, Activity] = {}  # what has changed since the last report
        self._changed = asyncio.Event()

    async def serve(self, silence: float) -> None:
        """Run rollouts until the connection to the trainer's process ends.

        Args:
            silence: Seconds without a sign of life, after which the trainer's process is lost.

        Raises:
            WorkerLost: If the trainer's process cannot be reached.
        """
        self._peer = peer = await connect(self.handlers, "the trainer's process", silence)
        reports = asyncio.create_task(self._report(peer))
        try:
            await peer.serve()
        finally:
            reports.cancel()
            self._held.close()
            if self._client is not None:
                await self._client.close()

    def end(self) -> None:
        """Have :meth:`serve` return once the environments of all rollouts are closed."""
        if self._peer is None:
            sys.exit(0)  # nothing has begun
        if self._ending is None:
            self._ending = asyncio.create_task(self._peer.close())

    async def _begin(self, setup: WorkerSetup) -> None:
        """Make environments and models; may take minutes.

        Raises:
            ConfigError: If an environment cannot be made.
        """
        assert self._peer is not None
        config, args = setup.config, setup.config.args
        take_share(setup.number, setup.count)
        self._stall = args.stall_timeout
        self._environments = await in_thread(_load_environments, setup)
        renderer = await in_thread(make_renderer, config)
        await in_thread(quiet_transformers)
        self._client = TokenClient(
            RemoteLeases(self._peer),
            timeout=args.generation_timeout,
            has_answered=setup.servers_answered,
        )
        self._models = token_models(config, self._client, renderer)
        for environment in self._environments.values():
            if config.cluster.backend != "local":  # the trainer's process could not, from there
                await call(environment.check)
            await call(environment.start)
        self._held.enter_context(fewer_collections())  # what is loaded now is never garbage

    async def _prefetch(self, name: str, tasks: Sequence[Task]) -> None:
        await prefetch(self._environments[name], tasks)

    async def _rollout(
        self,
        number: int,
        name: str,
        task: Task,
        sampling: Sampling,
        seed: int,
        origin: Origin | None,
    ) -> tuple[Trace, bytes | None]:
        """Run a rollout; return its trace, and its JSON unless it is still to be scored."""

        def changed() -> None:
            self._news[number] = activity
            self._changed.set()

        environment, activity = self._environments[name], Activity(task, changed)
        self._live += 1
        try:
            if self._live == 1:
                self._watch()
            trace = await rollout(
                environment,
                task,
                self._models[name],
                sampling=sampling,
                seed=seed,
                activity=activity,
            )
        finally:
            self._news.pop(number, None)
            self._live -= 1
            if not self._live:
                faulthandler.cancel_dump_traceback_later()
        trace.origin = origin
        make_sendable(trace)
        waits = trace.error is None and environment.rubric.group_rewards
        return trace, None if waits else trace.to_json()

    async def _score_group(self, name: str, traces: Sequence[Trace]) -> list[Scored]:
        environment = self._environments[name]
        await score_group(environment.rubric, traces, environment.timeout)
        return [(trace.score, trace.error, trace.to_json()) for trace in traces]

    def _watch(self) -> None:
        """Write all stacks to the log, unless there is news before that counts as a stall.

        The trainer's process says what waits; this says where.
        """
        if self._stall < threading.TIMEOUT_MAX:  # else it is as good as infinite
            faulthandler.dump_traceback_later(self._stall, repeat=True)

    async def _report(self, peer: Peer) -> None:
        while True:
            await self._changed.wait()
            now, news, self._news = time.monotonic(), self._news, {}
            self._changed.clear()
            doing: list[Doing] = [
                (n, new.doing, new.turn, now - new.since) for n, new in news.items()
            ]
            peer.tell("activities", doing)
            if self._live:
                self._watch()
            await asyncio.sleep(REPORT_SECONDS)


def make_sendable(trace: Trace) -> None:
    """Let a trace's info be what its JSON says, if it holds what cannot be sent."""
    try:
        pickle.dumps(trace.info)
    except Exception:  # whatever the author's classes raise
        trace.info = Trace.from_json(trace.to_json()).info


def _load_environments(setup: WorkerSetup) -> dict[str, Environment]:
    paths_before = set(sys.path)
    sys.path += [folder for folder in setup.path if folder not in paths_before]
    for name, module in setup.registrars.items():
        try:
            importlib.import_module(module)
        except VfError:
            raise
        except Exception as error:
            raise ConfigError(
                f"environment {name!r}: {module}, which registers it, "
                f"cannot be imported in a rollout worker: {type(error).__name__}: {error}. Give "
                "the environment a file of its own, or set rollouts.workers = 0"
            ) from error
    environments = make_environments(setup.config)
    for environment in environments.values():
        environment.artifacts = setup.artifacts
    return environments


async def _run(silence: float) -> None:
    worker, loop = Worker(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.end)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C is the trainer's to answer
    await worker.serve(silence)


def main() -> int:
    """Run rollouts until the trainer's process wants no more."""
    stream = logging.StreamHandler()
    stream.setFormatter(VisibleFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[stream], level=logging.WARNING)
    logging.captureWarnings(True)
    raise_limit()
    try:
        asyncio.run(_run(float(sys.argv[1])))
    except (ConfigError, WorkerLost) as error:
        return complain("error", str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
