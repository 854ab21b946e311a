"""A rollout whose sandbox's machine was lost is run again from its start, within a bound."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

import vf
from tests.inference.one_server import leases_of
from tests.trainer.run_environments import in_a_run, in_process
from vf.environments.environment import Split
from vf.environments.runner import HOST_LOSSES, repeat_lost
from vf.inference.serving import Serving
from vf.runtime.errors import HostLost, SandboxError, ServerDown
from vf.traces.trace import Failure
from vf.trainer.collecting.orchestrator import Orchestrator
from vf.trainer.settings.config import TrainerArgs


class Unlucky(vf.Environment):
    """Say your number. The host of each task's sandbox is lost some times, in the second turn.

    Args:
        losses: How many times.
        error: What its loss raises.
    """

    max_turns = 2
    rubric = vf.Rubric(outcome=lambda trace: float(trace.messages[-1].content == "4"))

    def __init__(self, losses: int, error: type[SandboxError] = HostLost) -> None:
        self.begun: list[tuple[str, float]] = []  # with what the seed gives
        self.losses, self.error = losses, error

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(4):
            yield vf.Task(f"{split}-{index}", "Count.")

    def reset(self, task: vf.Task) -> list[vf.Message]:
        self.turns, self.me = 0, (task.id, self.rng.random())
        self.begun.append(self.me)
        return self.first_messages(task)

    def step(self, reply: vf.Message) -> vf.Step:
        self.turns += 1
        if self.turns == 2 and self.begun.count(self.me) <= self.losses:
            raise self.error("the engine does not answer")
        return vf.Step([vf.Message("user", "Go on.")])


def count(messages: list[vf.Message]) -> str:
    return str(len(messages))


def test_an_evaluation_repeats_them_with_the_same_seeds() -> None:
    environment = Unlucky(losses=2)
    found = asyncio.run(vf.evaluate(environment, vf.ScriptedModel(count)))
    assert found.errors == 0
    assert found.rewards == [0.0] * 4
    assert [trace.stop_reason for trace in found.traces] == [vf.StopReason.MAX_TURNS] * 4
    assert set(Counter(environment.begun).values()) == {3}
    assert len(set(environment.begun)) == 4


def test_a_policy_that_takes_every_host_down_is_not_repeated_for_ever() -> None:
    environment = Unlucky(losses=100)
    found = asyncio.run(vf.evaluate(environment, vf.ScriptedModel(count), tasks=1))
    (trace,) = found.traces
    assert trace.error is not None
    assert (trace.error.boundary, trace.error.type) == ("host", "HostLost")
    assert trace.reward is None
    assert len(environment.begun) == 1 + HOST_LOSSES


def test_a_sandbox_that_failed_by_itself_is_not_repeated() -> None:
    environment = Unlucky(losses=1, error=SandboxError)
    found = asyncio.run(vf.evaluate(environment, vf.ScriptedModel(count)))
    assert found.errors == len(environment.begun) == 4


async def test_they_do_not_count_as_failures_in_training() -> None:
    environment = Unlucky(losses=HOST_LOSSES)
    made = TrainerArgs(batch_size=8, rollouts_per_example=4, max_error_rate=0.0, max_steps=1)
    work = Orchestrator(
        [in_a_run(environment, made)],
        in_process(environment, vf.ScriptedModel(count)),
        args=made,
        leases=leases_of(Serving("m")),
        ahead=0,
    )

    await work.open(1, version=0)
    found = []
    while (group := await work.next_group(1)) is not None:
        found.append(group)
    assert [(len(group.traces), len(group.failed)) for group in found] == [(4, 0)] * 2
    assert len(environment.begun) == 8 * (1 + HOST_LOSSES)


@pytest.mark.parametrize("waits", [True, False])
def test_an_outage_of_the_server_is_repeated_by_who_waits_for_the_server(waits: bool) -> None:
    down = Failure.of(ServerDown("connection reset"))
    traces = [vf.Trace(environment="e", task=vf.Task("t", "Go."), seed=0) for _ in range(9)]
    for trace in traces[:8]:
        trace.error = down
    asked: list[int] = []

    async def run() -> vf.Trace:
        return traces[len(asked)]

    async def ready() -> None:
        asked.append(1)

    found = asyncio.run(repeat_lost(run, ready if waits else None))
    assert (found.error is None) is waits
