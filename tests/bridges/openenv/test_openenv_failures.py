"""OpenEnv servers that fail, freeze, die, lie or are full: never a reward, never a hang."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.bridges.openenv.openenv_play import all_closed, bisect, run, servers
from tests.waiting import wait_until
from vf.bridges.openenv.environment import OpenEnvEnvironment
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message, ToolCall


def failed(trace: vf.Trace) -> str:
    assert trace.reward is None
    assert trace.error is not None
    assert trace.error.boundary in ("environment", "tool")
    return trace.error.message


def test_a_server_that_raises_or_never_answers_earns_no_reward(guess: str) -> None:
    environment = OpenEnvEnvironment(guess, message_timeout=1)
    assert "the disk is full" in failed(run(environment, ["9", "raise"]))
    assert all_closed()
    assert "step: no answer within 1 s" in failed(run(environment, ["9", "hang"]))
    servers.OPEN.clear()  # the server is still at it


@pytest.mark.slow
def test_a_call_that_waits_for_those_before_it_is_not_late(guess: str) -> None:
    calls = [ToolCall(f"c{i}", "step", '{"message": "slow"}') for i in range(12)]
    environment = OpenEnvEnvironment(guess, as_tool=True, max_turns=1)
    environment.tool_timeout = 5.0
    trace = run(environment, [Message("assistant", tool_calls=calls)])
    assert trace.error is None
    assert trace.info["openenv"]["steps"] == 12


def test_an_episode_that_ends_without_a_reward_has_none(guess: str) -> None:
    trace = run(OpenEnvEnvironment(guess), ["end"])
    assert trace.reward is None
    assert trace.error is not None
    assert trace.error.boundary == "rubric"
    assert "without any reward" in trace.error.message


@pytest.mark.slow
def test_a_server_that_is_full_is_waited_for(guess: str) -> None:
    with servers.served(servers.guess_app(max_concurrent_envs=1)) as url:
        environment = OpenEnvEnvironment(url, num_train=4)

        async def together() -> list[float | None]:
            model = vf.ScriptedModel(bisect)
            runs = [vf.rollout(environment, task, model) for task in environment.tasks("train")]
            return [trace.reward for trace in await asyncio.gather(*runs)]

        assert asyncio.run(together()) == [1.0] * 4

        impatient = OpenEnvEnvironment(url, message_timeout=1)

        async def blocked() -> vf.Trace:
            from openenv.core import GenericEnvClient

            async with GenericEnvClient(base_url=url) as client:
                await client.reset()
                task = next(iter(impatient.tasks("train")))
                return await vf.rollout(impatient, task, vf.ScriptedModel(bisect))

        assert "the server is full" in failed(asyncio.run(blocked()))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture
def doomed() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A server in a process of its own, with its port."""
    port = free_port()
    command = [sys.executable, "-m", "tests.bridges.openenv.openenv_servers", str(port)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3])

    def listening() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return False

    wait_until(listening, 200)
    yield port, process
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_server_that_freezes_dies_or_restarts_earns_no_reward(
    doomed: tuple[int, subprocess.Popen[bytes]],
) -> None:
    port, process = doomed
    environment = OpenEnvEnvironment(f"http://127.0.0.1:{port}", message_timeout=1)

    def freeze(messages: list[Message]) -> str:
        if len(messages) > 1:
            process.send_signal(signal.SIGSTOP)
        return "9"

    assert "no answer within 1 s" in failed(run(environment, freeze))
    assert "no answer within 1 s" in failed(run(environment, freeze))  # nobody to connect to
    process.send_signal(signal.SIGCONT)
    patient = OpenEnvEnvironment(f"http://127.0.0.1:{port}")
    with contextlib.ExitStack() as stack:

        def kill(messages: list[Message]) -> str:
            if len(messages) > 1:
                process.kill()
                process.wait()
                # A client that connected again would be answered.
                stack.enter_context(servers.served(servers.guess_app(), port))
            return "9"

        assert "step: " in failed(run(patient, kill))
        assert run(patient, bisect).reward == 1.0


class Liar:
    """Answers as an OpenEnv server does, until it is asked to do something."""

    def __init__(self, answer: str, schema: dict[str, Any] | None = None) -> None:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route, WebSocketRoute
        from starlette.websockets import WebSocket

        async def describe(request: Request) -> JSONResponse:
            return JSONResponse({"action": schema or servers.Say.model_json_schema()})

        async def metadata(request: Request) -> JSONResponse:
            return JSONResponse({"name": "liar"})

        async def talk(websocket: WebSocket) -> None:
            await websocket.accept()
            while (await websocket.receive())["type"] != "websocket.disconnect":
                await websocket.send_text(answer)

        self.app = Starlette(
            routes=[
                Route("/schema", describe),
                Route("/metadata", metadata),
                WebSocketRoute("/ws", talk),
            ]
        )


@pytest.mark.parametrize(
    "answer",
    [
        "<html>",
        "[]",
        "{}",
        '{"type": "observation", "data": {}}',
        '{"type": "observation", "data": {"observation": "text", "done": false}}',
        '{"type": "observation", "data": {"observation": {"a": 1}, "done": "no"}}',
        '{"type": "observation", "data": {"observation": {"a": 1}, "reward": "much"}}',
        '{"type": "observation", "data": {"observation": {"a": 1}, "reward": NaN}}',
        '{"type": "error", "data": {"message": "no", "code": "FACTORY_ERROR"}}',
    ],
)
def test_a_server_that_talks_nonsense_earns_no_reward(answer: str) -> None:
    with servers.served(Liar(answer).app) as url:
        assert "openenv: " in failed(run(OpenEnvEnvironment(url, message_timeout=10), ["9"]))


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"properties": {"a": {"type": "nonsense"}, "b": {}}}, "its schema is not a JSON schema"),
        ({"properties": 3}, "no schema of actions"),
        ({"properties": {}}, "it did not return a list of tools"),
    ],
)
def test_a_server_whose_actions_make_no_sense(schema: dict[str, Any], told: str) -> None:
    answer = '{"type": "observation", "data": {"observation": {"tools": 3}}}'
    with servers.served(Liar(answer, schema).app) as url, pytest.raises(ConfigError) as caught:
        OpenEnvEnvironment(url, message_timeout=10)
    assert told in str(caught.value)
