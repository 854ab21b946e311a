"""Tools of a server that runs already, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import vf
from tests.tools.mcp.servers import Desk, check, play, served, told, tools
from tests.waiting import until
from vf.inference.models.scripted_model import Line


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as (address, _, _):
        yield f"{address}/mcp"


@pytest.mark.slow
def test_many_episodes_at_once_each_have_their_own_session(url: str) -> None:
    environment = Desk(tools(url=url))

    async def run() -> list[vf.Trace]:
        await check(environment)
        script: list[Line] = [{"count": {}}, {"add": {"a": 20, "b": 1}, "count": {}}, "Done."]
        return await asyncio.gather(*(play(environment, *script) for _ in range(16)))

    for trace in asyncio.run(run()):
        assert told(trace) == ["1", "21", "2"]


def test_episodes_can_share_a_session(url: str) -> None:
    environment = Desk(tools(url=url, session="shared", include=["count", "shout"]))

    async def run() -> list[vf.Trace]:
        script: list[Line] = [{"count": {}, "shout": {"text": "ö"}}, "Done."]
        return await asyncio.gather(*(play(environment, *script) for _ in range(6)))

    traces = asyncio.run(run())
    assert sorted(int(told(trace)[0]) for trace in traces) == [1, 2, 3, 4, 5, 6]
    assert {told(trace)[1] for trace in traces} == {"Ö"}
    # Another loop, another session.
    assert sorted(int(told(trace)[0]) for trace in asyncio.run(run())) == [1, 2, 3, 4, 5, 6]


def test_headers_are_sent(url: str) -> None:
    environment = Desk(tools(url=url, headers={"X-Key": "sesame"}))
    trace = asyncio.run(play(environment, {"header": {"name": "x-key"}}, "."))
    assert told(trace) == ["sesame"]


def test_a_call_that_takes_too_long_is_a_failure(url: str) -> None:
    trace = asyncio.run(play(Desk(tools(url=url, timeout=0.3)), {"sleep": {"seconds": 600.0}}))
    assert trace.error is not None
    assert "did not answer a call of 'sleep' within 0.3 s" in trace.error.message
    assert trace.reward is None


def test_the_environments_own_limit_on_a_tool_holds_as_well(url: str) -> None:
    environment = Desk(tools(url=url))
    environment.tool_timeout = 0.3
    trace = asyncio.run(play(environment, {"sleep": {"seconds": 600.0}}))
    assert trace.error is not None
    assert trace.error.message == "tool 'sleep' took longer than its 0.3 s"


@pytest.mark.slow
def test_a_server_that_goes_away_is_a_failure_and_no_hang() -> None:
    with served() as (address, server, said):
        environment = Desk(tools(url=f"{address}/mcp"))
        # mcp 1 does not notice that an answer's stream has ended: the deadline does.
        brief = Desk(tools(url=f"{address}/mcp", timeout=2.0))

        async def run() -> tuple[vf.Trace, vf.Trace]:
            await check(environment)
            asleep = asyncio.create_task(play(brief, {"sleep": {"seconds": 600.0}}))
            await play(environment, {"count": {}}, ".")
            await until(lambda: "sleeping now\n" in said)
            server.kill()
            return await asleep, await play(environment, {"count": {}}, ".")

        for trace in asyncio.run(run()):
            assert trace.error is not None
            assert trace.error.boundary == "tool"
            assert trace.reward is None
        with pytest.raises(vf.ConfigError, match=f"the MCP server at {address}/mcp has ended"):
            asyncio.run(check(environment))


def test_an_address_that_is_no_mcp_server(url: str) -> None:
    with pytest.raises(vf.ConfigError, match=r"404|terminated|Not Found"):
        asyncio.run(tools(url=url.replace("/mcp", "/elsewhere")).check())


@pytest.mark.slow
@pytest.mark.gate
def test_the_older_transport() -> None:
    with served("sse") as (address, _, _):
        environment = Desk(tools(url=f"{address}/sse", transport="sse"))
        script: list[Line] = [{"count": {}}, {"count": {}, "refuse": {"reason": "no room"}}, "."]
        said = told(asyncio.run(play(environment, *script)))
    assert said[:2] == ["1", "2"]
    assert "no room" in said[2]
