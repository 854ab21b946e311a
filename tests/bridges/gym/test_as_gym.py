"""What a vf-rl environment does in Gymnasium's form, and what it refuses to do."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AsyncVectorEnv

import vf
from tests.test_public_surface import fresh
from tests.waiting import Clock
from vf.bridges.gym.actions import as_action
from vf.bridges.gym.as_gym import GymnasiumEnv
from vf.environments.environment import Split
from vf.runtime.errors import EnvironmentFailure, RubricError, ToolFailure
from vf.traces.tools import tool

Make = Callable[..., GymnasiumEnv]
CLOCK = Clock()


class Faulty(vf.Environment):
    """Does what the model says, and notes when it is closed."""

    max_turns = 3
    timeout = 20.0
    blocked: threading.Event

    def __init__(self, rubric: vf.Rubric | None = None) -> None:
        self.closed: list[str] = []
        self.rubric = rubric or vf.Rubric(outcome=lambda trace: 0.5)

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(5):
            yield vf.Task(f"{split}-{index}", f"Say something about {index}.")

    def reset(self, task: vf.Task) -> list[vf.Message]:
        self.number = task.id
        return self.first_messages(task)

    async def step(self, reply: vf.Message) -> vf.Step:
        match reply.content:
            case "raise":
                raise KeyError("lost")
            case "block":
                self.blocked.wait()
            case "wait":
                await CLOCK.skip(Faulty.timeout)
            case "end":
                return vf.Step("Bye.", terminated=True, info={"said": reply.content})
            case "cut":
                return vf.Step("Cut.", truncated=True)
        return vf.Step(f"{self.rng.random()}", reward=0.25)

    def close(self) -> None:
        self.closed.append(self.number)


class Failing(Faulty):
    """Has a tool that fails."""

    @tool
    def fail(self) -> str:
        """Fail."""
        raise OSError("no such disk")


def test_an_episode_from_reset_to_the_rubrics_reward(make_env: Make) -> None:
    env = make_env(Faulty())
    observation, info = env.reset(seed=4, options={"task": "eval-3", "split": "eval"})
    assert observation == "Say something about 3."
    assert info == {
        "task": "eval-3",
        "split": "eval",
        "messages": [{"role": "user", "content": observation}],
        "tools": [],
    }
    _, reward, terminated, truncated, info = env.step("on")
    assert (reward, terminated, truncated, "score" in info) == (0.0, False, False, False)
    observation, reward, terminated, truncated, info = env.step("end")
    assert (observation, reward, terminated, truncated) == ("Bye.", 0.5, True, False)
    assert info["stop_reason"] == "terminated"
    assert info["score"]["outcome"] == 0.5
    assert info["step_rewards"] == [0.25, 0.0]
    assert info["recorded"] == {"said": "end"}
    assert env.trace is not None
    assert env.trace.reward == 0.5


def test_the_tools_are_those_that_reset_gave_the_episode(make_env: Make) -> None:
    class Given(Faulty):
        def reset(self, task: vf.Task) -> list[vf.Message]:
            def ask() -> str:
                """Ask."""
                return task.id

            ask.__name__ = task.id.replace("-", "_")
            self.tools = [ask]
            return super().reset(task)

        async def step(self, reply: vf.Message) -> vf.Step:
            return await self.run_tools(reply)

    env = make_env(Given())
    for task in ("train-1", "train-2"):
        _, info = env.reset(options={"task": task})
        [name] = [tool["function"]["name"] for tool in info["tools"]]
        call = vf.ToolCall("1", name, "{}")
        assert env.step(as_action(vf.Message("assistant", tool_calls=[call])))[0] == task


@pytest.mark.parametrize(("said", "why"), [(["cut"], "truncated"), (["a", "b", "c"], "max_turns")])
def test_what_is_cut_short_is_truncated_and_scored(
    make_env: Make, said: list[str], why: str
) -> None:
    env = make_env(Faulty())
    env.reset()
    for text in said:
        _, reward, terminated, truncated, info = env.step(text)
    assert (reward, terminated, truncated) == (0.5, False, True)
    assert info["stop_reason"] == why


@pytest.mark.parametrize(
    ("environment", "said", "error", "message"),
    [
        (Faulty(), "raise", EnvironmentFailure, "step raised KeyError: 'lost'"),
        (Failing(), as_action({"fail": {}}), ToolFailure, "no such disk"),
        (Faulty(vf.Rubric(lambda t: None)), "end", RubricError, "without a reward"),
        (Faulty(vf.Rubric(lambda t: float("nan"))), "end", RubricError, "nan"),
        (Faulty(vf.Rubric(lambda t: 2.0)), "end", RubricError, "2.0"),
    ],
)
def test_a_failure_is_raised_and_never_a_reward(
    make_env: Make, environment: Any, said: str, error: type[Exception], message: str
) -> None:
    if isinstance(environment, Failing):
        environment.step = environment.run_tools  # type: ignore[method-assign]
    env = make_env(environment)
    env.reset()
    with pytest.raises(error, match=message):
        env.step(said)
    with pytest.raises(ResetNeeded):
        env.step(said)
    assert env.reset()[0].startswith("Say")


def test_components_that_do_not_apply_are_missing(make_env: Make) -> None:
    rubric = vf.Rubric(
        outcome=lambda trace: 1.0,
        gates={"kept": lambda trace: True, "no case": lambda trace: None},
        metrics={"seen": lambda trace: 2.0, "unseen": lambda trace: None},
    )
    env = make_env(Faulty(rubric))
    env.reset()
    score = env.step("end")[4]["score"]
    assert score["gates"] == {"kept": True}
    assert score["metrics"] == {"seen": 2.0}


def test_the_time_limit_is_of_the_environment_and_not_of_who_answers(
    make_env: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    CLOCK.install(monkeypatch)
    environment = Faulty()
    env = make_env(environment)
    env.reset(options={"task": "train-1"})
    CLOCK.jump(2 * environment.timeout)
    env.step("hm")
    with pytest.raises(EnvironmentFailure, match="longer than its 20 s"):
        env.step("wait")
    assert environment.closed == ["train-1"]


def test_an_environment_that_blocks_the_loop_is_reported(
    make_env: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf.bridges.gym.episode.ENDING", 0.1)
    environment = Faulty()
    environment.timeout = 0.5
    environment.blocked = threading.Event()
    env = make_env(environment)
    env.reset()
    with pytest.raises(EnvironmentFailure, match="blocks it"):
        env.step("block")
    environment.blocked.set()


def test_an_episode_that_is_given_up_is_closed(make_env: Make) -> None:
    environment = Faulty()
    env = make_env(environment)
    env.reset(options={"task": "train-0"})
    env.reset(options={"task": "train-1"})
    assert environment.closed == ["train-0"]
    env.step("end")
    assert environment.closed == ["train-0", "train-1"]
    env.reset(options={"task": "train-2"})
    env.close()
    assert environment.closed == ["train-0", "train-1", "train-2"]
    env.close()
    with pytest.raises(ResetNeeded):
        env.step("on")


def test_the_seed_decides_the_tasks_and_the_episodes(make_env: Make) -> None:
    def seen(seed: int) -> list[Any]:
        env = make_env(Faulty())
        first = env.reset(seed=seed)[1]["task"], env.step("on")[0]
        return [first, *((env.reset()[1]["task"], env.step("on")[0]) for _ in range(4))]

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)
    assert len({task for task, _ in seen(1)}) > 1
    assert len({number for _, number in seen(1)}) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tsak": "train-1"}, "no option 'tsak'. Did you mean 'task'"),
        ({"split": "evla"}, "no split 'evla'. Did you mean 'eval'"),
        ({"task": "eval-1"}, "train split has no task 'eval-1'"),
        ({"task": "train-4"}, "no task 'train-4'"),
    ],
)
def test_wrong_options_are_refused(make_env: Make, options: dict[str, Any], message: str) -> None:
    env = make_env(Faulty(), num_tasks=4)
    with pytest.raises(vf.ConfigError, match=message):
        env.reset(options=options)


@pytest.mark.parametrize(
    ("environment", "args", "message"),
    [
        ("calculatr", {}, "Did you mean 'calculator'"),
        ("calculator", {"max_operation": 2}, "Did you mean 'max_operations'"),
        ("calculator", {"split": "test"}, "no split 'test'"),
        ("calculator", {"render_mode": "human"}, "render_mode must be None or 'ansi'"),
        ("calculator", {"num_tasks": 0}, "num_tasks must be at least 1"),
        (Faulty(), {"high": 3}, "high: arguments go with the name"),
    ],
)
def test_wrong_arguments_are_refused(environment: Any, args: Any, message: str) -> None:
    with pytest.raises(vf.ConfigError, match=message):
        GymnasiumEnv(environment, **args)


def test_steps_out_of_turn_and_of_the_wrong_type_are_refused(make_env: Make) -> None:
    env = make_env(Faulty())
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step("on")
    env.reset()
    with pytest.raises(TypeError, match="an action is text, got int"):
        env.step(3)  # type: ignore[arg-type]
    env.step("end")
    with pytest.raises(ResetNeeded):
        env.step("on")


def test_something_missing_is_reported_at_the_first_reset(make_env: Make) -> None:
    class Missing(Faulty):
        async def check(self) -> None:
            raise vf.ConfigError("there is no engine: start it")

    with pytest.raises(vf.ConfigError, match="start it"):
        make_env(Missing()).reset()


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("Answer: 3", "the action: Expecting value"),
        ('{"content": "x"', "the action: Expecting"),
        ('["calculate"]', "not a JSON object"),
        ('{"content": 5}', "content must be text"),
        ('{"role": "user", "content": "x"}', "role must be 'assistant'"),
        ('{"tool_calls": {"name": "calculate"}}', "tool_calls are not a list"),
        ('{"tool_calls": [{"name": "calculate"}]}', "must hold a function with a name"),
        ('{"text": "x"}', "no place for 'text'"),
        ("[" * 100_000, "the action: maximum recursion"),
        ('{"tool_calls": [{"function": {"name": "calc"}}]}', "Did you mean 'calculate'"),
        ('{"tool_calls": [{"function": {"name": "calculate", "arguments": "{"}}]}', "not valid"),
    ],
)
def test_an_action_that_is_no_message_is_a_tool_call_gone_wrong(
    make_env: Make, action: str, told: str
) -> None:
    env = make_env("calculator", num_train=5)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation.startswith("Error: ")
    assert told in observation
    assert (reward, terminated, truncated) == (0.0, False, False)
    [message] = info["messages"]
    assert message["role"] == "tool"
    _, reward, terminated, _, info = env.step(as_action("Answer: 1"))
    assert terminated
    assert info["score"]["penalties"]["tool_errors"] == 1.0


def test_several_calls_of_one_action_are_answered_together(make_env: Make) -> None:
    env = make_env("calculator", num_train=5)
    _, info = env.reset(seed=0)
    assert info["tools"][0]["function"]["name"] == "calculate"
    calls = [
        {"function": {"name": "calculate", "arguments": {"op": "+", "a": 1, "b": n}}}
        for n in (1, 2)
    ]
    observation, *_, info = env.step(json.dumps({"tool_calls": calls}))
    assert observation == "2\n\n3"
    assert [message["tool_call_id"] for message in info["messages"]] == ["call_0_0", "call_0_1"]


def test_a_sandbox_is_released_however_the_episode_ends(make_env: Make, tmp_path: Path) -> None:
    env = make_env("math-python", num_train=5, sandbox={"backend": "local", "unsafe_local": True})
    where = as_action({"python": {"code": "import os; print(os.getcwd())"}})
    for end in (env.reset, env.close):
        env.reset(seed=0)
        place = Path(env.step(where)[0].strip())
        assert place.is_dir()
        end()
        assert not place.exists()


def test_all_environments_of_a_process_share_one_thread() -> None:
    def loops() -> int:
        return [thread.name for thread in threading.enumerate()].count("vf-gym")

    one, other = GymnasiumEnv(Faulty()), GymnasiumEnv(Faulty())
    assert loops() == 0
    one.reset()
    other.reset()
    assert loops() == 1
    one.close()
    other.step("on")
    assert loops() == 1
    other.close()
    assert loops() == 0


def test_a_forked_process_gets_a_loop_of_its_own(make_env: Make) -> None:
    here = make_env("guess-number")
    here.reset(seed=1)
    context = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    vector = AsyncVectorEnv([lambda: GymnasiumEnv("guess-number")] * 2, context=context)
    vector.reset(seed=1)
    observations, *_ = vector.step(("50", "x"))
    vector.close()
    assert observations[1] == "Reply with exactly one number."
    assert here.step("x")[0] == "Reply with exactly one number."


def test_an_error_in_a_worker_reaches_the_vector() -> None:
    vector = AsyncVectorEnv([lambda: GymnasiumEnv(Faulty())] * 2)
    vector.reset(seed=1)
    with (
        pytest.raises(EnvironmentFailure, match="KeyError"),
        pytest.warns(UserWarning, match="Worker"),
    ):
        vector.step(("on", "raise"))
    vector.close(terminate=True)


def test_an_environment_that_nobody_closed_ends_with_the_process() -> None:
    code = (
        "import asyncio, gymnasium, vf, sys\n"
        "from vf.bridges.gym.as_gym import GymnasiumEnv\n"
        "class Held(vf.Environment):\n"
        "    def tasks(self, split):\n"
        "        yield vf.Task('0', 'Wait.')\n"
        "    async def close(self):\n"
        "        await asyncio.to_thread(print, 'closed')\n"
        "env = GymnasiumEnv(Held())\n"
        "print(env.reset()[0])\n"
    )
    assert fresh(code).split() == ["Wait.", "closed"]
