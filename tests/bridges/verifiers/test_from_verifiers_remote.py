"""v1 tasksets whose tools are on a server that runs already."""

from __future__ import annotations

import asyncio

import pytest

import vf
from tests.late import Late
from tests.tools.mcp.servers import served
from vf.bridges.verifiers.from_verifiers import from_verifiers
from vf.inference.models.scripted_model import Line

Late("verifiers.v1")  # skips these tests without it
pytestmark = pytest.mark.usefixtures("their_envs")


@pytest.mark.slow
@pytest.mark.gate
def test_tools_of_another_server_are_listed_and_called_there() -> None:
    with served() as (url, _, _):
        environment = from_verifiers("their-remote", task={"tools": {"url": f"{url}/mcp"}})
        assert "far_add" in environment.toolbox.tools
        [task] = environment.tasks("train")
        script: list[Line] = [
            {"far_add": {"a": 2, "b": 3}},
            {"far_add": {"a": "two", "b": 3}},
            {"far_nothing": {}},
            "5",
        ]
        trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script)))
    assert trace.error is None
    assert [event.kind for event in trace.tool_events] == ["ok", "rejected", "unknown_tool"]
    assert next(message.content for message in trace.messages if message.role == "tool") == "5"
    assert trace.reward == 1.0


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(vf.VfError, match=r"the MCP server at http://127\.0\.0\.1:9/mcp"):
        from_verifiers("their-remote", task={"tools": {"url": "http://127.0.0.1:9/mcp"}})
