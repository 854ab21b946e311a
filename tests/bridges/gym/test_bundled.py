"""Every bundled environment, by Gymnasium's own code: its checker, vectors, wrappers and specs."""

from __future__ import annotations

import pickle
from importlib.metadata import entry_points
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from tests.bridges.gym.bundled import BUNDLED
from vf.bridges.gym.actions import as_action
from vf.bridges.gym.as_gym import GymnasiumEnv
from vf.evaluation.scripts import oracle_of
from vf.inference.models.scripted_model import as_reply
from vf.traces.messages import Message

RUN_CODE = {"code-contest", "math-python", "repo-fix"}  # which takes its time in each episode
Transition = tuple[str, float, bool, bool, dict[str, Any]]


def make(name: str, args: dict[str, Any], **settings: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make(BUNDLED[name][0], **args, **settings)


def ours(env: gymnasium.Env[str, str]) -> GymnasiumEnv:
    found = env.unwrapped
    assert isinstance(found, GymnasiumEnv)
    return found


def play(env: gymnasium.Env[str, str], seed: int | None = None) -> list[Any]:
    """Play an episode as the environment's oracle does; return all that Gymnasium got."""
    observation, info = env.reset(seed=seed)
    seen: list[Any] = [(observation, info)]
    definition = ours(env).environment
    [task] = [task for task in definition.tasks(info["split"]) if task.id == info["task"]]
    script = oracle_of(definition, task)
    assert script is not None
    said = [Message.from_openai(message) for message in info["messages"]]
    lines = None if callable(script) else iter(script)
    over = False
    while not over:
        line = script(said) if callable(script) else next(lines)  # type: ignore[arg-type]
        reply = as_reply(line, len(seen) - 1)
        step = env.step(as_action(reply) if seen[0][1]["tools"] else reply.content)
        seen.append(step)
        said += [reply, *(Message.from_openai(message) for message in step[4]["messages"])]
        over = step[2] or step[3]
    return seen


def test_none_is_left_out() -> None:
    points = entry_points(group="vf.environments")
    names = {point.name for point in points if ".bundled." in point.value}
    left_out = {"kuhn-poker", "tic-tac-toe", "read-picture"}
    assert names == {*BUNDLED} | left_out, "games have no oracle, and observations are text"
    assert {gymnasium_id for gymnasium_id, _ in BUNDLED.values()} <= set(gymnasium.registry)


def test_gymnasiums_own_checker_passes(name: str, args: dict[str, Any]) -> None:
    env = make(name, args)
    check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize(
    "name",
    [
        "math-python",
        pytest.param("code-contest", marks=pytest.mark.slow),
        pytest.param("repo-fix", marks=pytest.mark.slow),
    ],
)
def test_it_passes_with_real_containers(name: str, containers: None) -> None:
    env = gymnasium.make(BUNDLED[name][0])
    check_env(env.unwrapped)
    assert play(env, seed=1)[-1][1] == 1.0
    env.close()


def test_the_oracle_is_paid_and_the_same_seed_gives_the_same_episodes(
    name: str, args: dict[str, Any]
) -> None:
    env, again = (RecordEpisodeStatistics(make(name, args)) for _ in range(2))
    for seed in (3,) if name in RUN_CODE else (3, None):
        first, second = play(env, seed), play(again, seed)
        _, reward, terminated, truncated, info = first[-1]
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert info["episode"]["r"] == 1.0
        assert info["episode"]["l"] == len(first) - 1
        for seen in (first, second):
            del seen[-1][4]["episode"]  # holds seconds
        assert data_equivalence(first, second, exact=True)
    assert env.return_queue[-1] == 1.0
    env.close()
    again.close()


def test_a_spec_survives_json_and_pickling(name: str, args: dict[str, Any]) -> None:
    env = TimeLimit(make(name, args), 50)
    assert env.spec is not None
    for spec in (EnvSpec.from_json(env.spec.to_json()), pickle.loads(pickle.dumps(env.spec))):
        assert spec == env.spec
        again = gymnasium.make(spec)
        assert again.spec == env.spec
        assert again.reset(seed=5)[0] == env.reset(seed=5)[0]
        again.close()
    env.close()


def test_a_time_limit_truncates(name: str, args: dict[str, Any]) -> None:
    env = make(name, args, max_episode_steps=1)
    _, info = env.reset(seed=0)
    action = as_action("") if name == "guess-number" or not info["tools"] else "no JSON"
    _, reward, terminated, truncated, _ = env.step(action)
    assert reward == 0.0
    assert truncated
    assert terminated == (name == "reverse-text")
    env.close()


def test_a_vector_of_them_says_what_single_ones_say(name: str, args: dict[str, Any]) -> None:
    compare_vector(name, args, "sync")


@pytest.mark.parametrize("name", ["calculator", "math-python"])
def test_a_vector_in_processes_says_what_single_ones_say(name: str, args: dict[str, Any]) -> None:
    compare_vector(name, args, "async")


def compare_vector(name: str, args: dict[str, Any], mode: str) -> None:
    vector = gymnasium.make_vec(
        BUNDLED[name][0],
        num_envs=2,
        vectorization_mode=mode,
        wrappers=[RecordEpisodeStatistics],
        **args,
    )
    singles = [make(name, args) for _ in range(2)]
    seeds: Any = [7, 8]
    first, infos = vector.reset(seed=seeds)
    expected = [env.reset(seed=seed) for env, seed in zip(singles, seeds, strict=True)]
    assert tuple(first) == tuple(observation for observation, _ in expected)
    assert list(infos["task"]) == [info["task"] for _, info in expected]
    vector.action_space.seed(1)
    actions = vector.action_space.sample()
    observations, rewards, terminations, truncations, _ = vector.step(actions)
    steps = [env.step(action) for env, action in zip(singles, actions, strict=True)]
    assert tuple(observations) == tuple(step[0] for step in steps)
    assert list(rewards) == [step[1] for step in steps]
    assert list(terminations) == [step[2] for step in steps]
    assert list(truncations) == [step[3] for step in steps]
    assert tuple(first) == tuple(observation for observation, _ in expected), "a view, not a copy"
    vector.close()
    for env in singles:
        env.close()


def test_it_renders_the_conversation(name: str, args: dict[str, Any]) -> None:
    env = make(name, args, render_mode="ansi")
    observation, _ = env.reset(seed=0)
    env.step("no JSON")
    shown = env.render()
    assert isinstance(shown, str)
    assert shown.startswith("[system]" if ours(env).environment.system_prompt else "[user]")
    assert observation.splitlines()[-1] in shown
    assert "[assistant]\n" in shown
    env.close()
