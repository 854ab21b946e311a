"""Tools of a server that is started by a command, over its standard streams."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

import vf
from tests.tools.mcp.servers import (
    COUNT,
    HONEST,
    PLENTY,
    TASK,
    Desk,
    check,
    is_gone,
    odd,
    play,
    running,
    told,
    tools,
)
from tests.waiting import until
from vf.inference.models.scripted_model import Line


def test_an_episode_with_a_server_of_the_official_package() -> None:
    secret = "sesame-17"
    environment = Desk(tools(HONEST, env={"VF_TEST_KEY": secret}, max_output=400))
    script: list[Line] = [
        {"add": {"a": 1, "b": 2}, "count": {}, "shout": {"text": "straße ☃ 東京"}},
        {"count": {}, "picture": {}, "refuse": {"reason": "no room"}},
        {"add": {"a": "1", "b": 2}, "environment": {"name": "VF_TEST_KEY"}},
        {"shout": {"text": "x", "times": 100_000}, "child": {}, "pid": {}},
        "Done.",
    ]

    async def run() -> vf.Trace:
        await check(environment)
        return await play(environment, *script)

    trace = asyncio.run(run())
    said = told(trace)
    assert said[:3] == ["3", "1", "STRASSE ☃ 東京"]
    assert said[3:5] == ["2", "[image of type image/png, not shown]"]
    assert said[5].startswith("Error: ")
    assert "no room" in said[5]
    assert said[6] == "Error: a: '1' is not of type 'integer'"
    assert said[7] == secret
    assert "99600 characters left out" in said[8]
    assert len(said[8]) < 500
    kinds = [event.kind for event in trace.tool_events]
    assert kinds == ["ok"] * 5 + ["rejected", "invalid_arguments"] + ["ok"] * 4
    assert trace.reward == 0.0
    assert trace.timing["mcp"] > 0
    assert is_gone(int(said[9])), "a child of the server outlived it"
    assert is_gone(int(said[10])), "the server outlived its episode"
    assert secret not in repr(environment.tools[0].server)  # type: ignore[union-attr]
    add = next(
        t for t in environment.episode(0).toolbox.schemas() if t["function"]["name"] == "add"
    )
    assert add["function"]["description"].startswith("Add two integers.")
    assert add["function"]["parameters"] == {
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "integer"},
            "sign": {"type": "string", "enum": ["+", "-"], "default": "+"},
        },
        "type": "object",
        "required": ["a", "b"],
    }


@pytest.mark.slow
@pytest.mark.gate
def test_a_server_that_dies_is_a_failure_and_its_last_lines_are_reported() -> None:
    trace = asyncio.run(play(Desk(tools(HONEST, include=["die"])), {"die": {}}))
    assert trace.error is not None
    assert trace.error.boundary == "tool"
    assert trace.reward is None
    assert "something terrible has happened" in trace.error.message
    assert trace.tool_events[0].kind == "error"


def test_the_command_gets_no_variables_but_those_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VF_TEST_OWN", "mine")
    ask = "import os, sys; sys.exit('it is ' + os.environ.get('VF_TEST_OWN', 'not set'))"
    command = [HONEST[0], "-c", ask]
    with pytest.raises(vf.ConfigError, match="it is not set"):
        asyncio.run(tools(command).check())
    with pytest.raises(vf.ConfigError, match="it is given"):
        asyncio.run(tools(command, env={"VF_TEST_OWN": "given"}).check())


def test_episodes_at_the_same_time_have_servers_of_their_own() -> None:
    environment = Desk(tools(odd()))

    async def run() -> list[vf.Trace]:
        await check(environment)
        script: list[Line] = [{"count": {}}, {"count": {}}, "Done."]
        return await asyncio.gather(*(play(environment, *script) for _ in range(8)))

    for trace in asyncio.run(run()):
        assert told(trace) == ["1", "2"]


def test_a_server_of_each_tasks_own_is_made_in_reset_and_holds_up_no_other_episode(
    tmp_path: Path,
) -> None:
    names = ("red", "blue")
    together = (  # a server that starts only once the other episode's does
        "import os, sys, time\n"
        "folder, name, *command = sys.argv[1:]\n"
        "open(os.path.join(folder, name), 'w').close()\n"
        "while len(os.listdir(folder)) < 2: time.sleep(0.01)\n"
        "os.execv(command[0], command)\n"
    )

    class Desks(vf.Environment):
        tool_timeout = PLENTY

        def reset(self, task: vf.Task) -> str:
            server = odd(tools=[COUNT | {"name": task.id}])
            self.tools = [tools([HONEST[0], "-c", together, str(tmp_path), task.id, *server])]
            return "Begin."

    async def run() -> list[vf.Trace]:
        return await asyncio.gather(
            *(
                vf.rollout(Desks(), vf.Task(name, "Begin."), vf.ScriptedModel([{name: {}}, "."]))
                for name in names
            )
        )

    for trace, name in zip(asyncio.run(run()), names, strict=True):
        assert [tool["function"]["name"] for tool in trace.tools] == [name]
        assert told(trace) == ["1"]


def test_a_shared_server_is_started_once_and_again_when_it_is_lost() -> None:
    calls = {"name": "count", "inputSchema": {"type": "object"}}
    environment = Desk(tools(odd(tools=[calls]), session="shared"))

    async def run() -> list[list[str]]:
        first = await asyncio.gather(*(play(environment, {"count": {}}, ".") for _ in range(4)))
        shared = environment.tools[0]._shared.get()  # type: ignore[union-attr]
        assert shared._session is not None
        shared._session._process.kill()
        lost = await play(environment, {"count": {}}, ".")
        assert lost.error is not None
        again = await play(environment, {"count": {}}, ".")
        return [[text for trace in first for text in told(trace)], told(again)]

    first, again = asyncio.run(run())
    assert sorted(first) == ["1", "2", "3", "4"]
    assert again == ["1"]


def test_nothing_of_a_server_is_left_however_an_episode_ends() -> None:
    mark = f"vf-mark-{os.getpid()}"
    command = odd(child=True, mark=mark)

    async def run() -> None:
        environment = Desk(tools(command))
        assert told(await play(environment, {"count": {}}, "Done.")) == ["1"]
        turns: list[Line] = []

        def again(messages: list[vf.Message]) -> Line:
            turns.append({"count": {}})
            return turns[-1]

        endless = asyncio.create_task(vf.rollout(environment, TASK, vf.ScriptedModel(again)))
        await until(lambda: len(turns) > 1)
        endless.cancel()
        await asyncio.wait({endless})
        hanging = Desk(tools(odd(child=True, mark=mark, hang="tools/call"), timeout=0.2))
        trace = await play(hanging, {"count": {}})
        assert trace.error is not None
        assert "did not answer a call of 'count' within 0.2 s" in trace.error.message
        assert "at your service" in trace.error.message
        shared = Desk(tools(command, session="shared"))
        assert told(await play(shared, {"count": {}}, "Done.")) == ["1"]

    asyncio.run(run())
    assert all(is_gone(pid) for pid in running(mark))


def test_json_is_passed_as_it_is() -> None:
    names = {"self": 1, "fn": [None, {"ü": "\u2028"}], "not-a-name": -0.5}
    echo = {"name": "echo", "inputSchema": {"type": "object", "properties": {"self": {}}}}
    program = (
        "import sys, odd_server\n"
        "base = odd_server.answer\n"
        "def answer(method, params, told):\n"
        "    if method != 'tools/call': return base(method, params, told)\n"
        "    text = odd_server.json.dumps(params['arguments'])\n"
        "    return {'content': [{'type': 'text', 'text': text}]}\n"
        "odd_server.answer = answer\n"
        "odd_server.main()\n"
    )
    command = [HONEST[0], "-c", program, json.dumps({"tools": [echo]})]
    path = os.path.dirname(HONEST[1])
    environment = Desk(tools(command, env={"PYTHONPATH": path}))
    trace = asyncio.run(play(environment, {"echo": names}, "."))
    assert json.loads(told(trace)[0]) == names
