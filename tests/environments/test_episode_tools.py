"""Tools that an episode gets in ``reset``: what is shown, called, recorded and known beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import vf
from vf.environments.environment import Split
from vf.environments.tool_schemas import tool_schemas
from vf.inference.model import Conversation, Reply


def answer(question: str) -> Callable[..., Any]:
    """Return a tool of this name, which answers with its own name."""

    def tool(times: int = 1) -> str:
        """Answer.

        Args:
            times: How often.
        """
        return question * times

    tool.__name__ = question
    return tool


class Desk(vf.Environment):
    """Has a tool of its own, one of the definition, and for each task one more."""

    tools = [answer("everywhere")]

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        yield from (vf.Task(name, "Ask.") for name in ("red", "blue"))

    @vf.tool
    def own(self) -> str:
        """Say hello."""
        return "hello"

    def reset(self, task: vf.Task) -> str:
        self.tools = [*self.tools, answer(task.id)]
        return "Ask."


class Appending(Desk):
    """The same, by changing the list instead of replacing it."""

    def reset(self, task: vf.Task) -> str:
        self.tools.append(answer(task.id))
        return "Ask."


class Looking:
    """Calls the tool that is named like the task, and notes which are on offer."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []

    async def respond(self, conversation: Conversation, sampling: vf.Sampling) -> Reply:
        await asyncio.sleep(0)
        names = [tool["function"]["name"] for tool in conversation.tools]
        if conversation.turn:
            return Reply(vf.Message("assistant", "Done."))
        self.shown.append(names)
        call = vf.ToolCall("c", names[1], '{"times": 2}')
        return Reply(vf.Message("assistant", tool_calls=[call]))


@pytest.mark.parametrize("kind", [Desk, Appending])
def test_each_episode_has_the_tools_that_its_reset_gave_it(kind: type[Desk]) -> None:
    environment, model = kind(), Looking()
    tasks = [*environment.tasks("eval")] * 3
    found = asyncio.run(vf.evaluate(environment, model, tasks=tasks[:2], rollouts_per_example=3))
    assert sorted(model.shown) == sorted([["everywhere", each.id, "own"] for each in tasks])
    for trace in found.traces:
        assert trace.error is None
        assert [tool["function"]["name"] for tool in trace.tools] == [
            "everywhere",
            trace.task.id,
            "own",
        ]
        assert trace.messages[2].content == trace.task.id * 2
        assert [(event.name, event.kind) for event in trace.tool_events] == [(trace.task.id, "ok")]
    assert [*environment.episode(0).toolbox.tools] == ["everywhere", "own"]


def test_a_tool_set_given_in_reset_belongs_to_the_episode_and_is_closed_with_it() -> None:
    closed: list[str] = []

    class Notebook:
        """A tool set that holds something for its episode."""

        services: list[Any] = []

        def __init__(self, name: str) -> None:
            self.name = name

        def bind(self, episode: Any) -> list[Callable[..., Any]]:
            book = episode.hold(self, lambda: self)
            return [answer(f"read_{book.name}")]

        def close(self) -> None:
            closed.append(self.name)

    class Library(vf.Environment):
        def reset(self, task: vf.Task) -> str:
            self.tools = [Notebook(task.id)]
            return "Read."

    model = vf.ScriptedModel([{"read_a": {}}, "Done."])
    trace = asyncio.run(vf.rollout(Library(), vf.Task("a", "Read."), model))
    assert (trace.error, trace.messages[2].content, closed) == (None, "read_a", ["a"])


def run(environment: vf.Environment) -> vf.Trace:
    model = vf.ScriptedModel([{"own": {}}, "Done."])
    return asyncio.run(vf.rollout(environment, vf.Task("red", "Ask."), model))


def test_tools_that_change_after_reset_are_refused() -> None:
    class Late(Desk):
        def step(self, reply: vf.Message) -> Any:
            self.tools = [answer("late")]
            return self.run_tools(reply)

    with pytest.raises(vf.ConfigError, match=r"self\.tools was changed after reset.*ToolError"):
        run(Late())


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (None, r"tools must be a list, got None"),
        (answer("one"), r"tools must be a list, got <function .*write tools = \[...\]"),
        ("python", r"tools must be a list, got 'python'"),
        (["python"], r"tools holds 'python', which is neither a function nor a tool set"),
        ([vf.PythonTool], r"tools holds the class PythonTool; make an object of it: PythonTool"),
        ([answer("own")], r"two tools are called 'own'"),
    ],
)
def test_tools_that_cannot_be_used_are_named(tools: Any, said: str) -> None:
    class Wrong(Desk):
        def reset(self, task: vf.Task) -> str:
            self.tools = tools
            return "Ask."

    with pytest.raises(vf.ConfigError, match=said):
        run(Wrong())
    fixed = Desk()
    fixed.tools = tools
    with pytest.raises(vf.ConfigError, match=said):
        run(fixed)


@pytest.mark.parametrize(
    ("limit", "said"),
    [("max_turns", "max_turns must be positive, got 0"), ("timeout", "reset set self.timeout")],
)
def test_a_limit_set_in_reset_that_cannot_hold_is_named(limit: str, said: str) -> None:
    class Limited(Desk):
        def reset(self, task: vf.Task) -> str:
            setattr(self, limit, 0 if limit == "max_turns" else 5.0)
            return "Ask."

    with pytest.raises(vf.ConfigError, match=said):
        run(Limited())


def test_the_tools_of_a_property_stay_its_own() -> None:
    class Computed(vf.Environment):
        @property
        def tools(self) -> list[Callable[..., Any]]:  # type: ignore[override]
            return [answer("own")]

    assert run(Computed()).tool_events[0].kind == "ok"


def test_what_is_offered_is_known_before_the_first_episode() -> None:
    closed = []

    class OnlyInReset(vf.Environment):
        def reset(self, task: vf.Task) -> str:
            if task.id == "broken":
                raise OSError("no disk")
            self.tools = [answer(task.id)]
            return "Ask."

        def close(self) -> None:
            closed.append(True)

    def names(environment: vf.Environment, id: str) -> list[str]:
        tools = asyncio.run(tool_schemas(environment, vf.Task(id, "Ask.")))
        return [tool["function"]["name"] for tool in tools]

    assert names(Desk(), "red") == ["everywhere", "own"]  # enough to know: nothing is reset
    assert names(OnlyInReset(), "red") == ["red"]
    assert names(OnlyInReset(), "broken") == []
    assert len(closed) == 2
