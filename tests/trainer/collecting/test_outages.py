"""Rollouts that an outage of the server took along are retried, and nobody is blamed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import vf
from tests.inference.one_server import leased, leases_of
from tests.trainer.run_environments import in_a_run, in_process
from vf.environments.environment import Split
from vf.inference.model import Conversation, Reply, Sampling
from vf.inference.serving import Serving
from vf.runtime.errors import ModelError, ServerDown, TrainingError
from vf.traces.messages import Message
from vf.trainer.collecting.orchestrator import Orchestrator
from vf.trainer.collecting.runners import Ended
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs


class TwoTurns(vf.Environment):
    """Count to two."""

    max_turns = 2

    def __init__(self) -> None:
        self.rubric = vf.Rubric(outcome=lambda trace: len(trace.turns) / 2)

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(8):
            yield vf.Task(f"{split}-{index}", "Count.")

    def step(self, reply: Message) -> vf.Step:
        return vf.Step([Message("user", "Go on.")])


class Server:
    """A model whose server goes down at chosen answers, and comes back a little later.

    Args:
        crashes: Numbers of the answers, over all rollouts, that it dies of.
        comes_back: Whether it does.
    """

    def __init__(self, crashes: set[int], comes_back: bool = True) -> None:
        self.serving = Serving("m")
        self.crashes = crashes
        self.comes_back = comes_back
        self.asked = 0
        self.lost = 0
        self.refused = 0

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        self.refused += not self.serving.is_up
        with leased(self.serving) as served:
            number, self.asked = self.asked, self.asked + 1
            await asyncio.sleep(0.01)
            if number in self.crashes:
                self.serving.down()
                if self.comes_back:
                    threading.Timer(0.2, self.serving.up).start()
            if self.serving.lost(served):
                self.lost += 1
                raise ServerDown("the inference server went down: connection reset")
        return Reply(Message("assistant", f"{sampling.seed}"))


def orchestrator(
    server: Any,
    serving: Serving,
    on_trace: Callable[[int, Ended], None] = lambda step, ended: None,
    **args: Any,
) -> Orchestrator:
    environment = TwoTurns()
    usual = {"batch_size": 8, "rollouts_per_example": 4, "max_error_rate": 0.0, "max_steps": 1}
    made = TrainerArgs(**usual | args)
    return Orchestrator(
        [in_a_run(environment, made)],
        in_process(environment, server),
        args=made,
        leases=leases_of(serving),
        ahead=0,
        on_trace=on_trace,
    )


async def first_step(work: Orchestrator) -> list[Group]:
    await work.open(1, version=0)
    groups = []
    while (group := await work.next_group(1)) is not None:
        groups.append(group)
    return sorted(groups, key=lambda group: group.number)


def collect(server: Server, **args: Any) -> tuple[list[Any], list[vf.Trace]]:
    """Collect one step; return its groups, and the traces as they finished."""
    finished: list[vf.Trace] = []

    def on_trace(step: int, ended: Ended) -> None:
        finished.append(ended.trace)

    work = orchestrator(server, server.serving, on_trace, **args)
    groups = asyncio.run(asyncio.wait_for(first_step(work), 60.0))
    return groups, finished


def essence(trace: vf.Trace) -> tuple[Any, ...]:
    return trace.task.id, trace.seed, tuple(message.content for message in trace.messages)


@pytest.mark.parametrize(
    ("crashes", "max_concurrent"), [({0}, 64), ({3, 12, 20}, 64), ({5}, 3), ({9}, 3)]
)
def test_a_step_with_outages_ends_as_one_without(crashes: set[int], max_concurrent: int) -> None:
    calm, _ = collect(Server(set()))
    server = Server(set(crashes))
    groups, finished = collect(server, max_concurrent=max_concurrent)
    assert server.lost >= len(crashes), "the outages must have cost something"
    assert [len(group.traces) for group in groups] == [4, 4]
    assert [group.failed for group in groups] == [[], []]
    assert [[essence(t) for t in g.traces] for g in groups] == [
        [essence(t) for t in g.traces] for g in calm
    ]
    assert all(trace.error is None and trace.reward == 1.0 for trace in finished)
    assert Counter(map(essence, finished)) == Counter(essence(t) for g in groups for t in g.traces)


def test_what_had_finished_is_not_asked_for_again() -> None:
    server = Server({14})
    groups, _ = collect(server, max_concurrent=1)
    assert server.lost == 1
    assert sum(len(group.traces) for group in groups) == 8
    assert server.asked == 16 + 1, "the lost answer was the first of its rollout"


def test_nobody_asks_while_the_server_is_away() -> None:
    server = Server({4})
    collect(server, max_concurrent=4)
    assert server.lost
    assert server.refused <= 4, "each rollout under way learns it once; then all wait"


def test_an_evaluation_waits_an_outage_out_too() -> None:
    server = Server({3, 11})
    finished: list[Ended] = []
    work = orchestrator(server, server.serving).evaluate(finished.append)
    result = asyncio.run(asyncio.wait_for(work, 60.0))["env"]
    assert server.lost
    assert result.errors == 0
    assert [trace.task.id for trace in result.traces] == [f"eval-{n}" for n in range(8)]
    assert len(finished) == 8


def test_an_outage_for_good_ends_the_step_with_its_cause() -> None:
    server = Server({6}, comes_back=False)
    threading.Timer(0.3, lambda: server.serving.fail("the disk is full")).start()
    with pytest.raises(ServerDown, match="the disk is full"):
        collect(server)


@pytest.mark.parametrize("act", ["collect", "evaluate"])
def test_a_failure_that_is_no_outage_counts(act: str) -> None:
    model = vf.ScriptedModel([ModelError("the prompt is poisoned")])
    finished: list[Ended] = []
    broken = orchestrator(model, Serving("m"), lambda step, ended: finished.append(ended))
    works: dict[str, Callable[[], Any]] = {
        "collect": lambda: first_step(broken),
        "evaluate": lambda: broken.evaluate(finished.append),
    }
    with pytest.raises(TrainingError, match="the prompt is poisoned"):
        asyncio.run(asyncio.wait_for(works[act](), 60.0))
    assert finished
    assert all(ended.trace.error is not None for ended in finished)
