"""The one rollout loop: what is said, what is recorded, and why it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import vf
from vf.environments.episode import Episode
from vf.inference.model import ContextFull, Conversation, Reply
from vf.runtime.seeding import derive_seed

TASK = vf.Task("t", "How many?", answer="3")


def run(environment: vf.Environment, model: Any, **kwargs: Any) -> vf.Trace:
    return asyncio.run(vf.rollout(environment, TASK, model, **kwargs))


class Countdown(vf.Environment):
    """Ends after ``turns`` replies, by its own rules or from outside of them."""

    def __init__(self, turns: int, truncate: bool = False) -> None:
        self.turns, self.truncate = turns, truncate

    def step(self, reply: vf.Message) -> vf.Step:
        left = self.turns - self.turn - 1
        return vf.Step(
            f"{left} left",
            reward=1 / self.turns,
            terminated=left == 0 and not self.truncate,
            truncated=left == 0 and self.truncate,
            info={f"turn {self.turn}": reply.content},
        )


class Counting:
    """A model whose every answer spends as many tokens as it may, up to ``appetite``."""

    def __init__(self, appetite: int) -> None:
        self.appetite = appetite
        self.asked: list[vf.Sampling] = []

    async def respond(self, conversation: Conversation, sampling: vf.Sampling) -> Reply:
        self.asked.append(sampling)
        spent = min(self.appetite, sampling.max_tokens)
        return Reply(vf.Message("assistant", "x"), "length", 7, spent)


def test_messages_rewards_and_info_of_a_whole_episode() -> None:
    trace = run(Countdown(3), vf.ScriptedModel(["a", "b", "c"]), seed=5)
    assert [(m.role, m.content) for m in trace.messages] == [
        ("user", "How many?"),
        ("assistant", "a"),
        ("user", "2 left"),
        ("assistant", "b"),
        ("user", "1 left"),
        ("assistant", "c"),
        ("user", "0 left"),
    ]
    assert trace.step_rewards == [1 / 3] * 3
    assert trace.info == {"turn 0": "a", "turn 1": "b", "turn 2": "c"}
    assert trace.stop_reason is vf.StopReason.TERMINATED
    assert trace.reward == pytest.approx(1.0)
    assert trace.reply == "c"
    assert (trace.seed, trace.task, trace.environment) == (5, TASK, "Countdown")
    assert {"reset", "model", "step", "score", "total"} <= set(trace.timing)


def test_the_system_prompt_comes_first_and_is_part_of_the_prompt() -> None:
    environment = Countdown(1)
    environment.system_prompt = "Be brief."
    trace = run(environment, vf.ScriptedModel(["a"]))
    assert [m.role for m in trace.messages] == ["system", "user", "assistant", "user"]
    assert trace.prompt_messages == 2


def test_a_script_may_be_one_text() -> None:
    trace = run(Countdown(1), vf.ScriptedModel("done"))
    assert [message.content for message in trace.messages if message.role == "assistant"] == [
        "done"
    ]


def test_the_model_sees_everything_said_so_far() -> None:
    seen: list[list[str]] = []

    def answer(messages: list[vf.Message]) -> str:
        seen.append([message.content for message in messages])
        return f"a{len(seen)}"

    run(Countdown(2), vf.ScriptedModel(answer))
    assert seen == [["How many?"], ["How many?", "a1", "1 left"]]


def test_truncated_by_the_environment_is_not_terminated() -> None:
    trace = run(Countdown(1, truncate=True), vf.ScriptedModel(["a"]))
    assert trace.stop_reason is vf.StopReason.TRUNCATED
    assert trace.truncated


def test_max_turns_ends_the_episode_and_it_is_scored() -> None:
    environment = Countdown(10)
    environment.max_turns = 3
    trace = run(environment, Counting(1))
    assert trace.stop_reason is vf.StopReason.MAX_TURNS
    assert len(trace.turns) == 3
    assert trace.reward == pytest.approx(0.3)


def test_an_end_in_the_last_allowed_turn_is_an_end() -> None:
    environment = Countdown(3)
    environment.max_turns = 3
    assert run(environment, Counting(1)).stop_reason is vf.StopReason.TERMINATED


def test_max_tokens_is_a_budget_for_the_whole_episode() -> None:
    environment, model = Countdown(10), Counting(appetite=4)
    environment.max_tokens = 10
    trace = run(environment, model, sampling=vf.Sampling(max_tokens=6))
    assert [asked.max_tokens for asked in model.asked] == [6, 6, 2]
    assert [turn.completion_tokens for turn in trace.turns] == [4, 4, 2]
    assert trace.completion_tokens == 10
    assert trace.stop_reason is vf.StopReason.MAX_TOKENS
    assert trace.reward == pytest.approx(0.3)


def test_a_full_context_ends_the_episode_as_truncated_and_scored() -> None:
    trace = run(Countdown(4), vf.ScriptedModel(["x", ContextFull()]))
    assert trace.stop_reason is vf.StopReason.MAX_SEQ_LEN
    assert trace.error is None
    assert trace.reward == 0.25


def test_an_example_in_the_prompt_is_not_taken_for_the_models_answer() -> None:
    environment = vf.Environment()
    environment.rubric = vf.Rubric(lambda trace: float(trace.reply == trace.task.answer))
    shots = [{"role": "assistant", "content": "3"}, {"role": "user", "content": "Again?"}]
    task = vf.Task("t", shots, answer="3")
    assert (
        asyncio.run(vf.rollout(environment, task, vf.ScriptedModel([ContextFull()]))).reward == 0.0
    )


def test_every_turn_is_sampled_with_its_own_seed_and_the_given_settings() -> None:
    def asked(seed: int) -> list[vf.Sampling]:
        model = Counting(1)
        run(Countdown(3), model, sampling=vf.Sampling(temperature=0.3, seed=99), seed=seed)
        return model.asked

    first = asked(1)
    assert [sampling.seed for sampling in first] == [derive_seed(1, "turn", k) for k in range(3)]
    assert {sampling.temperature for sampling in first} == {0.3}
    assert asked(1) == first
    assert not {s.seed for s in asked(2)} & {s.seed for s in first}


def test_coroutine_and_plain_environments_run_alike() -> None:
    class Awaited(vf.Environment):
        closed = 0

        async def reset(self, task: vf.Task) -> str:
            await asyncio.sleep(0)
            return "Go."

        async def step(self, reply: vf.Message) -> vf.Step:
            await asyncio.sleep(0)
            return vf.Step(reward=1.0, terminated=True)

        async def close(self) -> None:
            Awaited.closed += 1

    trace = run(Awaited(), vf.ScriptedModel(["a"]))
    assert [message.content for message in trace.messages] == ["Go.", "a"]
    assert trace.reward == 1.0
    assert Awaited.closed == 1


def test_the_rubric_scores_while_the_environment_is_still_open() -> None:
    order: list[str] = []

    class Ordered(vf.Environment):
        def close(self) -> None:
            order.append("close")

    def outcome(trace: vf.Trace) -> float:
        order.append("score")
        return 1.0

    environment = Ordered()
    environment.rubric = vf.Rubric(outcome)
    run(environment, vf.ScriptedModel(["a"]))
    assert order == ["score", "close"]


def test_an_environment_may_bring_its_own_way_of_playing() -> None:
    class Dictation(vf.Environment):
        """Needs no turns: it asks the model once, and scores the length of its answer."""

        rubric = vf.Rubric(outcome=lambda trace: len(trace.info["answer"]) / 10)

        async def play_episode(self, episode: Episode) -> vf.StopReason:
            conversation = vf.Conversation([vf.Message("user", str(episode.task.prompt))])
            reply = await episode.model.respond(conversation, episode.sampling)
            episode.trace.info["answer"] = reply.message.content
            return vf.StopReason.TERMINATED

    task = vf.Task("a", "Write down: hello", answer="")
    trace = asyncio.run(vf.rollout(Dictation(), task, vf.ScriptedModel(["hello"])))
    assert (trace.stop_reason, trace.reward) == (vf.StopReason.TERMINATED, 0.5)
