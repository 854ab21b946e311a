"""What new authors get wrong: each mistake is answered with its place and what to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import vf


def play(environment: vf.Environment, *script: Any) -> vf.Trace:
    model = vf.ScriptedModel(script or ["x"])
    return asyncio.run(vf.rollout(environment, vf.Task("t", "Go."), model))


def made(**members: Any) -> vf.Environment:
    kind: Callable[[], vf.Environment] = type("Mine", (vf.Environment,), members)
    return kind()


@pytest.mark.parametrize("returned", [None, ("Go.", {}), {"role": "user", "content": "Go."}])
def test_a_reset_of_gymnasiums_form_gets_an_error_that_says_what_to_return(
    returned: object,
) -> None:
    trace = play(made(reset=lambda self, task: returned))
    assert trace.error is not None
    assert f"got {type(returned).__name__}. It returns the first messages" in trace.error.message
    assert "self.first_messages(task)" in trace.error.message


@pytest.mark.parametrize("returned", [None, ("x", 1.0, True, {}), {"observation": "x"}])
def test_a_step_that_returns_no_step_gets_an_error_that_says_what_to_write(
    returned: object,
) -> None:
    trace = play(made(step=lambda self, reply: returned))
    assert trace.error is not None
    assert f"step returned {type(returned).__name__}, not vf.Step; write" in trace.error.message
    assert "vf.Step(observation, reward=..., terminated=...)" in trace.error.message


@pytest.mark.parametrize("name", ["step", "reset", "close", "tools", "turn", "rng", "sandbox"])
def test_a_tool_cannot_be_called_what_every_environment_has(name: str) -> None:
    def method(self: vf.Environment) -> str:
        return "x"

    with pytest.raises(vf.ConfigError, match=f"'Mine': a tool cannot be called '{name}'"):
        made(**{name: vf.tool(method)})


def test_a_tool_with_brackets_gets_an_error_that_says_what_to_write() -> None:
    mark: Any = vf.tool
    with pytest.raises(vf.ConfigError, match="without brackets"):
        mark()
    with pytest.raises(vf.ConfigError, match="not int"):
        mark(3)


def _nothing() -> str:
    return "x"


def _typed(x: int, near: str = "here") -> str:
    return "x"


_as_any: Any = _typed


def _untyped(x) -> str:  # type: ignore[no-untyped-def]
    return "x"


async def _waiting(x: int) -> str:
    return "x"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_nothing, "self: `def _nothing(self)`; or put @staticmethod under @vf.tool"),
        (_typed, "self: `def _typed(self, x: int, near: str = 'here')`"),
        (_untyped, "self: `def _untyped(self, x)`"),
        (_waiting, "self: `async def _waiting(self, x: int)`"),
        (classmethod(_as_any), "cls: `def _typed(cls, x: int, near: str = 'here')`"),
    ],
)
def test_a_method_without_self_is_refused_when_its_class_is_made(function: Any, said: str) -> None:
    with pytest.raises(vf.ConfigError, match=r"\(.*line \d+\): its first parameter") as caught:
        made(look=vf.tool(function))
    assert said in str(caught.value)


def test_a_static_method_is_a_tool_without_self() -> None:
    tool = made(look=vf.tool(staticmethod(_typed))).toolbox.tools["_typed"]
    assert [*tool.parameters["properties"]] == ["x", "near"]

    def bound(self, x: int) -> str:  # type: ignore[no-untyped-def]
        return "x"

    with pytest.raises(vf.ConfigError, match="nothing is bound to self; leave it out"):
        made(look=vf.tool(staticmethod(bound))).episode(0).toolbox.schemas()


@pytest.mark.parametrize(
    ("member", "value", "said"),
    [
        ("max_turns", "5", "max_turns must be positive, got '5'"),
        ("system_prompt", ["Go."], r"system_prompt must be text, got \['Go.'\]"),
    ],
)
def test_a_setting_of_the_wrong_type_is_named(member: str, value: object, said: str) -> None:
    with pytest.raises(vf.ConfigError, match=f"'Mine': {said}"):
        play(made(**{member: value}))


def test_an_object_is_not_registered_but_its_class() -> None:
    wrong: Any = made()
    with pytest.raises(vf.ConfigError, match=r"not the object: vf\.register\('mine', Mine\)"):
        vf.register("mine", wrong)
