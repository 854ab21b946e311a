"""Servers that lie, hang or cannot be had."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import vf
from tests.tools.mcp.servers import COUNT, PLENTY, Desk, odd, play, told, tools
from vf.runtime.errors import ToolFailure
from vf.tools.mcp.listing import select, text_of
from vf.tools.mcp.mcp_session import Session

REFUSED = "failed to list its tools"  # mcp 2 reads some of it more closely than mcp 1
TEXT = {"type": "text", "text": "fine"}


def listing(**tool: Any) -> list[dict[str, Any]]:
    return [COUNT | tool]


def schema(**schema: Any) -> list[dict[str, Any]]:
    return listing(inputSchema={"type": "object"} | schema)


@pytest.mark.parametrize(
    ("told", "settings", "message"),
    [
        ({"quit": "the licence has run out"}, {}, "the licence has run out"),
        ({"hang": "initialize"}, {"start_timeout": 0.3}, r"did not start within 0\.3 s"),
        (
            {"tools": schema(type="array")},
            {},
            f"must be of type 'object', and is of 'array'|{REFUSED}",
        ),
        ({"tools": [{"name": "no schema"}]}, {}, "failed to list its tools"),
        ({}, {"exclude": ["count"]}, "all of them are excluded"),
    ],
)
def test_what_cannot_be_used_is_reported_before_a_run(
    told: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(vf.ConfigError, match=f"(?s){message}"):
        asyncio.run(tools(odd(**told), **settings).check())


@pytest.mark.parametrize(
    ("listed", "settings", "message"),
    [
        ([], {}, "offers no tools"),
        (schema(type="array"), {}, "must be of type 'object', and is of 'array'"),
        (listing(inputSchema={}), {}, "must be of type 'object', and is of None"),
        (
            schema(properties={"a": {"type": "whole"}}),
            {},
            "tool 'count': its inputSchema is not a JSON schema.*'whole'",
        ),
        (schema(properties={"a": {"$ref": "#/$defs/A"}}), {}, "its inputSchema is not"),
        (schema(properties={"default": {"$ref": "#/$defs/A"}}), {}, "its inputSchema is not"),
        (
            schema(properties={"a": {"$ref": "http://localhost/a.json"}}),
            {},
            "its inputSchema is not",
        ),
        (schema(properties={"a": {"pattern": "("}}), {}, "its inputSchema is not"),
        (listing(outputSchema={"type": 5}), {}, "its outputSchema is not"),
        (listing(name="files.read"), {}, "'files.read' cannot be a tool's name"),
        (listing(name=""), {}, "cannot be a tool's name"),
        ([COUNT], {"prefix": "a b "}, "'a b count' cannot be a tool's name"),
        ([COUNT, COUNT], {}, "lists two tools 'count'"),
        ([COUNT], {"include": ["cuont"]}, "no tool 'cuont'. Did you mean 'count'"),
        ([COUNT], {"exclude": ["other"]}, "no tool 'other'.*It has: count"),
        ([COUNT], {"exclude": ["count"]}, "all of them are excluded"),
    ],
)
def test_what_a_server_lists_must_be_usable(
    listed: list[dict[str, Any]], settings: dict[str, Any], message: str
) -> None:
    selection = {"include": None, "exclude": (), "prefix": "", "where": "the server"} | settings
    with pytest.raises(vf.ConfigError, match=f"(?s){message}"):
        select(listed, **selection)


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(vf.ConfigError, match=r"(?s)`vf-no-such-command --x`.*not found"):
        asyncio.run(tools(["vf-no-such-command", "--x"]).check())
    with pytest.raises(vf.ConfigError, match="such/folder"):
        asyncio.run(tools([sys.executable], cwd="/no/such/folder").check())


def test_a_server_that_talks_nonsense_is_not_a_server() -> None:
    command = [sys.executable, "-c", "print('hello'); import signal; signal.pause()"]
    with pytest.raises(vf.ConfigError, match=r"did not start within 0\.5 s"):
        asyncio.run(tools(command, start_timeout=0.5).check())


def test_a_server_that_never_lists_its_tools() -> None:
    async def run() -> None:
        session = await Session.open(tools(odd(hang="tools/list")).server, PLENTY)
        with pytest.raises(ToolFailure, match=r"(?s)did not list its tools within 0.2 s.*at your"):
            await session.tools(0.2)
        assert session.lost

    asyncio.run(run())


def test_whoever_does_not_check_gets_the_tools_all_the_same() -> None:
    with pytest.raises(vf.ConfigError, match="no tool 'other'"):
        asyncio.run(play(Desk(tools(odd(), include=["other"])), "."))
    assert told(asyncio.run(play(Desk(tools(odd())), {"count": {}}, "."))) == ["1"]


def test_tools_are_listed_to_the_last_page_and_chosen_by_name() -> None:
    many = [COUNT | {"name": f"count-{index}"} for index in range(7)]
    every = Desk(tools(odd(tools=many, pages=3)))
    assert list(every.episode(0).toolbox.tools) == [tool["name"] for tool in many]
    wanted = {"include": ["count-6", "count-1"], "prefix": "x_"}
    some = Desk(tools(odd(tools=many, pages=3), **wanted))
    assert list(some.episode(0).toolbox.tools) == ["x_count-1", "x_count-6"]
    assert told(asyncio.run(play(some, {"x_count-6": {}}, "."))) == ["1"]
    # An excluded tool may be as it likes.
    mixed = Desk(tools(odd(tools=[COUNT, COUNT | {"name": "a.b"}]), exclude=["a.b"]))
    assert list(mixed.episode(0).toolbox.tools) == ["count"]


def test_two_tools_of_one_name_are_refused() -> None:
    class Own(Desk):
        @vf.tool
        def count(self) -> int:
            """Count."""
            return 0

    with pytest.raises(vf.ConfigError, match="two tools are called 'count'"):
        Own(tools(odd())).episode(0).toolbox  # noqa: B018
    both = Own(tools(odd(), prefix="far_"))
    assert set(both.episode(0).toolbox.tools) == {"count", "far_count"}


def called(result: dict[str, Any], **tool: Any) -> vf.Trace:
    environment = Desk(tools(odd(tools=listing(**tool), result=result)))
    return asyncio.run(play(environment, {"count": {}}, "."))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [TEXT], "structuredContent": {"n": 1}}, "fine"),
        ({"content": [], "structuredContent": {"n": 1}}, '{"n": 1}'),
        ({"content": [TEXT], "structuredContent": {"n": "1"}}, "n: '1' is not of type 'integer'"),
        ({"content": [TEXT], "structuredContent": {}}, "arguments: 'n' is a required property"),
        ({"content": [TEXT]}, "it is not structured"),
        ({"content": [TEXT], "isError": True}, "Error: fine"),
    ],
)
def test_a_result_is_held_against_the_servers_own_schema(result: dict[str, Any], text: str) -> None:
    output = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
    }
    trace = called(result, outputSchema=output)
    assert told(trace)[0].endswith(text)
    wrong = told(trace)[0].startswith("Error: ")
    assert wrong == (trace.tool_events[0].kind == "rejected") == (text not in ("fine", '{"n": 1}'))


def test_arguments_that_only_the_server_rejects_are_reported_to_the_model() -> None:
    trace = called({"error": {"code": -32602, "message": "n must be prime"}})
    assert told(trace) == ["Error: n must be prime"]
    assert trace.tool_events[0].kind == "rejected"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"error": {"code": -32603, "message": "the disk is full"}}, "the disk is full"),
        ({"content": "not a list"}, "failed to answer a call of 'count'"),
    ],
)
def test_a_server_that_fails_is_no_fault_of_the_models(
    result: dict[str, Any], message: str
) -> None:
    trace = called(result)
    assert trace.error is not None
    assert trace.error.boundary == "tool"
    assert message in trace.error.message
    assert trace.reward is None


def test_what_is_not_text_is_named() -> None:
    text = {"uri": "file:///a.txt", "text": "in it"}
    blob = {"uri": "file:///b.png", "blob": "AAAA"}
    content = [
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource", "resource": text},
        {"type": "resource", "resource": blob},
        {"type": "resource_link", "uri": "file:///c", "name": "c"},
    ]
    assert text_of({"content": content}).splitlines() == [
        "[audio of type audio/wav, not shown]",
        "[resource file:///a.txt]",
        "in it",
        "[resource file:///b.png, not shown]",
        "[resource file:///c, not shown]",
    ]
