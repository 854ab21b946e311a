"""The bundled guess-number."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import vf
from vf.environments.bundled.guess_number import GuessNumber


def play(secret: int, script: Any, **kwargs: Any) -> vf.Trace:
    task = vf.Task("t", "Guess.", answer=secret)
    return asyncio.run(vf.rollout(GuessNumber(**kwargs), task, vf.ScriptedModel(script)))


def bisect(high: int) -> Any:
    """Return a player that halves the range with what it has seen."""

    def answer(messages: list[vf.Message]) -> str:
        low, top = 1, high
        for said, told in zip(messages[1::2], messages[2::2], strict=True):
            guess = int(said.content)
            low, top = (guess + 1, top) if told.content == "Higher." else (low, guess - 1)
        return str((low + top) // 2)

    return answer


@pytest.mark.parametrize("high", [2, 3, 7, 8, 100])
def test_bisection_finds_every_number_within_the_turns(high: int) -> None:
    for secret in {1, 2, high // 2 + 1, high - 1, high}:
        trace = play(secret, bisect(high), high=high)
        assert trace.reward == 1.0
        assert trace.stop_reason is vf.StopReason.TERMINATED


def test_it_says_higher_and_lower_and_counts_the_guesses() -> None:
    trace = play(5, ["3", "8", "I say 5!"])
    assert [m.content for m in trace.messages[2::2]] == ["Higher.", "Lower.", "Correct!"]
    assert trace.score is not None
    assert trace.score.metrics == {"guesses": 3.0}
    assert trace.step_rewards == [0.0, 0.0, 1.0]


def test_a_number_not_found_in_time_earns_nothing() -> None:
    trace = play(5, ["1", "2", "3"], max_guesses=3)
    assert trace.reward == 0.0
    assert trace.stop_reason is vf.StopReason.MAX_TURNS


@pytest.mark.parametrize("reply", ["4 or 5", "five", "", "5 5", "5" * 5000])
def test_a_reply_without_exactly_one_number_spends_a_turn(reply: str) -> None:
    trace = play(5, [reply, "5"])
    assert trace.messages[2].content == "Reply with exactly one number."
    assert trace.reward == 1.0


def test_tasks_are_the_same_every_time_and_in_range() -> None:
    environment = GuessNumber(high=9, num_train=300, num_eval=50)
    train, held_out = (list(environment.tasks(split)) for split in ("train", "eval"))
    assert (train, held_out) == (list(environment.tasks("train")), list(environment.tasks("eval")))
    assert len({task.id for task in train + held_out}) == 350
    assert {task.answer for task in train} == set(range(1, 10))
    assert {task.answer for task in GuessNumber(high=9, seed=1).tasks("eval")} <= set(range(1, 10))


def test_the_secret_is_not_in_the_prompt() -> None:
    [task] = GuessNumber(high=10**9, num_train=1).tasks("train")
    assert str(task.answer) not in str(task.prompt)


@pytest.mark.parametrize("kwargs", [{"high": 1}, {"max_guesses": 0}])
def test_arguments_out_of_range_are_config_errors(kwargs: dict[str, int]) -> None:
    with pytest.raises(vf.ConfigError, match=f"guess-number: .*{next(iter(kwargs))}"):
        GuessNumber(**kwargs)
