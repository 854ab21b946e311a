"""The trainer thread's side of the rollouts."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from vf.cluster.fleet import Fleet
from vf.environments.registry import registrar
from vf.environments.runner import CLOSE_TIMEOUT
from vf.evaluation.evaluate import Evaluation
from vf.inference.engine import Engine
from vf.inference.token_client import TokenClient
from vf.runtime.errors import TrainingError
from vf.runtime.garbage import fewer_collections
from vf.traces.store import TraceStore
from vf.traces.trace import Trace
from vf.traces.writer import TraceWriter
from vf.trainer.collecting.background_loop import BackgroundLoop
from vf.trainer.collecting.orchestrator import Orchestrator, Queue
from vf.trainer.collecting.runners import Ended, InProcess
from vf.trainer.collecting.worker_pool import WorkerPool
from vf.trainer.collecting.worker_setup import WorkerSetup
from vf.trainer.run.components import token_models
from vf.trainer.run.display import Display
from vf.trainer.run.group import Group
from vf.trainer.run.metrics import Metrics
from vf.trainer.run.plan import Plan
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.overlap import steps_ahead
from vf.trainer.watching.eval_metrics import evaluation_metrics
from vf.trainer.watching.step_clock import StepClock
from vf.trainer.watching.watchdog import Watchdog

T = TypeVar("T")
log = logging.getLogger("vf.environments")

STOP_TIMEOUT = 3 * CLOSE_TIMEOUT  # seconds; an environment may take CLOSE_TIMEOUT twice to close


class Collector:
    """Runs an :class:`Orchestrator` in a thread of its own, and writes every trace.

    While the trainer waits here, it notices within a second if the engine or a step ahead failed,
    or a trace could not be written.

    Args:
        plan: The run.
        engine: Samples the rollouts; it has been started.
        fleet: The fleet that places worker processes.
        folder: The folder of the traces.
        display: Shows them.
        clock: Receives what the awaited rollouts are doing.
        note: Called with a description of every stall, and of every task that is left out.

    Attributes:
        orchestrator: The event loop's side.
        sampler: The client through which rollouts reach the engine.
        watchdog: Reports stalls.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        engine: Engine,
        fleet: Fleet,
        folder: RunFolder,
        display: Display,
        clock: StepClock,
        note: Callable[[str], None],
    ) -> None:
        args = plan.config.args
        self._plan = plan
        self._engine = engine
        self._folder = folder
        self._display = display
        self._clock = clock
        self._step = 0  # whose rollouts are awaited
        self._stores: dict[int, TraceStore] = {}  # of the open steps
        self._ended: Counter[int] = Counter()  # rollouts by step
        self._evaluation: tuple[Future[dict[str, Evaluation]], TraceStore] | None = None
        self._stopped = False
        self._collections = ExitStack()
        self._collections.enter_context(fewer_collections())  # rollouts run in this process, too
        self._writer = TraceWriter()
        self._loop = BackgroundLoop()
        self._fleet = fleet
        self.sampler: TokenClient = engine.sampler(args.generation_timeout)
        self.orchestrator = Orchestrator(
            plan.environments,
            self._workers(note) if plan.workers else self._in_process(),
            args=args,
            leases=engine.leases,
            ahead=steps_ahead(plan.config),
            on_trace=self._on_trace,
            beat=lambda: self.watchdog.beat(),
            note=note,
        )
        self.watchdog = Watchdog(
            args.stall_timeout,
            look=self.orchestrator.activities,
            tell=note,
            path=folder.stalls,
        )
        try:
            self.call(self.orchestrator.runner.start())
        except BaseException:
            self.stop()
            raise

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine beside the rollouts, and wait for its result.

        Raises:
            EngineError: If the engine died.
            TrainingError: If too many rollouts of a step ahead failed.
        """
        return self._loop.call(work, self._watch)

    def open(self, first: int, version: int) -> None:
        """Start every step that may start; see :meth:`Orchestrator.open`."""
        self.call(self.orchestrator.open(first, version))

    def arriving(self, step: int) -> Iterator[Group]:
        """Yield the groups of an open step as they finish.

        Raises:
            TrainingError: If too many rollouts failed.
            EngineError: If the engine died.
        """
        self._step = step
        while True:
            with self._clock.waiting(lambda: self.orchestrator.activities(step)):
                group = self.call(self.orchestrator.next_group(step))
            if group is None:
                break
            yield group
        if (store := self._stores.pop(step, None)) is not None:
            self._close(store)

    def begin_evaluation(self, step: int) -> None:
        """Start the evaluation on the held-out tasks after ``step`` training steps."""
        members, done = self._plan.environments, 0
        total = sum(
            member.args.eval_rollouts_per_example * len(member.eval_tasks) for member in members
        )
        store = self._folder.eval_traces(step)

        def on_trace(ended: Ended) -> None:
            nonlocal done
            done += 1
            self._writer.append(store, *ended)
            _log_failure(ended.trace)
            self._display.rollouts(done, total, evaluating=True)

        self._evaluation = self._loop.submit(self.orchestrator.evaluate(on_trace)), store

    def end_evaluation(self) -> Metrics:
        """Wait for the evaluation under way, and return its metrics; none if there is none.

        Raises:
            TrainingError: If too many of its rollouts failed, or none could be scored.
            EngineError: If the engine died.
        """
        if self._evaluation is None:
            return {}
        (future, store), self._evaluation = self._evaluation, None
        with self._clock.part("evaluate"):
            results = self._loop.wait(future, self._watch)
        self._close(store)
        return evaluation_metrics(results, self._plan.environments)

    def try_each(self) -> list[Trace]:
        """Run one rollout of each environment's first train task."""
        return self.call(self.orchestrator.try_each())

    def queue(self) -> Queue:
        """Return what is ahead of training, to be saved."""
        return self.call(self.orchestrator.queue())

    def restore(self, queue: Queue) -> None:
        """Resume a saved queue; see :meth:`Orchestrator.restore`."""
        self.call(self.orchestrator.restore(queue))

    def stop(self) -> None:
        """End everything in flight. Safe to call twice."""
        if self._stopped:
            return
        self._stopped = True
        self.watchdog.stop()
        if self._evaluation is not None:
            self._evaluation[0].cancel()
        with ExitStack() as stack:  # the last is first; each also where one before it failed
            stack.callback(self._collections.close)
            for store in self._stores.values():
                stack.callback(store.close)
            stack.callback(self._writer.stop)
            stack.callback(self._loop.stop)
            stack.callback(self._end, self.sampler.close)
            stack.callback(self._end, self.orchestrator.runner.stop)
            stack.callback(self._end, self.orchestrator.stop)

    def _end(self, stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stop a part of what is in flight, in bounded time."""
        deadline = time.monotonic() + STOP_TIMEOUT

        def watch() -> None:
            if time.monotonic() > deadline:
                raise TrainingError(f"rollouts did not end within {STOP_TIMEOUT:g} s; left behind")

        self._loop.call(stop(), watch)

    def _in_process(self) -> InProcess:
        models = token_models(self._plan.config, self.sampler, self._plan.renderer)
        members = self._plan.environments
        return InProcess(
            {member.name: (member.environment, models[member.name]) for member in members}
        )

    def _workers(self, note: Callable[[str], None]) -> WorkerPool:
        config, members = self._plan.config, self._plan.environments
        modules = {member.name: registrar(member.settings.id) for member in members}
        setup = WorkerSetup(
            config,
            artifacts=members[0].environment.artifacts,
            path=sys.path,
            registrars={name: module for name, module in modules.items() if module is not None},
            number=0,
            count=self._plan.workers,
        )
        return WorkerPool(
            setup,
            fleet=self._fleet,
            leases=self._engine.leases,
            logs=self._folder.logs,
            note=note,
        )

    def _close(self, store: TraceStore) -> None:
        with _unwritten():
            self._writer.close(store)

    def _watch(self) -> None:
        self._engine.check()
        with _unwritten():
            self._writer.check()
        self.orchestrator.check()
        self._clock.sample(self.orchestrator.activities(self._step))

    def _on_trace(self, step: int, ended: Ended) -> None:
        """Keep a finished training rollout. Called from the rollouts' thread."""
        if step not in self._stores:
            self._stores[step] = self._folder.step_traces(step)
        self._writer.append(self._stores[step], *ended)
        self._ended[step] += ended.trace.error is None
        self._display.rollouts(self._ended[self._step], self._plan.config.args.batch_size)
        _log_failure(ended.trace)


@contextmanager
def _unwritten() -> Iterator[None]:
    """Translate the error of a trace that could not be written: it ends the run."""
    try:
        yield
    except OSError as error:
        raise TrainingError(str(error)) from error


def _log_failure(trace: Trace) -> None:
    if (error := trace.error) is not None:
        log.warning(
            "task %s failed, in the %s: %s\n%s",
            trace.task.id,
            error.boundary,
            error.message,
            error.traceback.rstrip(),
        )
