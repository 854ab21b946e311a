"""Scores of verifiers: their range, functions that raise, groups, and saved traces."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.bridges.verifiers.from_verifiers import from_verifiers
from vf.bridges.verifiers.rewards import RewardRange, reward_range
from vf.bridges.verifiers.v0 import V0Environment
from vf.evaluation.rescore import rescore
from vf.inference.models.scripted_model import Line
from vf.runtime.errors import RubricError
from vf.testing import FakeServer, Response
from vf.traces.trace import Trace

pytestmark = pytest.mark.usefixtures("their_envs")


def load(id: str = "their-oddities", **args: Any) -> V0Environment:
    environment = from_verifiers(id, **args)
    assert isinstance(environment, V0Environment)
    return environment


def said(environment: V0Environment, *script: Line) -> Trace:
    task = next(iter(environment.tasks("train")))
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script)))


def test_the_range_follows_the_weights_unless_it_is_given() -> None:
    assert reward_range("x", None, [[0.5, 0.5, 0.0]]) == RewardRange("x", 0.0, 1.0)
    assert reward_range("x", None, [[0.2]]) == RewardRange("x", 0.0, 1.0)
    with pytest.warns(UserWarning, match=r"x: its weights allow rewards from -0.5 to 1.2, and"):
        assert reward_range("x", None, [[1.0, 0.2], [-0.5]]) == RewardRange("x", -0.5, 1.2)
    assert reward_range("x", [-1, 3], [[9.0]]) == RewardRange("x", -1.0, 3.0)
    for wrong in ([1, 0], [0], [0, float("inf")], [float("nan"), 1]):
        with pytest.raises(vf.ConfigError, match=r"reward_range must be \[lo, hi\], lo < hi"):
            reward_range("x", wrong, [])


def test_a_reward_outside_the_range_is_an_error_that_says_how_to_map_it() -> None:
    inside = said(load(kind="state"), "0.25")
    assert inside.reward == 0.25
    outside = said(load(kind="state"), "7")
    assert outside.reward is None
    assert outside.error is not None
    assert outside.error.boundary == "rubric"
    assert (
        "verifiers:their-oddities: verifiers' reward is 7, outside of [0, 1]. Give what it can be, "
        "as in reward_range = [0, 7]: it is mapped to [0, 1]"
    ) in outside.error.message
    mapped = said(load(kind="state", reward_range=[-5, 15]), "7")
    assert mapped.reward == pytest.approx(0.6)
    assert mapped.score is not None
    assert mapped.score.metrics["verifiers_reward"] == 7.0


@pytest.mark.parametrize(
    ("kind", "answer", "message"),
    [
        ("state", "seven", "'number' raised ValueError: could not convert string to float"),
        ("state", "nan", "'number' returned nan, not a finite number"),
        ("nothing", "7", "'nothing' raised TypeError"),
        ("vain", "7", "'vain' raised TypeError"),
    ],
)
def test_a_function_that_raises_is_an_error_that_names_it(
    kind: str, answer: str, message: str
) -> None:
    trace = said(load(kind=kind), answer)
    assert trace.reward is None
    assert trace.error is not None
    assert trace.error.boundary == "rubric"
    assert message in trace.error.message


def test_a_judge_is_asked_as_verifiers_asks_it() -> None:
    async def with_judge(verdicts: list[Any]) -> tuple[Trace, Any]:
        async with FakeServer(verdicts) as api:
            environment = load(kind="judged", judge=api.base_url)
            task = next(iter(environment.tasks("train")))
            return await vf.rollout(environment, task, vf.ScriptedModel(["7"])), api.bodies

    trace, requests = asyncio.run(with_judge(["yes"]))
    assert trace.reward == 1.0
    assert "Ground truth answer:\n```\n7\n```" in requests[0]["messages"][0]["content"]
    overloaded = Response("overloaded", 400)  # verifiers asks again after a 500
    failed, _ = asyncio.run(with_judge([overloaded]))
    assert failed.reward is None
    assert failed.error is not None
    assert "'judged' raised RuntimeError: Judge model API error" in failed.error.message


def test_groups_are_scored_as_verifiers_scores_them() -> None:
    environment = load(kind="grouped")
    task = next(iter(environment.tasks("train")))
    answers = ["1", "3", "2"]

    async def ours() -> list[Trace]:
        traces = [
            await vf.rollout(environment, task, vf.ScriptedModel([answer])) for answer in answers
        ]
        assert [trace.reward for trace in traces] == [None] * 3
        assert list(environment.rubric.group_rewards) == ["number", "ranked", "num_turns"]
        await environment.rubric.score_group(traces)
        return traces

    async def theirs() -> list[float]:
        from verifiers.legacy.types import ClientConfig

        async with FakeServer(answers) as api:
            client = ClientConfig(api_base_url=api.base_url, api_key_var="NO_KEY", max_retries=0)
            rows = environment.theirs.get_dataset().repeat(3)
            done = await environment.theirs.generate(
                rows, client=client, model="m", max_concurrent=1
            )
        return [each["reward"] for each in done["outputs"]]

    rewards = [trace.reward for trace in asyncio.run(ours())]
    assert rewards == [pytest.approx(0.1 + 0.5 / 3), pytest.approx(0.8), pytest.approx(0.2 + 1 / 3)]
    assert sorted(asyncio.run(theirs())) == [pytest.approx(each) for each in sorted(rewards)]  # type: ignore[type-var]


def test_a_group_of_environments_goes_to_each_ones_own_rubric() -> None:
    environment = load(kind="group")
    first, second = environment.tasks("train")
    assert (first.info["info"], second.info["info"]) == ({"env_id": "first"}, {"env_id": "second"})
    for task, reward in ((first, 0.8), (second, 0.4)):
        trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(["0.8"])))
        assert trace.reward == pytest.approx(reward)


def test_a_prompt_that_is_text_is_a_users_message() -> None:
    environment = load(kind="text")
    [task] = environment.tasks("train")
    trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(["0.8"])))
    assert [(m.role, m.content) for m in trace.messages[:1]] == [("user", "Say a number.")]
    assert trace.reward == pytest.approx(0.8)


def test_a_members_weights_do_not_change_what_anothers_answer_is_worth() -> None:
    with pytest.warns(UserWarning, match="second: its weights allow rewards from 0 to 1.2"):
        environment = load(kind="wide group")
    [task, *_] = environment.tasks("train")
    assert task.info["info"] == {"env_id": "first"}
    trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(["1.0"])))
    assert trace.reward == 1.0


def test_saved_traces_are_scored_again_where_the_messages_say_all(tmp_path: Path) -> None:
    environment = load("their-tools")
    trace = said(environment, {"add": {"a": 17, "b": 25}}, "42")
    saved = Trace.from_json(trace.to_json())
    saved.score = None

    async def again(rubric: Any, trace: Trace) -> Trace:
        return await anext(rescore([trace], rubric))

    rescored = asyncio.run(again(environment.rubric, saved))
    assert rescored.score == trace.score
    shelf = load("their-tools", kind="shelf")
    lost = asyncio.run(again(shelf.rubric, said(shelf, "done")))
    assert lost.error is not None
    assert "its rewards read the state of the live rollout" in lost.error.message
    with pytest.raises(RubricError, match="live rollout"):
        asyncio.run(load(kind="state").rubric.score(saved))
    saved.lineages = saved.conversations * 2
    with pytest.raises(RubricError, match="one conversation, and the trace has 2"):
        asyncio.run(environment.rubric.score(saved))
