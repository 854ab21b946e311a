"""A function as an agent: its episode, its ends, and what its failures are worth."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import openai
import pytest

import vf
from tests.waiting import Clock, until
from vf.environments import agent_episode
from vf.environments.episode import Activity
from vf.inference.endpoint.session import Session, open_session
from vf.inference.model import ContextFull, Conversation, Reply
from vf.runtime.errors import ModelError

TASK = vf.Task("t", "What is 2 + 2?", answer="4")
RIGHT = vf.Rubric(outcome=lambda trace: float(trace.info.get("output") == trace.task.answer))


async def ask(endpoint: vf.Endpoint, *said: str, **more: Any) -> str:
    """Ask the model without retries; return what it says."""
    messages: Any = [{"role": "user", "content": text} for text in said or ("Go.",)]
    async with openai.AsyncOpenAI(
        base_url=endpoint.url, api_key=endpoint.key, max_retries=0
    ) as client:
        answer = await client.chat.completions.create(
            model=endpoint.model, messages=messages, **more
        )
    return answer.choices[0].message.content or ""


def run(agent: Any, model: Any = None, **settings: Any) -> vf.Trace:
    environment = vf.AgentEnvironment(agent, **{"rubric": RIGHT, "tasks": [TASK], **settings})
    return asyncio.run(vf.rollout(environment, TASK, model or vf.ScriptedModel(["4"] * 9)))


def assert_failed(trace: vf.Trace, *words: str, boundary: str = "environment") -> None:
    assert trace.error is not None
    assert trace.error.boundary == boundary
    assert trace.stop_reason is vf.StopReason.ERROR
    assert trace.reward is None
    for word in words:
        assert word in trace.error.message


@vf.agent
async def solve(task: vf.Task, endpoint: vf.Endpoint) -> str | None:
    return await ask(endpoint, str(task.prompt))


@vf.agent
def solve_in_a_thread(task: vf.Task, endpoint: vf.Endpoint) -> str:
    with openai.OpenAI(base_url=endpoint.url, api_key=endpoint.key) as client:
        answer = client.chat.completions.create(
            model=endpoint.model, messages=[{"role": "user", "content": str(task.prompt)}]
        )
    return answer.choices[0].message.content or ""


@pytest.mark.parametrize("agent", [solve, solve_in_a_thread])
def test_a_function_is_run_and_what_it_returns_is_scored(agent: Any) -> None:
    trace = run(agent)
    assert trace.error is None
    assert [(m.role, m.content) for m in trace.messages] == [
        ("user", "What is 2 + 2?"),
        ("assistant", "4"),
    ]
    assert (trace.prompt_messages, len(trace.turns)) == (1, 1)
    assert trace.info["output"] == "4"
    assert trace.stop_reason is vf.StopReason.TERMINATED
    assert trace.reward == 1.0
    assert {"agent", "model", "score", "total"} <= set(trace.timing)


def test_a_turn_budget_ends_an_agent_that_asks_beyond_it() -> None:
    stopped: list[str] = []

    async def endless(task: vf.Task, endpoint: vf.Endpoint) -> None:
        try:
            while True:
                await ask(endpoint)
        except asyncio.CancelledError:
            stopped.append("here")
            raise
        except openai.APIStatusError:
            await asyncio.Event().wait()

    trace = run(endless, max_turns=3)
    assert trace.error is None
    assert len(trace.turns) == 3
    assert trace.stop_reason is vf.StopReason.MAX_TURNS
    assert trace.reward == 0.0

    async def just_enough(task: vf.Task, endpoint: vf.Endpoint) -> str:
        return [await ask(endpoint) for _ in range(3)][-1]

    trace = run(just_enough, max_turns=3)
    assert (trace.stop_reason, trace.reward) == (vf.StopReason.TERMINATED, 1.0)


def test_a_budget_that_is_spent_before_an_answer_is_a_failure() -> None:
    async def greedy(task: vf.Task, endpoint: vf.Endpoint) -> None:
        async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key) as client:
            await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "Tea?"}], n=4
            )

    trace = run(greedy, max_turns=3)
    assert trace.error is not None
    assert (trace.error.boundary, trace.reward) == ("environment", None)
    assert "max_turns" in trace.error.message


class Wordy:
    """A model whose every answer has ten tokens, or as many as it may."""

    async def respond(self, conversation: Conversation, sampling: vf.Sampling) -> Reply:
        count = min(10, sampling.max_tokens)
        return Reply(vf.Message("assistant", "x"), completion_tokens=count)


def test_a_token_budget_ends_an_agent() -> None:
    async def endless(task: vf.Task, endpoint: vf.Endpoint) -> None:
        while True:
            await ask(endpoint)

    trace = run(endless, Wordy(), max_tokens=25)
    assert trace.stop_reason is vf.StopReason.MAX_TOKENS
    assert [turn.completion_tokens for turn in trace.turns] == [10, 10, 5]


@pytest.mark.slow
@pytest.mark.parametrize("hang", ["awaits", "blocks"])
def test_an_agent_that_takes_too_long_after_an_answer_is_truncated_and_scored(hang: str) -> None:
    blocked = threading.Event()

    async def awaits(task: vf.Task, endpoint: vf.Endpoint) -> None:
        await ask(endpoint)
        await asyncio.Event().wait()

    def blocks(task: vf.Task, endpoint: vf.Endpoint) -> None:
        solve_in_a_thread(task, endpoint)
        blocked.wait()

    trace = run(awaits if hang == "awaits" else blocks, timeout=1.5)
    blocked.set()
    assert trace.error is None
    assert trace.stop_reason is vf.StopReason.TRUNCATED
    assert trace.reward == 0.0


def test_an_agent_that_takes_too_long_to_ask_is_a_failure() -> None:
    async def idle(task: vf.Task, endpoint: vf.Endpoint) -> None:
        await asyncio.Event().wait()

    assert_failed(run(idle, timeout=0.1), "longer than its 0.1 s", "no answer of the model's")


def test_the_time_that_an_endpoint_takes_to_open_is_not_the_agents(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    @asynccontextmanager
    async def slow(*args: Any, **settings: Any) -> AsyncIterator[Session]:
        await clock.skip(0.2)
        async with open_session(*args, **settings) as session:
            yield session

    async def idle(task: vf.Task, endpoint: vf.Endpoint) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("vf.inference.endpoint.session.open_session", slow)
    assert_failed(run(idle, timeout=0.1), "longer than its 0.1 s", "no answer of the model's")


@pytest.mark.slow
async def test_an_agent_that_does_not_stop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_episode, "STOP_TIMEOUT", 0.1)
    later: list[int] = []

    async def stubborn(task: vf.Task, endpoint: vf.Endpoint) -> None:
        await ask(endpoint)
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        try:
            await ask(endpoint)
        except openai.APIStatusError as error:
            later.append(error.status_code)

    environment = vf.AgentEnvironment(stubborn, tasks=[TASK], timeout=1.5)
    trace = await vf.rollout(environment, TASK, vf.ScriptedModel(["4"]))
    assert trace.stop_reason is vf.StopReason.TRUNCATED
    assert len(trace.turns) == 1


async def crash_at_once(task: vf.Task, endpoint: vf.Endpoint) -> None:
    raise KeyError("missing")


async def crash_later(task: vf.Task, endpoint: vf.Endpoint) -> None:
    await ask(endpoint)
    raise KeyError("missing")


async def crash_refused(task: vf.Task, endpoint: vf.Endpoint) -> None:
    async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key) as client:
        await client.chat.completions.create(
            model="gpt-5", messages=[{"role": "user", "content": "Go."}]
        )


async def never_ask(task: vf.Task, endpoint: vf.Endpoint) -> str:
    return "4"


async def return_a_number(task: vf.Task, endpoint: vf.Endpoint) -> Any:
    await ask(endpoint)
    return 4


def test_a_crash_before_the_first_answer_is_a_failure() -> None:
    assert_failed(run(crash_at_once), "KeyError: 'missing'", "before it had an answer")


def test_a_crash_after_an_answer_is_the_agents_own_and_scored() -> None:
    trace = run(crash_later)
    assert trace.error is None
    assert (trace.stop_reason, trace.reward) == (vf.StopReason.TERMINATED, 0.0)
    assert trace.info["output"] == ""
    assert trace.info["program"]["error"].endswith("KeyError: 'missing'\n")
    assert "crash_later" in trace.info["program"]["error"]
    assert_failed(run(crash_later, crash="failed"), "KeyError: 'missing'")


def test_what_an_agent_was_refused_is_reported() -> None:
    assert_failed(
        run(crash_refused, strict_model=True),
        "before it had an answer",
        "refused: The model 'gpt-5'",
    )


def test_an_agent_that_does_not_ask_is_a_failure() -> None:
    assert_failed(run(never_ask), "the agent ended before it had an answer", "OPENAI_BASE_URL")


def test_what_is_not_text_becomes_text() -> None:
    trace = run(return_a_number)
    assert (trace.error, trace.info["output"]) == (None, "4")


@pytest.mark.parametrize("good", [0, 1])
def test_a_failure_of_the_model_is_one_whatever_the_agent_makes_of_it(good: int) -> None:
    async def careless(task: vf.Task, endpoint: vf.Endpoint) -> str:
        for _ in range(2):
            with suppress(openai.InternalServerError):
                await ask(endpoint)
        return "4"

    model = vf.ScriptedModel([*["4"] * good, ModelError("it is down")])
    assert_failed(run(careless, model), "it is down", boundary="model")


def full(messages: list[vf.Message]) -> str:
    """Answer as a model whose context holds three messages."""
    if len(messages) > 3:
        raise ContextFull()
    return "4"


def test_an_agent_that_ends_with_a_full_context_is_truncated() -> None:
    async def grow(task: vf.Task, endpoint: vf.Endpoint) -> None:
        await ask(endpoint, "a")
        await ask(endpoint, "a", "b", "c", "d")

    trace = run(grow, vf.ScriptedModel(full))
    assert (trace.error, trace.stop_reason) == (None, vf.StopReason.MAX_SEQ_LEN)

    async def compact(task: vf.Task, endpoint: vf.Endpoint) -> str:
        await ask(endpoint, "a")
        with pytest.raises(openai.BadRequestError):
            await ask(endpoint, "a", "b", "c", "d")
        return await ask(endpoint, "a", "b")

    trace = run(compact, vf.ScriptedModel(full))
    assert (trace.error, trace.stop_reason) == (None, vf.StopReason.TERMINATED)
    assert trace.reward == 1.0


async def post(endpoint: vf.Endpoint, reward: object) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            endpoint.reward_url,
            json={"reward": reward},
            headers={"Authorization": f"Bearer {endpoint.reward_key}"},
        ) as answer,
    ):
        return answer.status


def test_a_reported_reward_is_the_reward_by_default() -> None:
    async def scoring(task: vf.Task, endpoint: vf.Endpoint) -> None:
        assert await ask(endpoint) == "4"
        assert await post(endpoint, 0.25) == 200

    trace = run(scoring, rubric=None)
    assert trace.score is not None
    assert trace.step_rewards == [0.25]
    assert (trace.reward, trace.score.metrics) == (0.25, {"reported": 1.0})
    silent = run(solve, rubric=None)
    assert silent.score is not None
    assert (silent.reward, silent.score.metrics) == (0.0, {"reported": 0.0})


async def test_a_cancelled_rollout_stops_its_agent() -> None:
    stopped: list[str] = []
    at_work = asyncio.Event()

    async def endless(task: vf.Task, endpoint: vf.Endpoint) -> None:
        await ask(endpoint)
        at_work.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(endpoint.url)

    environment = vf.AgentEnvironment(endless, tasks=[TASK])
    work = asyncio.create_task(vf.rollout(environment, TASK, vf.ScriptedModel(["4"])))
    await at_work.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert len(stopped) == 1


async def test_the_display_sees_what_an_agent_does() -> None:
    answering = asyncio.Event()

    async def slow(messages: list[vf.Message]) -> str:
        await answering.wait()
        return "4"

    beats: list[str] = []
    activity = Activity(TASK, lambda: beats.append(activity.doing))
    environment = vf.AgentEnvironment(solve, tasks=[TASK], rubric=RIGHT)
    model = vf.ScriptedModel(slow)
    work = asyncio.create_task(vf.rollout(environment, TASK, model, activity=activity))
    await until(lambda: activity.doing == "model")
    answering.set()
    await work
    assert beats == ["agent", "model", "agent", "score", "score", "close", "release"]
    assert activity.turn == 1


def test_the_model_has_the_name_that_an_agent_wants() -> None:
    async def picky(task: vf.Task, endpoint: vf.Endpoint) -> str:
        assert endpoint.model == "gpt-5"
        return await ask(endpoint)

    environment = vf.AgentEnvironment(picky, tasks=[TASK], rubric=RIGHT, model="gpt-5")
    trace = asyncio.run(vf.rollout(environment, TASK, vf.ScriptedModel(["4"])))
    assert trace.reward == 1.0


one_argument: Any = lambda task: None  # noqa: E731
wrong: Any = "ok"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: vf.agent(one_argument), "cannot be called with a task and an endpoint"),
        (lambda: vf.AgentEnvironment(one_argument, tasks=[]), "cannot be called with a task"),
        (lambda: vf.AgentEnvironment(solve, tasks=[], crash=wrong), 'crash must be "scored" or'),
        (lambda: vf.AgentEnvironment("solve", tasks=[]), "is not a function but a str"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(vf.ConfigError, match=said):
        make()
