"""One rollout with external answers, and the thread in which its coroutines run."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import copy
import math
import os
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from vf.environments.environment import Environment
from vf.environments.runner import CLOSE_TIMEOUT, rollout
from vf.inference.model import Conversation, Reply, Sampling
from vf.runtime.errors import EnvironmentFailure
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace

ENDING = 2 * CLOSE_TIMEOUT  # seconds: a rollout closes two things, each with this timeout


class Episode:
    """The rollout loop, with a model that waits for its answers.

    All of its methods run in one event loop. The environment's ``timeout`` counts only the time
    in which the environment works, not the time in which it waits for an answer.

    Args:
        environment: The definition.
        task: The problem.
        seed: Seed of the rollout.

    Attributes:
        messages: The conversation so far.
        tools: The tools on offer, in OpenAI's format; set once :meth:`advance` has returned.
        trace: The rollout's record, once it has ended.
        one_conversation: An action answers one observation, so a sub-agent cannot ask as well.
    """

    one_conversation = True

    def __init__(self, environment: Environment, task: Task, seed: int) -> None:
        self.messages: list[Message] = []
        self.tools: list[dict[str, Any]] = []
        self.trace: Trace | None = None
        self._timeout = self._left = environment.timeout
        self._environment = copy.copy(environment)
        self._environment.timeout = math.inf  # the rollout's clock does not stop for an answer
        self._task, self._seed = task, seed
        self._waiting = asyncio.Event()
        self._answer: asyncio.Future[Message]
        self._rollout: asyncio.Task[Trace] | None = None

    @property
    def patience(self) -> float:
        """Seconds after which :meth:`advance` must have returned."""
        return self._left + ENDING

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Wait for the answer, as the rollout's model."""
        self.messages, self.tools = list(conversation.messages), conversation.tools
        self._answer = asyncio.get_running_loop().create_future()
        self._waiting.set()
        return Reply(await self._answer)

    async def advance(self, reply: Message | None = None) -> list[Message]:
        """Begin the rollout or give the model's answer; run until the next request or the end.

        Returns:
            The messages that are new to the model.

        Raises:
            EnvironmentFailure: If the environment took too long.
            ConfigError: If it is set up wrongly.
        """
        seen = 0 if reply is None else len(self.messages) + 1
        self._waiting.clear()
        if reply is None or self._rollout is None:
            self._rollout = asyncio.create_task(
                rollout(self._environment, self._task, self, seed=self._seed)
            )
        else:
            self._answer.set_result(reply)
        await self._until_waiting(self._rollout)
        if self._rollout.done():
            self.trace = self._rollout.result()
            self.messages = self.trace.messages
        return self.messages[seen:]

    async def cancel(self) -> None:
        """End the rollout, if it has not ended; its environment is closed."""
        if self._rollout is not None and not self._rollout.done():
            self._rollout.cancel()
            await asyncio.wait([self._rollout], timeout=ENDING)

    async def _until_waiting(self, rollout: asyncio.Task[Trace]) -> None:
        waiting = asyncio.create_task(self._waiting.wait())
        began = time.monotonic()
        try:
            await asyncio.wait(
                [rollout, waiting], timeout=self._left, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
            self._left = max(0.0, self._left - (time.monotonic() - began))
        if not self._waiting.is_set() and not rollout.done():
            await self.cancel()
            raise EnvironmentFailure(f"the episode took longer than its {self._timeout:g} s")


T = TypeVar("T")
START_TIMEOUT = 60.0  # seconds that a thread gets to start
END_TIMEOUT = 60.0  # seconds for everything that still runs to end, containers of a pool included


class BackgroundLoop:
    """An event loop in its own thread. It runs as long as anyone holds it.

    All environments of a process share it, with everything that belongs to a loop, such as a
    pool of sandboxes. The last one to let go ends it, which cancels what still runs.

    Raises:
        EnvironmentFailure: If it does not start.
    """

    def __init__(self) -> None:
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vf-gym", daemon=True)
        self._thread.start()
        if not self._running.wait(START_TIMEOUT):
            raise EnvironmentFailure(f"the event loop did not start in {START_TIMEOUT:g} s")

    def call(self, work: Coroutine[Any, Any, T], *, timeout: float) -> T:
        """Carry out a coroutine and return what it returns.

        Args:
            work: The coroutine to run.
            timeout: Seconds after which the loop must be blocked, for ``work`` has a deadline
                itself.

        Raises:
            EnvironmentFailure: If it did not answer in time. Anything that ``work`` raises passes.
        """
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result(timeout)
        except concurrent.futures.CancelledError:
            raise EnvironmentFailure("the environment was closed while it worked") from None
        except TimeoutError:
            if done.done():
                raise
            done.cancel()
            raise EnvironmentFailure(
                f"the event loop did not answer for {timeout:g} s: a coroutine of the environment "
                "blocks it; make it a plain function, which runs in a thread"
            ) from None

    def end(self) -> None:
        """Cancel what still runs, and end the thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(END_TIMEOUT)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._stay())

    async def _stay(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._running.set()
        await self._stop.wait()


class _Shared:
    """The process's loop, and the number of its holders."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: BackgroundLoop | None = None
        self.holders = 0


_shared = _Shared()


def hold() -> BackgroundLoop:
    """Return the process's loop. It runs until every holder has let go."""
    with _shared.lock:
        if _shared.loop is None:
            _shared.loop = BackgroundLoop()
        _shared.holders += 1
        return _shared.loop


def let_go() -> None:
    """Hold the loop no longer; the last one ends it."""
    with _shared.lock:
        _shared.holders -= 1
        if _shared.holders <= 0:
            _end()


def _end() -> None:
    loop, _shared.loop, _shared.holders = _shared.loop, None, 0
    if loop is not None:
        loop.end()


def _forget() -> None:
    """In a forked child, which has none of the threads."""
    global _shared
    _shared = _Shared()


# Closing a pool of sandboxes needs the standard library's thread pools. These refuse work from the
# end of the main thread on, which is before atexit; what is registered here after them comes first.
getattr(threading, "_register_atexit", atexit.register)(_end)
os.register_at_fork(after_in_child=_forget)
