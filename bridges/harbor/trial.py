"""One episode of one task: its container, its phases, and what the tests said."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vf.bridges.harbor import container
from vf.bridges.harbor.artifacts import Keeper
from vf.bridges.harbor.model import Part, TaskFolder, World
from vf.bridges.harbor.put_back import put_back, read_names, trace_paths
from vf.bridges.harbor.rules import Rules
from vf.bridges.harbor.specs import PROXY_PORT, agent_seconds, resolve_env
from vf.bridges.harbor.verdict import Verdict, combine
from vf.bridges.harbor.verifying import run_tests
from vf.bridges.harbor.work import IN_MEMORY, Work, inspect_image, paths_for_tests
from vf.runtime.errors import ConfigError, EnvironmentFailure
from vf.runtime.own_deadline import own_deadline
from vf.sandbox.audit import Auditable
from vf.sandbox.contract import ExecResult, Sandbox
from vf.sandbox.services.opening import Services
from vf.sandbox.services.proxy import Proxy
from vf.sandbox.spec import SandboxSpec

MAX_OUTPUT = 8000  # characters of what tests print that are recorded: the last ones
SETUP_TIMEOUT = 300.0  # seconds for a step's setup.sh


Release = Callable[[], Awaitable[None]]
AGENTS = "the agent's container"


async def _stay() -> None:
    """Leave a container as it is: it is needed later."""


class OpenContainer(NamedTuple):
    """A container, and what destroys it when nobody needs it any more."""

    sandbox: Sandbox
    release: Release


@dataclass(slots=True)
class Trial:
    """One episode of one task.

    Attributes:
        task: Task of the episode.
        rules: Rules for all tasks.
        keep_changes: Whether the tests run in the agent's container, with all that it changed.
        keep_running: Whether they run there beside what the agent left running.
        folder: Folder in which artifacts are kept; None to keep none.
        used: Whether anything of the agent's may have run in its container.
        info: What is recorded of the episode, under ``harbor`` in ``Trace.info``.
        verdicts: Verdicts of the parts that were verified.
    """

    task: TaskFolder
    rules: Rules
    keep_changes: bool = False
    keep_running: bool = False
    folder: Path | None = None
    used: bool = True
    info: dict[str, Any] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    _sandbox: Sandbox | None = None
    _names: dict[str, bytes | None] = field(default_factory=dict)
    _release: Release = _stay
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
        verdicts = list(self.verdicts)[-1:] if self.task.strategy == "final" else self.verdicts
        keys = dict.fromkeys(key for verdict in verdicts for key in verdict.rewards)
        count = len(self.task.parts) if self.task.strategy == "mean" else 1
        return {
            key: sum(verdict.rewards.get(key, 0.0) for verdict in verdicts) / count for key in keys
        }

    def record(self) -> dict[str, Any]:
        """Return what is recorded of the episode."""
        record = {**self.info, "reward": self.reward, "keys": self.rewards}
        if self._proxy is not None:
            record["network"] = asdict(self._proxy.stats())
        if self._services is not None:
            logs = self._services.logs()
            record["services"] = {name: log[-MAX_OUTPUT:] for name, log in logs.items()}
        return record

    @property
    def _needs_processes(self) -> bool:
        """Whether the tests need what the agent left running, or the services beside it."""
        return self.keep_running or self.task.world.compose is not None

    @property
    def _in_memory(self) -> Sequence[str] | None:
        """The file systems in memory that nobody needs any more; None if programs keep running."""
        if self.keep_running:
            return None
        return [*IN_MEMORY, *(self._services.own_mounts if self._services else ())]

    @property
    def _max_copied(self) -> int:
        """Bytes of the agent's files that this machine may have to keep for a while."""
        limits = self._spec(self.task.world).limits
        assert limits is not None
        return int(limits.disk)

    @property
    def sandbox(self) -> Sandbox:
        """The agent's container.

        Raises:
            EnvironmentFailure: If the container has not been opened.
        """
        if self._sandbox is None:
            raise EnvironmentFailure("the task's container is not open")
        return self._sandbox

    async def begin(self, sandbox: Sandbox, release: Release) -> None:
        """Make a fresh container ready for the agent.

        Args:
            sandbox: Container for the agent.
            release: Destroys it. Called once the tests have a container of their own, if the agent
                does not need its own any more.

        Raises:
            EnvironmentFailure: If the container does not get ready. Nothing of the agent's has run
                in it.
            SandboxError: If the container is lost.
        """
        self._sandbox, self._release = sandbox, release
        if self.task.world.compose is not None:
            self._services = Services.beside(sandbox)
        with own_deadline():
            if self.rules.network:
                self._proxy = await self._stack.enter_async_context(Proxy(self.task.world.allow))
            await self._ready(sandbox)
            spec = self._spec(self.task.world)
            if spec not in self.rules.image_facts:
                users = {part.verifier.user or container.ROOT for part in self.task.parts}
                self.rules.image_facts[spec] = await inspect_image(sandbox, users)
            if problem := await self._prepare(sandbox, self.part):
                raise EnvironmentFailure(f"task {self.task.id!r}: {problem}")
            if self._needs_processes:
                self._names = await read_names(sandbox)

    async def _ready(self, sandbox: Sandbox) -> None:
        """Make a fresh container one of the task's, as its agent finds it."""
        if self._proxy is not None:
            self._allow(self.task.world.allow)
            await sandbox.forward(self._proxy.address, port=PROXY_PORT)
        await container.make_folders(sandbox)
        if self.task.world.healthcheck is not None:
            problem = await container.wait_until_healthy(sandbox, self.task.world.healthcheck)
            if problem:
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
            ConfigError: If there is no solution, or one of its variables is not set.
        """
        script = self.part.solution
        if script is None:
            raise ConfigError(f"task {self.task.id!r} has no solution: {self.task.path}")
        where = f"{self.task.path}: solution.env"
        env = {
            "DEBIAN_FRONTEND": "noninteractive",
            **resolve_env(script.env, where, self.rules.host_env),
        }
        self.used = True
        with own_deadline():
            await container.copy_in(self.sandbox, script)
            result = await self.sandbox.exec(
                container.command(script), env=env, timeout=self.seconds
            )
        output = (result.stdout + result.stderr)[-MAX_OUTPUT:]
        self.info["solution"] = {"exit_code": result.returncode, "output": output}
        return result

    async def verify(self) -> Verdict:
        """End the agent's phase, run the tests of this part, and begin the next one, if any.

        Raises:
            SandboxError: If a container is lost: nothing is known about the agent's work.
        """
        part = self.part
        with own_deadline():
            verdict, record = await self._verify_part(part)
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

    async def _verify_part(self, part: Part) -> tuple[Verdict, dict[str, Any]]:
        """End all programs, have hooks collect, end, restore, and test."""
        record: dict[str, Any] = {}
        try:
            async with AsyncExitStack() as stack:
                keeper = await stack.enter_async_context(
                    Keeper(self.folder, self.task.id, part.name, self._max_copied)
                )
                current = OpenContainer(
                    self.sandbox, self._release if part is self.task.parts[-1] else _stay
                )
                if not self.keep_running:
                    await container.end_programs(current.sandbox)
                if part.collect:  # they are run by the image's programs, and may run the agent's
                    current = await self._restore(stack, current, part, record)
                    record |= await keeper.run_hooks(current.sandbox, part)
                    if not self.keep_running:
                        await container.end_programs(current.sandbox)
                record |= await keeper.collect(current.sandbox, part)
                if part.own is None:
                    current = await self._restore(stack, current, part, record)
                    await keeper.copy_into(current.sandbox, self._in_memory or IN_MEMORY)
                    self._allow(part.verifier.allow)
                    return await self._run_tests(current.sandbox, part, record)
                async with self._tests_container(part) as sandbox:
                    await keeper.copy_into(sandbox)
                    return await self._run_tests(sandbox, part, record)
        except container.Unverifiable as error:
            return Verdict(problem=str(error)), record

    async def _restore(
        self, stack: AsyncExitStack, current: OpenContainer, part: Part, record: dict[str, Any]
    ) -> OpenContainer:
        """Return a container with nothing of the agent's but its work and what the task keeps.

        A fresh one, unless the task needs the agent's own, or that is unused.
        """
        image = self.rules.image_facts[self._spec(self.task.world)]
        paths = paths_for_tests(part, image.workdir)
        max_bytes = self._max_copied
        if self.keep_changes or not image.visible:
            record |= {"tests_in": AGENTS, "kept": ["/"]}
            return current
        assert isinstance(current.sandbox, Auditable)
        if self._needs_processes:
            changes = await put_back(
                current.sandbox, self._fresh, image, paths, self._names, max_bytes, self._in_memory
            )
            record |= {"tests_in": AGENTS, "kept": list(paths), **changes}
            return current
        record |= {"tests_in": "a fresh container", "kept": list(paths)}
        if not (self.used or part.collect or len(self.task.parts) > 1):
            return current
        with Work(part, image, max_bytes) as work:
            await work.take(current.sandbox)
            await current.release()  # or one waits for another's at the bound on containers
            opened = await stack.enter_async_context(AsyncExitStack())
            fresh = await opened.enter_async_context(self._fresh())
            for done_part in self.task.parts[: self.task.parts.index(part) + 1]:
                if problem := await self._prepare(fresh, done_part):
                    record["setup"] = problem  # of a step, which needs the work
            await container.end_programs(fresh)
            assert isinstance(fresh, Auditable)
            if links := await work.put(fresh):
                record["removed"] = trace_paths(links)
        return OpenContainer(fresh, opened.aclose)

    async def _run_tests(
        self, sandbox: Sandbox, part: Part, record: dict[str, Any]
    ) -> tuple[Verdict, dict[str, Any]]:
        where = f"{self.task.path}: verifier.env"
        env = resolve_env(part.tests.env, where, self.rules.host_env)
        verdict, result = await run_tests(
            sandbox, part, env, key=self.rules.reward_key, end=not self.keep_running
        )
        if result is not None:
            record["tests"] = {
                "exit_code": result.returncode,
                "seconds": round(result.duration, 3),
                "output": (result.stdout + result.stderr)[-MAX_OUTPUT:],
            }
        return verdict, record

    def _spec(self, world: World) -> SandboxSpec:
        return self.rules.spec(self.task, world, self.task.parts[0].agent.user)

    @asynccontextmanager
    async def _fresh(self) -> AsyncIterator[Sandbox]:
        """Open an unused container like the agent's."""
        async with self.rules.open(self._spec(self.task.world)) as sandbox:
            await self._ready(sandbox)
            yield sandbox

    @asynccontextmanager
    async def _tests_container(self, part: Part) -> AsyncIterator[Sandbox]:
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
                problem = await container.wait_until_healthy(sandbox, part.own.healthcheck)
                if problem:
                    raise EnvironmentFailure(f"task {self.task.id!r}, its tests: {problem}")
            yield sandbox

    async def _next(self) -> str:
        """Clear away the tests of the last part, and make the next one ready."""
        try:
            if not self.keep_running:
                await container.end_programs(self.sandbox)
            await container.clear(self.sandbox)
            return await self._prepare(self.sandbox, self.part)
        except container.Unverifiable as error:
            return str(error)

    async def _prepare(self, sandbox: Sandbox, part: Part) -> str:
        """Put a part's files in, and run its set-up; return what went wrong, or nothing."""
        self._allow(self.task.world.allow)
        if part.files is not None:
            try:
                await sandbox.upload(part.files, leave_out=())
            except OSError as error:
                return f"the files of step {part.name!r} cannot be copied in: {error}"
        if part.setup:
            result = await sandbox.exec(["bash", "setup.sh"], timeout=SETUP_TIMEOUT)
            if not result.ok:
                return f"setup.sh of step {part.name!r} failed: {container.failure_of(result)}"
        if part.healthcheck is not None:
            problem = await container.wait_until_healthy(sandbox, part.healthcheck)
            if problem:
                return f"step {part.name!r}: {problem}"
        self._allow(part.agent.allow)
        return ""

    def _allow(self, hosts: Sequence[str]) -> None:
        if self._proxy is not None:
            self._proxy.allow(hosts)
