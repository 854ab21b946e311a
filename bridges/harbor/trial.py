"""One episode of one task: its container, its phases, and what the tests said."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vf.bridges.harbor import container
from vf.bridges.harbor.artifacts import Keeper
from vf.bridges.harbor.config import Healthcheck
from vf.bridges.harbor.model import Part, TaskFolder, World
from vf.bridges.harbor.specs import PROXY_PORT, agent_seconds, resolved
from vf.bridges.harbor.verdict import Verdict, combine
from vf.bridges.harbor.verifying import Known, put_right, run_tests
from vf.runtime.errors import ConfigError, EnvironmentFailure
from vf.runtime.own_deadline import own_deadline
from vf.sandbox.contract import ExecResult, Sandbox
from vf.sandbox.services.opening import Services
from vf.sandbox.services.proxy import Proxy
from vf.sandbox.spec import SandboxSpec

MOST_OUTPUT = 8000  # characters of what tests print that are recorded: the last ones
SETUP_TIMEOUT = 300.0  # seconds for a step's setup.sh


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all tasks of an environment.

    Attributes:
        network: Whether tasks get the network that they ask for.
        agent_timeout: Seconds for an agent whose task does not say.
        reward_key: Which of several keys is the reward.
        host_env: Variables of this machine that tasks may take over.
        spec: Makes the spec of a container, for a user.
        open: Opens a sandbox.
        known: What is known of the tasks' images.
    """

    network: bool
    agent_timeout: float
    reward_key: str
    host_env: Sequence[str]
    spec: Callable[[TaskFolder, World, str | None], SandboxSpec]
    open: Callable[[SandboxSpec], AbstractAsyncContextManager[Sandbox]]
    known: dict[SandboxSpec, Known] = field(default_factory=dict)


@dataclass(slots=True)
class Trial:
    """One episode of one task.

    Attributes:
        task: The task.
        rules: What holds for all tasks.
        put_back: Whether the image's programs are put back before the tests run.
        keep_running: Whether what the agent left running is still there when the tests run.
        folder: Where artifacts are kept; None to keep none.
        info: What is recorded of the episode, under ``harbor`` in ``Trace.info``.
        verdicts: Of the parts that were verified.
    """

    task: TaskFolder
    rules: Rules
    put_back: bool = True
    keep_running: bool = False
    folder: Path | None = None
    info: dict[str, Any] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    _sandbox: Sandbox | None = None
    _proxy: Proxy | None = None
    _services: Services | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _spent: float = 0.0
    _stopped: bool = False

    @property
    def part(self) -> Part:
        """The part that is being worked on, or was last."""
        return self.task.parts[min(len(self.verdicts), len(self.task.parts) - 1)]

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do: all parts are verified, or one fell short."""
        return self._stopped or len(self.verdicts) == len(self.task.parts)

    @property
    def seconds(self) -> float:
        """How long the agent has for this part."""
        return agent_seconds(self.part, self.rules.agent_timeout)

    @property
    def late(self) -> bool:
        """Whether the agent has used up its time for this part."""
        return self._spent >= self.seconds

    @property
    def reward(self) -> float:
        """What the verdicts so far are worth, in [0, 1]."""
        key = self.rules.reward_key
        return combine(self.verdicts, len(self.task.parts), self.task.strategy, key)

    @property
    def rewards(self) -> dict[str, float]:
        """What the tests said, by key: the mean of all parts, or the last one's."""
        found = list(self.verdicts)[-1:] if self.task.strategy == "final" else self.verdicts
        keys = dict.fromkeys(key for verdict in found for key in verdict.rewards)
        count = len(self.task.parts) if self.task.strategy == "mean" else 1
        return {key: sum(each.rewards.get(key, 0.0) for each in found) / count for key in keys}

    def record(self) -> dict[str, Any]:
        """Return what is recorded of the episode."""
        found = {**self.info, "reward": self.reward, "keys": self.rewards}
        if self._proxy is not None:
            found["network"] = asdict(self._proxy.stats())
        if self._services is not None:
            logs = self._services.logs()
            found["services"] = {name: log[-MOST_OUTPUT:] for name, log in logs.items()}
        return found

    @property
    def sandbox(self) -> Sandbox:
        """The agent's container.

        Raises:
            EnvironmentFailure: It has not been opened.
        """
        if self._sandbox is None:
            raise EnvironmentFailure("the task's container is not open")
        return self._sandbox

    async def begin(self, sandbox: Sandbox) -> None:
        """Make a fresh container ready for the agent.

        Raises:
            EnvironmentFailure: It does not get ready. Nothing of the agent's has run in it.
            SandboxError: It is lost.
        """
        self._sandbox = sandbox
        if self.task.world.compose is not None:
            self._services = Services.beside(sandbox)
        with own_deadline():
            if self.rules.network:
                self._proxy = await self._stack.enter_async_context(Proxy(self.task.world.allow))
                await sandbox.forward(self._proxy.address, port=PROXY_PORT)
            await container.make_folders(sandbox)
            if self.task.world.healthcheck is not None:
                problem = await healthy(sandbox, self.task.world.healthcheck)
                if problem:
                    raise EnvironmentFailure(f"task {self.task.id!r}: {problem}")
            if problem := await self._prepare():
                raise EnvironmentFailure(f"task {self.task.id!r}: {problem}")

    async def close(self) -> None:
        """End what the episode holds beside its container."""
        await self._stack.aclose()

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count what runs within against the agent's time."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._spent += time.monotonic() - began

    async def solve(self) -> ExecResult:
        """Run the reference solution of this part.

        Raises:
            ConfigError: There is none, or one of its variables is not there.
        """
        script = self.part.solution
        if script is None:
            raise ConfigError(f"task {self.task.id!r} has no solution: {self.task.path}")
        where = f"{self.task.path}: solution.env"
        env = {
            "DEBIAN_FRONTEND": "noninteractive",
            **resolved(script.env, where, self.rules.host_env),
        }
        with own_deadline():
            await container.copy_in(self.sandbox, script)
            result = await self.sandbox.exec(
                container.command(script), env=env, timeout=self.seconds
            )
        said = (result.stdout + result.stderr)[-MOST_OUTPUT:]
        self.info["solution"] = {"exit_code": result.returncode, "output": said}
        return result

    async def verify(self) -> Verdict:
        """End the agent's phase, run the tests of this part, and begin the next one, if any.

        Raises:
            SandboxError: A container is lost: nothing is known about the agent's work.
        """
        part = self.part
        with own_deadline():
            verdict, record = await self._verified(part)
            self.verdicts.append(verdict)
            record |= {"rewards": dict(verdict.rewards)}
            record |= {"problem": verdict.problem} if verdict.problem else {}
            if len(self.task.parts) > 1:
                self.info.setdefault("steps", {})[part.name] = record
            else:
                self.info.update(record)
            self._stopped = not verdict.reaches(part.min_reward)
            if not self.over:
                self._spent = 0.0
                problem = await self._next()
                if problem:  # what came before may have brought it about
                    self._stopped = True
                    record["next"] = problem
        return verdict

    async def _verified(self, part: Part) -> tuple[Verdict, dict[str, Any]]:
        record: dict[str, Any] = {}
        try:
            if not self.keep_running:
                await container.end_programs(self.sandbox)
            if self.put_back:
                spec = self._spec(self.task.world)
                known = self.rules.known.setdefault(spec, Known())
                record |= await put_right(self.sandbox, self._fresh, known)
            async with Keeper(self.folder, self.task.id, part.name) as keeper:
                record |= await keeper.collect(self.sandbox, part)
                if part.own is None:
                    self._allow(part.verifier.allow)
                    return await self._tested(self.sandbox, part, record, own=False)
                async with self._own(part) as sandbox:
                    await keeper.hand_on(sandbox, part)
                    return await self._tested(sandbox, part, record, own=True)
        except container.Spoilt as spoilt:
            return Verdict(problem=str(spoilt)), record

    async def _tested(
        self, sandbox: Sandbox, part: Part, record: dict[str, Any], *, own: bool
    ) -> tuple[Verdict, dict[str, Any]]:
        where = f"{self.task.path}: verifier.env"
        env = resolved(part.tests.env, where, self.rules.host_env)
        verdict, result = await run_tests(
            sandbox, part, env, key=self.rules.reward_key, end=not (own or self.keep_running)
        )
        if result is not None:
            record["tests"] = {
                "exit_code": result.returncode,
                "seconds": round(result.duration, 3),
                "output": (result.stdout + result.stderr)[-MOST_OUTPUT:],
            }
        return verdict, record

    def _spec(self, world: World) -> SandboxSpec:
        return self.rules.spec(self.task, world, self.task.parts[0].agent.user)

    @asynccontextmanager
    async def _fresh(self) -> AsyncIterator[Sandbox]:
        """Open an unused container like the agent's."""
        async with self.rules.open(self._spec(self.task.world)) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def _own(self, part: Part) -> AsyncIterator[Sandbox]:
        """Open the tests' own container."""
        assert part.own is not None
        spec = self.rules.spec(self.task, part.own, part.verifier.user)
        async with AsyncExitStack() as stack:
            sandbox = await stack.enter_async_context(self.rules.open(spec))
            if self.rules.network:
                proxy = await stack.enter_async_context(Proxy(part.verifier.allow))
                await sandbox.forward(proxy.address, port=PROXY_PORT)
            await container.make_folders(sandbox)
            if part.own.healthcheck is not None:
                problem = await healthy(sandbox, part.own.healthcheck)
                if problem:
                    raise EnvironmentFailure(f"task {self.task.id!r}, its tests: {problem}")
            yield sandbox

    async def _next(self) -> str:
        """Clear away the tests of the last part, and make the next one ready."""
        try:
            if not self.keep_running:
                await container.end_programs(self.sandbox)
            await container.clear(self.sandbox)
            return await self._prepare()
        except container.Spoilt as spoilt:
            return str(spoilt)

    async def _prepare(self) -> str:
        """Put this part's files in, and run its set-up; return what went wrong, or nothing."""
        part = self.part
        self._allow(self.task.world.allow)
        if part.files is not None:
            try:
                await self.sandbox.upload(part.files, leave_out=())
            except OSError as error:
                return f"the files of step {part.name!r} cannot be copied in: {error}"
        if part.setup:
            done = await self.sandbox.exec(["bash", "setup.sh"], timeout=SETUP_TIMEOUT)
            if not done.ok:
                return f"setup.sh of step {part.name!r} failed: {container.said(done)}"
        if part.healthcheck is not None:
            problem = await healthy(self.sandbox, part.healthcheck)
            if problem:
                return f"step {part.name!r}: {problem}"
        self._allow(part.agent.allow)
        return ""

    def _allow(self, hosts: Sequence[str]) -> None:
        if self._proxy is not None:
            self._proxy.allow(hosts)


async def healthy(sandbox: Sandbox, check: Healthcheck) -> str:
    """Repeat a health check until it succeeds; return how it failed otherwise."""
    grace = time.monotonic() + check.start_period_sec
    failures = 0
    while True:
        starting = time.monotonic() < grace
        done = await sandbox.exec(check.command, timeout=check.timeout_sec)
        if done.ok:
            return ""
        failures += not starting
        if failures >= check.retries or done.ended:
            return f"its health check failed: {container.said(done)}"
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)
