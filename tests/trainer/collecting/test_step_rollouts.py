"""Groups of a step: refilled, over-sampled, retried, and saved in the middle."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

import vf
from tests.inference.one_server import leases_of
from tests.trainer.run_environments import in_a_run, in_process
from vf.environments.environment import Split
from vf.inference.model import Conversation, Reply, Sampling
from vf.inference.models.token_model import PromptTooLong
from vf.inference.serving import Serving
from vf.runtime.errors import TrainingError
from vf.traces.messages import Message
from vf.traces.trace import Branch, Origin, Score
from vf.trainer.collecting.orchestrator import Orchestrator, Queue
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs

Answer = Callable[[str, Sampling], Awaitable[str]]


class Say(vf.Environment):
    """The reward is the number that the model says."""

    max_turns = 1
    rubric = vf.Rubric(outcome=lambda trace: float(trace.reply))

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(12):
            yield vf.Task(f"{split}-{index}", f"{index}")


class Model:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        text = await self._answer(conversation.messages[-1].content, sampling)
        return Reply(Message("assistant", text))


def build(
    answer: Answer,
    traces: list[vf.Trace] | None = None,
    ahead: int = 0,
    notes: list[str] | None = None,
    environment: vf.Environment | None = None,
    **args: Any,
) -> Orchestrator:
    kept = traces if traces is not None else []
    usual = {"batch_size": 8, "rollouts_per_example": 4, "max_steps": 1}
    environment = environment or Say()
    made = TrainerArgs(**usual | args)
    return Orchestrator(
        [in_a_run(environment, made)],
        in_process(environment, Model(answer)),
        args=made,
        leases=leases_of(Serving("m")),
        ahead=ahead,
        on_trace=lambda step, ended: kept.append(ended.trace),
        note=(notes if notes is not None else []).append,
    )


async def groups_of(work: Orchestrator, step: int) -> list[Group]:
    groups = []
    while (group := await work.next_group(step)) is not None:
        groups.append(group)
    return sorted(groups, key=lambda group: group.number)


def run(scene: Awaitable[Any]) -> Any:
    async def within() -> Any:
        return await asyncio.wait_for(scene, 60.0)

    return asyncio.run(within())


async def mixed(prompt: str, sampling: Sampling) -> str:
    return str((sampling.seed or 0) % 2)


async def rare(prompt: str, sampling: Sampling) -> str:
    return str(int((sampling.seed or 0) % 5 == 0))


async def one_step(work: Orchestrator) -> list[Group]:
    await work.open(1, version=0)
    return await groups_of(work, 1)


def uneven(alike: set[int]) -> Answer:
    """Equal rewards for some tasks, and spread for the others, whatever the seeds."""
    asked: Counter[str] = Counter()

    async def answer(prompt: str, sampling: Sampling) -> str:
        asked[prompt] += 1
        return "1" if int(prompt) in alike else str(asked[prompt] % 2)

    return answer


@pytest.mark.parametrize("alike", [set(), {0, 1, 2, 3, 4, 5}, set(range(12))])
@pytest.mark.parametrize("max_refill", [0.0, 0.5, 2.0])
def test_groups_without_spread_are_followed_by_fresh_tasks(
    alike: set[int], max_refill: float
) -> None:
    work = build(uneven(alike), max_refill=max_refill)
    groups = run(one_step(work))
    budget, wanted = round(2 * max_refill), 2
    # Draw by draw, as the definition has it.
    reference = build(uneven(alike))
    expected: list[str] = []
    left, useful = wanted + budget, 0
    while left and useful < wanted and (len(expected) < wanted or budget):
        draw = reference.mixture.draw("env")
        expected.append(draw.task.id)
        flat = int(str(draw.task.prompt)) in alike
        useful += not flat
        left -= 1
        if len(expected) > wanted:
            budget -= 1
    assert [group.task.id for group in groups] == expected
    assert sum(not group.uniform for group in groups) == useful


def test_the_slowest_of_a_group_are_stopped() -> None:
    cancelled = 0

    async def answer(prompt: str, sampling: Sampling) -> str:
        nonlocal cancelled
        asked[prompt] += 1
        if asked[prompt] <= 2:  # the first two of each task hang
            try:
                await asyncio.sleep(60.0)
            except asyncio.CancelledError:
                cancelled += 1
                raise
        return str(asked[prompt] % 2)

    asked: Counter[str] = Counter()
    traces: list[vf.Trace] = []
    work = build(answer, traces, oversample=1.5)
    groups = run(one_step(work))
    assert [len(group.traces) for group in groups] == [4, 4]
    assert [group.stopped for group in groups] == [2, 2]
    assert cancelled == 4
    assert len(traces) == 8
    assert not work.activities(), "nothing is left under way"


@pytest.mark.parametrize("rewards", [False, True])
def test_rollouts_that_end_at_once_are_no_more_than_asked_for(rewards: bool) -> None:
    traces: list[vf.Trace] = []
    work = build(mixed, traces, oversample=2.0)
    if rewards:
        work.members[0].environment.rubric = vf.Rubric(
            outcome=lambda trace: float(trace.reply),
            group_rewards=[vf.GroupReward(lambda group: [0.0] * len(group))],
        )
    groups = run(one_step(work))
    assert [len(group.traces) for group in groups] == [4, 4]
    assert [group.stopped for group in groups] == [4, 4]
    assert len(traces) == 8


def test_a_small_group_does_not_teach() -> None:
    def grouped(size: int, least: int) -> Group:
        group = Group(vf.Task("t", "?"), min_size=least)
        group.take([scored(n % 2) for n in range(size)])
        return group

    assert [grouped(size, 3).uniform for size in (2, 3)] == [True, False]
    assert [grouped(size, 2).uniform for size in (1, 2)] == [True, False]


def scored(reward: float) -> vf.Trace:
    trace = vf.Trace(environment="e", task=vf.Task("t", "?"), seed=0)
    trace.score = Score(reward=reward, outcome=reward)
    return trace


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_steps_open_as_far_ahead_as_they_may(ahead: int) -> None:
    async def scene() -> list[set[int]]:
        work = build(mixed, ahead=ahead, max_steps=5)
        opened = []
        for version in range(5):
            await work.open(version + 1, version)
            opened.append({step for step in range(1, 9) if step in work._open})
            await groups_of(work, version + 1)
        return opened

    assert run(scene()) == [set(range(v + 1, min(5, v + 1 + ahead) + 1)) for v in range(5)]


@pytest.mark.parametrize("during", ["restoring", "training"])
def test_what_is_too_old_is_retried_with_its_task(during: str) -> None:
    async def scene() -> tuple[list[vf.Trace], list[Group]]:
        work = build(mixed, ahead=2, max_steps=3)
        await work.open(3, version=0)
        while len((queue := await work.queue()).traces) < 8:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for trace in queue.traces:
            version = 0 if trace.origin == Origin(step=3, group=0, rollout=2) else 1
            trace.branches.append(Branch([7], [1], [-0.5], [0], [version]))
        if during == "restoring":
            again = build(mixed, ahead=1, max_steps=3)
            await again.restore(queue)
        else:
            again, work._open[3]._oldest = work, 1
        return queue.traces, await groups_of(again, 3)

    old, trained = run(scene())
    assert [(group.number, len(group.traces)) for group in trained] == [(0, 4), (1, 4)]
    assert not any(trace in old for trace in trained[0].traces), "one of its tokens was too old"
    assert all(trace in old for trace in trained[1].traces)


@pytest.mark.parametrize("stop_after", range(0, 15, 2))
def test_a_queue_that_was_saved_resumes_where_it_was(stop_after: int) -> None:
    """Whatever had ended when it was saved is not asked for again, and nothing is lost."""
    settings: dict[str, Any] = {"max_steps": 2, "max_refill": 0.5, "max_concurrent": 5}

    def essence(groups: list[Group]) -> list[Any]:
        return [
            (group.number, group.task.id, sorted((t.seed, t.reply) for t in group.traces))
            for group in groups
        ]

    async def unbroken() -> list[Any]:
        work = build(rare, ahead=1, **settings)
        await work.open(1, version=0)
        return [essence(await groups_of(work, step)) for step in (1, 2)]

    async def broken() -> list[Any]:
        asked = 0
        saved: asyncio.Future[Queue] = asyncio.get_running_loop().create_future()

        async def answer(prompt: str, sampling: Sampling) -> str:
            nonlocal asked
            asked += 1
            if asked > stop_after and not saved.done():
                saved.set_result(await work.queue())
            if saved.done():
                await asyncio.sleep(60.0)
            return await rare(prompt, sampling)

        first: list[vf.Trace] = []
        work = build(answer, first, ahead=1, **settings)
        await work.open(1, version=0)
        queue = await saved
        lines = [trace.to_json() for trace in queue.traces]
        again_asked = 0

        async def counted(prompt: str, sampling: Sampling) -> str:
            nonlocal again_asked
            again_asked += 1
            return await rare(prompt, sampling)

        second: list[vf.Trace] = []
        again = build(counted, second, ahead=1, **settings)
        restored = Queue(queue.cursor, queue.steps, [vf.Trace.from_json(line) for line in lines])
        await again.restore(restored)
        await work.restore(Queue(queue.cursor))  # ends what is under way
        await again.open(1, version=0)
        result = [essence(await groups_of(again, step)) for step in (1, 2)]
        rollouts = sum(len(group[2]) for step in result for group in step)
        assert again_asked == rollouts - len(queue.traces)
        assert len(second) == rollouts, "the new files hold every trace once"
        return result

    assert run(broken()) == run(unbroken())


def test_what_was_stopped_before_a_save_is_counted_once() -> None:
    """A group is saved while its group reward scores it: its slowest have been stopped."""

    async def scene() -> list[Group]:
        saved: asyncio.Future[Queue] = asyncio.get_running_loop().create_future()

        async def slow(traces: Sequence[vf.Trace]) -> list[float]:
            if not saved.done():
                saved.set_result(await work.queue())
            return [0.0] * len(traces)

        async def answer(prompt: str, sampling: Sampling) -> str:
            await asyncio.sleep(0.0 if next(asked) < 4 else 60.0)
            return "0"

        asked = itertools.count()
        settings: dict[str, Any] = {"batch_size": 4, "oversample": 1.5}
        work, again = build(answer, **settings), build(answer, **settings)
        for each in (work, again):
            each.members[0].environment.rubric = vf.Rubric(
                outcome=lambda trace: float(trace.reply), group_rewards=[vf.GroupReward(slow)]
            )
        await one_step(work)
        await again.restore(saved.result())
        return await groups_of(again, 1)

    [group] = run(scene())
    assert len(group.traces) == 4
    assert group.stopped == 2


def test_what_an_environment_records_is_there_for_group_rewards_and_in_the_trace() -> None:
    mine = {"step": "mine", "group": [1, 2], "rollout": None}
    seen: list[Any] = []

    class Records(Say):
        def step(self, message: vf.Message) -> vf.Step:
            return vf.Step("", terminated=True, info=mine)

    def same(traces: Sequence[vf.Trace]) -> list[float]:
        seen.extend(trace.info for trace in traces)
        return [0.0] * len(traces)

    rewards = [vf.GroupReward(same)]
    work = build(mixed, environment=Records())
    work.members[0].environment.rubric = vf.Rubric(outcome=lambda trace: 0.0, group_rewards=rewards)
    groups = run(one_step(work))
    assert seen == [mine] * 8
    traces = [trace for group in groups for trace in group.traces]
    assert [trace.info for trace in traces] == [mine] * 8
    assert [trace.origin for trace in traces] == [
        Origin(step=1, group=group, rollout=index) for group in (0, 1) for index in range(4)
    ]


def too_long(prompts: set[int]) -> Answer:
    async def answer(prompt: str, sampling: Sampling) -> str:
        if int(prompt) in prompts:
            raise PromptTooLong("the first prompt has 9 tokens, over max_prompt_len = 8")
        return await mixed(prompt, sampling)

    return answer


def test_a_task_with_an_overlong_prompt_is_replaced_and_not_drawn_again() -> None:
    async def scene() -> list[str]:
        trained = []
        for step in range(1, 13):  # two epochs
            await work.open(step, version=step - 1)
            groups = await groups_of(work, step)
            assert [len(group.traces) for group in groups] == [4, 4]
            trained += [group.task.id for group in groups]
        return trained

    notes, traces = list[str](), list[vf.Trace]()
    work = build(too_long({3, 7}), traces, notes=notes, max_steps=12, max_error_rate=0.0)
    trained = run(scene())
    assert set(trained) == {f"train-{n}" for n in range(12)} - {"train-3", "train-7"}
    tried = sorted(trace.task.id for trace in traces if trace.error is not None)
    assert tried == ["train-3", "train-7"], "none was tried twice"
    assert work.mixture.metrics()["tasks/overlong"] == 2
    assert ["9 tokens, over max_prompt_len = 8" in note for note in notes] == [True, True]
    again = build(too_long({3, 7}), max_steps=12)
    again.mixture.load(work.mixture.state())
    assert again.mixture.metrics()["tasks/overlong"] == 2, "nor is it after a resume"


def test_an_overlong_prompt_ends_the_run_where_it_is_an_error() -> None:
    work = build(too_long(set(range(12))), overlong_prompts="error")
    with pytest.raises(TrainingError, match=r"'train-\d+': the first prompt has 9 .*'error'"):
        run(one_step(work))


def test_tasks_that_are_all_overlong_end_the_run() -> None:
    work = build(too_long(set(range(12))))
    with pytest.raises(
        vf.ConfigError,
        match=r"all 12 train tasks of environment 'env' are longer than .*max_prompt_len",
    ):
        run(one_step(work))


def test_an_overlong_prompt_is_not_a_failure_of_an_evaluation() -> None:
    work = build(too_long({3, 7}), max_error_rate=0.0)
    result = run(work.evaluate(lambda trace: None))["env"]
    assert sum(trace.reward is not None for trace in result.traces) == 10


def test_a_queue_with_a_task_that_is_gone_is_refused() -> None:
    async def scene() -> None:
        work = build(mixed)
        state = {"step": 1, "refills": 0, "groups": [saved]}
        await work.restore(Queue(work.mixture.state(), [state]))

    saved = {"number": 0, "task": "gone", "epoch": 0, "stopped": 0, "done": False}
    with pytest.raises(vf.ConfigError, match="'gone', which the environment 'env' does not have"):
        run(scene())
