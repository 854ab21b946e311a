"""Images that tasks bring: fetched before a rollout has its place, and a step ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import vf
from tests.inference.one_server import leases_of
from tests.trainer.run_environments import in_a_run, in_process
from tests.waiting import until
from vf.environments.environment import Split
from vf.inference.serving import Serving
from vf.sandbox.stats import HostStats
from vf.trainer.collecting.orchestrator import Orchestrator
from vf.trainer.settings.config import TrainerArgs


class Source:
    """Has the images that a test lets come, and notes which were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.late = ""
        self.came = asyncio.Event()

    @asynccontextmanager
    async def open(self, spec: vf.SandboxSpec | None = None) -> AsyncIterator[vf.Sandbox]:
        async with vf.ScriptedSandbox() as sandbox:
            yield sandbox

    def check_spec(self, spec: vf.SandboxSpec | None) -> None: ...

    async def prefetch(self, specs: Iterable[vf.SandboxSpec | None]) -> None:
        images = [spec.image or "" for spec in specs if spec is not None]
        self.asked += images
        if self.late in images:
            await self.came.wait()

    async def check(self) -> None: ...

    async def start(self) -> None: ...

    def stats(self) -> Sequence[HostStats]:
        return ()


class Tasks(vf.Environment):
    """Each task has an image of its own."""

    max_turns = 1
    rubric = vf.Rubric(outcome=lambda trace: 1.0)

    def __init__(self) -> None:
        self.source = Source()

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(6):
            yield vf.Task(f"{split}-{index}", "Go.")

    def sandbox_spec(self, task: vf.Task) -> vf.SandboxSpec:
        return vf.SandboxSpec(image=task.id)


def build(environment: Tasks, **args: Any) -> Orchestrator:
    made = TrainerArgs(batch_size=4, rollouts_per_example=2, max_steps=2, **args)
    return Orchestrator(
        [in_a_run(environment, made)],
        in_process(environment, vf.ScriptedModel(["Done."])),
        args=made,
        leases=leases_of(Serving("m")),
        ahead=0,
    )


async def test_a_rollout_waits_for_its_image_without_a_place() -> None:
    environment = Tasks()
    work = build(environment, max_concurrent=1)
    late, other = (task.id for task in work.mixture.cursors["env"].next(2))
    environment.source.late = late
    await work.open(1, version=0)
    group = await work.next_group(1)  # the only place was free for it
    assert group is not None
    assert group.task.id == other
    waiting = [(each.task.id, each.doing) for each in work.activities(1)]
    assert waiting == [(late, "image")] * 2
    environment.source.came.set()
    group = await work.next_group(1)
    assert group is not None
    assert group.task.id == late
    await work.stop()


async def test_the_images_of_the_next_step_are_fetched_while_this_one_runs() -> None:
    environment = Tasks()
    work = build(environment)
    coming = [task.id for task in work.mixture.cursors["env"].next(4)]
    environment.source.late = coming[0]
    await work.open(1, version=0)
    await until(lambda: set(environment.source.asked) == set(coming))
    await work.stop()


async def test_an_evaluation_asks_once_for_each_rollout() -> None:
    environment = Tasks()
    work = build(environment, eval_rollouts_per_example=2)
    await work.evaluate(lambda trace: None)
    assert len(environment.source.asked) == 12
