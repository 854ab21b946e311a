"""The sandbox of an episode: opened when it is first needed, closed with the episode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias, TypeVar

from vf.runtime.errors import ConfigError, SandboxError, ToolError
from vf.runtime.own_deadline import own_deadline
from vf.sandbox.contract import ExecResult, Sandbox, positive
from vf.sandbox.source import SandboxSource
from vf.sandbox.spec import SandboxSpec
from vf.tools.episode import Episode
from vf.tools.tool_box import off_the_clock

Result = TypeVar("Result")
Run: TypeAlias = Callable[[Sandbox, float], Awaitable[ExecResult]]

TURN_SHARE = 0.5  # of the tool timeout, for all calls of one turn together
EPISODE_SHARE = 0.5  # of the rollout's timeout, for all calls together: who sleeps is scored, too
PATIENCE = 90.0  # seconds, past a call's own limit, until a sandbox must have answered


class EpisodeSandbox:
    """The one sandbox that an episode's tools share, and a fresh one to grade in.

    An environment has it as ``self.sandbox``. Nothing is opened before it is first needed::

        def reset(self, task: vf.Task) -> list[vf.Message]:
            self.sandbox.write("data.csv", task.info["data"])
            return self.first_messages(task)

    Args:
        source: The source that opens it. Tools that were given the same source share the sandbox.
        timing: The episode's ``timing``: its ``"sandbox"`` becomes the seconds spent waiting
            for sandboxes.
        spec: Spec of the sandbox; None for the source's own settings.

    Attributes:
        prepare: Called with the new sandbox, once, when its files are written and before
            anything else sees it.
        timeouts: Calls that were killed for taking too long, or had no time left to run.
    """

    def __init__(
        self, source: SandboxSource, timing: dict[str, float], spec: SandboxSpec | None = None
    ) -> None:
        self.prepare: Callable[[Sandbox], Awaitable[None]] | None = None
        self.timeouts = 0
        self._source = source
        self._spec = spec
        self._timing = timing
        self._lock = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._stack = AsyncExitStack()
        self._closed = False
        self._files: dict[str, str | bytes] = {}
        self._turn = -1
        self._spent = 0.0  # seconds of this turn
        self._spent_before = 0.0  # of the turns before it

    @classmethod
    def of(cls, episode: Episode, source: SandboxSource) -> EpisodeSandbox:
        """Return the episode's sandbox from this source, which the episode will close."""
        return episode.hold(source, lambda: cls(source, episode.timing, episode.task_sandbox))

    @property
    def opened(self) -> bool:
        """Whether anything has needed it yet, and it is open."""
        return self._sandbox is not None

    def write(self, path: str, content: str | bytes) -> None:
        """Have a file in the sandbox from the beginning: for ``reset``.

        It is written when the sandbox is opened, before :attr:`prepare`. Missing folders are made;
        a relative path begins at the directory in which the model's code runs.

        Raises:
            ConfigError: If the content is neither text nor bytes, or the sandbox is open already.
        """
        if not isinstance(content, str | bytes):
            raise ConfigError(
                f"sandbox.write({path!r}): the content must be text or bytes, "
                f"got {type(content).__name__}"
            )
        if self._sandbox is not None:
            raise ConfigError(
                f"sandbox.write({path!r}): the sandbox is open already; write in reset, or with "
                "await self.sandbox.use(lambda box: box.write_file(path, data))"
            )
        self._files[path] = content

    async def use(self, action: Callable[[Sandbox], Awaitable[Result]]) -> Result:
        """Run an action in the sandbox, after those that were requested before.

        The calls of one turn arrive together and share the sandbox's state, so they run one after
        the other, in the order in which the model wrote them.

        The clock of a tool call pauses meanwhile. The sandbox has its own limits, and tells
        whether it is the code that exceeded one: a tool that ran out of time would not be scored.

        Raises:
            SandboxError: If the sandbox failed, does not answer, or the episode has ended.
        """
        async with self._next() as sandbox:
            return await _answered(action(sandbox), PATIENCE)

    async def run(self, episode: Episode, run: Run, timeout: float) -> ExecResult:
        """Run code, for no longer than ``timeout`` and what is left of the turn's time.

        All calls of one turn together get half of the environment's ``tool_timeout``, and those of
        an episode half of its ``timeout``: code that sleeps cannot use up the rollout's time, and
        so keep it from being scored. The clock of the tool call pauses meanwhile, as in
        :meth:`use`.

        Args:
            episode: Episode that the call belongs to.
            run: Gets the sandbox and the limit in seconds.
            timeout: Seconds for this call.

        Raises:
            SandboxError: If the sandbox failed, does not answer, or the episode has ended.
            ToolError: If there is too much code to run, or ``timeout`` is not positive and finite.
        """
        positive("timeout", timeout)
        async with self._next() as sandbox:
            if episode.turn != self._turn:
                self._spent_before += self._spent
                self._turn, self._spent = episode.turn, 0.0
            of_turn = TURN_SHARE * episode.tool_timeout - self._spent
            of_episode = EPISODE_SHARE * episode.timeout - self._spent_before - self._spent
            limit = min(timeout, of_turn, of_episode)
            if limit <= 0:
                whole = "episode" if of_episode <= 0 else "turn"
                message = f"Not run: the calls of this {whole} have used up their time."
                result = ExecResult(124, stderr=message, timed_out=True)
            else:
                try:
                    result = await _answered(run(sandbox, limit), limit + PATIENCE)
                except ValueError as error:
                    raise ToolError(str(error)) from error
                self._spent += result.duration
            self.timeouts += result.timed_out
            return result

    @asynccontextmanager
    async def fresh(self, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
        """Close the episode's sandbox, for good, and open one that nobody has used.

        Args:
            spec: Spec of the sandbox; by default, what the episode's was.

        Raises:
            ConfigError: If the source cannot make such a sandbox.
            SandboxError: If none can be opened.
        """
        await self.close()
        async with AsyncExitStack() as stack:
            yield await self._enter(stack, spec or self._spec)

    async def close(self) -> None:
        """Close the sandbox, if it was opened. Safe to call twice."""
        self._closed, self._sandbox = True, None
        await self._stack.aclose()

    @asynccontextmanager
    async def _next(self) -> AsyncIterator[Sandbox]:
        with off_the_clock():
            async with self._lock:
                yield await self._get()

    async def _get(self) -> Sandbox:
        if self._sandbox is None and not self._closed:
            sandbox = await self._enter(self._stack, self._spec)
            for path, content in self._files.items():
                try:
                    await sandbox.write_file(path, content)
                except (OSError, ValueError) as error:
                    raise ConfigError(f"sandbox.write({path!r}) failed: {error}") from error
            if self.prepare is not None:
                await self.prepare(sandbox)
            if self._closed:  # the episode ended meanwhile, and did not see this one
                await self._stack.aclose()
            else:
                self._sandbox = sandbox
        if self._sandbox is None:
            raise SandboxError("the episode has ended, and its sandbox with it")
        return self._sandbox

    async def _enter(self, stack: AsyncExitStack, spec: SandboxSpec | None) -> Sandbox:
        began = time.monotonic()
        try:
            with own_deadline():  # an image's build has one, and a sandbox's start
                return await stack.enter_async_context(self._source.open(spec))
        finally:
            waited = time.monotonic() - began
            self._timing["sandbox"] = self._timing.get("sandbox", 0.0) + waited


async def _answered(call: Awaitable[Result], seconds: float) -> Result:
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await call
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise SandboxError(f"the sandbox did not answer within {seconds:g} s") from error
