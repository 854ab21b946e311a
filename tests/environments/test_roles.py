"""Several agents in an episode: who acts, what each role sees, and what is trained."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

import vf
from vf.inference.model import Conversation, Reply
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import build_samples, role_advantages
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs

TASK = vf.Task("t", "Go.")


class Talk(vf.MultiAgentEnvironment):
    """Two take turns, then both act at once."""

    roles = {"ann": vf.Role("You are Ann."), "bob": vf.Role()}

    def reset(self, task: vf.Task) -> vf.RoleStep:  # type: ignore[override]
        return vf.RoleStep({"ann": task.prompt})

    def step(self, replies: dict[str, vf.Message]) -> vf.RoleStep:  # type: ignore[override]
        if self.turn == 0:
            return vf.RoleStep({"bob": replies["ann"].content}, rewards={"ann": 0.25})
        if self.turn == 1:
            return vf.RoleStep({"ann": "both", "bob": "both"})
        rewards = {"ann": 0.5, "bob": float(len(replies["bob"].content) > 5)}
        return vf.RoleStep({"bob": "over"}, rewards=rewards, terminated=True)


class Tokens:
    """A policy that answers in tokens, two for each answer."""

    async def respond(self, conversation: Conversation, sampling: vf.Sampling) -> Reply:
        if not conversation.branches:
            conversation.branches.append(Branch())
        branch = conversation.branches[-1]
        branch.add_context([1] * len(conversation.messages), conversation.turn)
        branch.add_sampled([2, 3], [-0.5, -0.25], [7, 7], conversation.turn)
        await asyncio.sleep(0)
        return Reply(vf.Message("assistant", f"turn {conversation.turn}"), "stop", len(branch), 2)


def run(environment: vf.Environment, model: Any) -> vf.Trace:
    trace = asyncio.run(vf.rollout(environment, TASK, model))
    assert vf.Trace.from_json(trace.to_json()) == trace
    return trace


def said(trace: vf.Trace, place: int) -> list[tuple[str, str]]:
    return [(each.role, each.content) for each in trace.conversations[place].messages]


def test_each_role_has_a_conversation_and_a_branch_of_its_own() -> None:
    trace = run(Talk(), Tokens())
    assert trace.error is None
    assert said(trace, 0) == [
        ("system", "You are Ann."),
        ("user", "Go."),
        ("assistant", "turn 0"),
        ("user", "both"),
        ("assistant", "turn 2"),
    ]
    assert said(trace, 1) == [
        ("user", "turn 0"),
        ("assistant", "turn 1"),
        ("user", "both"),
        ("assistant", "turn 3"),
        ("user", "over"),
    ]
    assert trace.branch_roles == ["ann", "bob"]
    assert [each.turns for each in trace.lineages] == [[0, 2], [1, 3]]
    assert [sorted({*each.turn_index}) for each in trace.branches] == [[0, 2], [1, 3]]
    assert [each.content for each in trace.answers] == [f"turn {n}" for n in range(4)]
    assert {name: role.reward for name, role in trace.roles.items()} == {"ann": 0.75, "bob": 1.0}
    assert trace.reward == 0.875


def test_only_what_is_trained_carries_loss() -> None:
    environment = Talk()
    environment.trained = ["bob"]
    trace = run(environment, Tokens())
    assert [sum(each.loss_mask) for each in trace.branches] == [0, 4]
    assert trace.reward == 1.0


def test_a_role_can_be_played_by_a_script_whose_words_are_no_turns() -> None:
    environment = Talk()
    environment.players = {"ann": ["one", "two"], "bob": "policy"}
    trace = run(environment, Tokens())
    assert said(trace, 0)[2] == ("assistant", "one")
    assert said(trace, 1)[0] == ("user", "one")
    assert len(trace.turns) == 2
    assert trace.branch_roles == ["bob"]
    assert [role.player for role in trace.roles.values()] == ["script", "policy"]
    assert [role.trained for role in trace.roles.values()] == [False, True]


def test_roles_have_tools_of_their_own() -> None:
    def double(number: int) -> int:
        """Double a number.

        Args:
            number: It.
        """
        return 2 * number

    class Counts(vf.MultiAgentEnvironment):
        roles = {"one": vf.Role(tools=[double]), "two": vf.Role()}

        def reset(self, task: vf.Task) -> vf.RoleStep:  # type: ignore[override]
            return vf.RoleStep({"one": "Double 4.", "two": "Wait."}, acting=["one"])

        async def step(self, replies: dict[str, vf.Message]) -> vf.RoleStep:  # type: ignore[override]
            if "two" in replies:
                return vf.RoleStep(terminated=True)
            results = await self.run_role_tools("one", replies["one"])
            return vf.RoleStep({"one": results, "two": results[0].content}, acting=["two"])

    trace = run(Counts(), vf.ScriptedModel([{"double": {"number": 4}}]))
    assert [len(each.tools) for each in trace.lineages] == [1, 0]
    assert said(trace, 0)[-1] == ("tool", "8")
    assert [event.kind for event in trace.tool_events] == ["ok"]


def test_the_baseline_of_a_role_is_the_same_roles() -> None:
    rewards = [(1.0, 0.0), (1.0, 0.5), (1.0, 1.0), (0.0, 0.5)]
    group = Group(TASK)
    for ann, bob in rewards:
        trace = run(Talk(), Tokens())
        trace.roles["ann"].reward, trace.roles["bob"].reward = ann, bob
        assert trace.score is not None
        trace.score.reward = 0.5  # zero-sum: the mean teaches nothing, and the roles do
        group.traces.append(trace)
    assert not group.uniform
    found = role_advantages(group)
    assert [each["ann"] for each in found] == [0.25, 0.25, 0.25, -0.75]
    assert [each["bob"] for each in found] == [-0.5, 0.0, 0.5, 0.0]
    [samples] = build_samples([group], TrainerArgs())
    by_role = [(each["ann"], each["bob"]) for each in found]
    assert [sample.advantage for sample in samples] == [a for pair in by_role for a in pair]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"roles": {}}, "roles must be a dict with at least one role"),
        ({"trained": ["bop"]}, "trained names the role 'bop'.* Did you mean 'bob'"),
        ({"players": {"an": ["x"]}}, "players names the role 'an'"),
        ({"players": {"ann": "random"}}, "players.ann = 'random': write 'policy'"),
        ({"players": {"ann": ["x"]}, "trained": ["ann"]}, "trained names 'ann', which players.ann"),
        ({"system_prompt": "Hi"}, "belong to a role"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], words: str) -> None:
    environment = Talk()
    for name, value in settings.items():
        setattr(environment, name, value)
    with pytest.raises(vf.ConfigError, match=words):
        asyncio.run(environment.check())


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [
        (vf.RoleStep({"eve": "hi"}), vf.ConfigError, "the observations of step names .*'eve'"),
        (vf.RoleStep({}, acting=["ann"]), None, "'ann' is to act, but has nothing new to answer"),
        (vf.RoleStep(), None, "nor said who acts next"),
        (vf.RoleStep(rewards={"ann": 2.0}), None, "add up to 2, outside of .0, 1."),
        (vf.RoleStep(terminated=True), vf.ConfigError, "'bob' is trained, but never acted"),
    ],
)
def test_a_wrong_step_is_named(step: vf.RoleStep, error: Any, words: str) -> None:
    class Wrong(Talk):
        def step(self, replies: dict[str, vf.Message]) -> vf.RoleStep:  # type: ignore[override]
            return step

    if error is not None:
        with pytest.raises(error, match=words):
            run(Wrong(), Tokens())
        return
    trace = run(Wrong(), Tokens())
    assert trace.error is not None
    assert trace.error.boundary == "environment"
    assert re.search(words, trace.error.message)
