"""What an agent's endpoint costs per call, without a model: `python benchmarks/endpoint.py`.

An instant fake engine, in a process of its own, answers every request with the tokens of a tool
call. Agents, in another process, hold 64 conversations at once: a system prompt, six tools, and a
result of 600 characters for every call, so that the last body of a rollout has 30 turns. What is
measured is the CPU time of the process between them:

- direct: no agents; the process itself asks a `TokenModel` the same questions. What the endpoint
  adds is the difference to this.
- floor: an aiohttp server that passes each body on to the engine and the answer back.
- ours: `open_session` for every rollout. Half of the agents want their answers streamed.
- verifiers: its interception server with its token client. That does not stream, so no agent does.

The last line is JSON: `ratio` is 1 ms over what our endpoint adds to one call, streaming included;
`peer_ratio` is what verifiers takes over what we take. All from medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import TYPE_CHECKING, Any

from fake_openai import MODEL, serve
from harness import in_process, parse, print_result, receive, spawn
from peers import present, versions_of
from rollout_overhead import cpu_seconds

if TYPE_CHECKING:
    from vf.inference.models.token_model import TokenModel

TARGET_MS = 1.0  # of CPU that the endpoint may add to one call
MAX_SEQ_LEN = 100_000
CALCULATE = {
    "type": "object",
    "properties": {
        "op": {"type": "string", "enum": ["+", "-", "*"], "description": "What to do."},
        "a": {"type": "integer", "description": "The first number."},
        "b": {"type": "integer", "description": "The second number."},
    },
    "required": ["op", "a", "b"],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Use {name} where it helps with the task at hand. " * 3,
            "parameters": CALCULATE,
        },
    }
    for name in ("calculate", "search", "read_file", "write_file", "run_tests", "submit")
]
SYSTEM = "You are a careful agent. Think about what is asked, use the tools, and check. " * 25
RESULT = "The result of call {} is 42, and here is what the tool printed while it worked. "

# Where an agent's requests go: URL of the chat completions, key and model.
Address = tuple[str, str, str]
# Opens so many rollouts; what it yields says how to play them.
Play = Callable[[], Awaitable[None]]
Contender = Callable[[str, "Agents", int, int], AbstractAsyncContextManager[Play]]


def opening() -> list[dict[str, Any]]:
    """The first messages of a rollout."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Calculate what the tools say, step by step. " * 10},
    ]


def result(agent: int, turn: int) -> str:
    """What a tool says."""
    return RESULT.format(f"{agent}.{turn}") * 8


def agents(pipe: Connection) -> None:
    """Play the rollouts whose addresses come through the pipe, again and again."""
    import aiohttp

    async def play(addresses: Sequence[Address], turns: int, streaming: bool) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(
                *(
                    one(session, address, place, turns, streaming and place % 2 == 1)
                    for place, address in enumerate(addresses)
                )
            )

    async def one(
        session: aiohttp.ClientSession, address: Address, agent: int, turns: int, streaming: bool
    ) -> None:
        url, key, model = address
        messages = opening()
        body: dict[str, Any] = {"model": model, "messages": messages, "tools": TOOLS}
        if streaming:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        for turn in range(turns):
            headers = {"Authorization": f"Bearer {key}"}
            async with session.post(url, json=body, headers=headers) as response:
                raw = await response.read()
            assert response.status == 200, raw
            message = streamed(raw) if streaming else json.loads(raw)["choices"][0]["message"]
            messages.append({name: value for name, value in message.items() if value is not None})
            for call in message["tool_calls"]:
                said = {"content": result(agent, turn)}
                messages.append({"role": "tool", "tool_call_id": call["id"], **said})

    pipe.send("ready")
    while (work := pipe.recv()) is not None:
        asyncio.run(play(*work))
        pipe.send("done")


def streamed(raw: bytes) -> dict[str, Any]:
    """Put the chunks of a streamed answer together."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    events = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    assert events.pop() == b"[DONE]"
    for choice in (choice for event in events for choice in json.loads(event)["choices"]):
        message["content"] = choice["delta"].get("content") or message["content"]
        for call in choice["delta"].get("tool_calls", ()):
            message["tool_calls"].append({k: v for k, v in call.items() if k != "index"})
    return message


class Agents:
    """The process in which the agents run."""

    def __init__(self) -> None:
        self.mine, theirs = spawn.Pipe()
        self.process = spawn.Process(target=agents, args=(theirs,), daemon=True)
        self.process.start()
        assert self.mine.recv() == "ready"

    async def play(self, addresses: Sequence[Address], turns: int, streaming: bool) -> None:
        self.mine.send((addresses, turns, streaming))
        assert await asyncio.to_thread(self.mine.recv) == "done"

    def stop(self) -> None:
        self.mine.send(None)
        self.process.join()


@asynccontextmanager
async def token_model(engine: str) -> AsyncIterator[TokenModel]:
    from vf.inference.model_files import resolve_model
    from vf.inference.models.token_model import TokenModel
    from vf.inference.rendering.renderer import Renderer
    from vf.inference.token_client import TokenClient

    renderer = Renderer.from_pretrained(resolve_model("tiny"))
    client = TokenClient.to(engine, MODEL)
    yield TokenModel(client, renderer, max_seq_len=MAX_SEQ_LEN)
    await client.close()


@asynccontextmanager
async def direct(engine: str, agents: Agents, count: int, turns: int) -> AsyncIterator[Play]:
    """The same conversations, without agents and without an endpoint."""
    from vf.inference.model import Conversation, Sampling
    from vf.traces.messages import Message

    async def one(model: TokenModel, agent: int) -> None:
        messages = [Message.from_openai(raw) for raw in opening()]
        conversation = Conversation(messages, TOOLS)
        for turn in range(turns):
            reply = await model.respond(conversation, Sampling(seed=turn))
            messages.append(reply.message)
            conversation.turn += 1
            messages += [
                Message("tool", result(agent, turn), tool_call_id=call.id)
                for call in reply.message.tool_calls
            ]
        assert len(conversation.branches) == 1

    async with token_model(engine) as model:

        async def play() -> None:
            await asyncio.gather(*(one(model, agent) for agent in range(count)))

        yield play


@asynccontextmanager
async def floor(engine: str, agents: Agents, count: int, turns: int) -> AsyncIterator[Play]:
    """An aiohttp server that hands everything on."""
    import aiohttp
    from aiohttp import web

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def handle(request: web.Request) -> web.Response:
            body = await request.read()
            async with session.post(f"{engine}/chat/completions", data=body) as response:
                return web.Response(body=await response.read(), content_type="application/json")

        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/chat/completions"
        yield lambda: agents.play([(url, "none", MODEL)] * count, turns, streaming=False)
        await runner.cleanup()


@asynccontextmanager
async def ours(engine: str, agents: Agents, count: int, turns: int) -> AsyncIterator[Play]:
    """A session for every rollout."""
    import vf
    from vf.inference.endpoint.session import open_session
    from vf.inference.model import Sampling
    from vf.traces.trace import Trace

    traces = [Trace("agent", vf.Task(str(place), ""), seed=place) for place in range(count)]

    async with token_model(engine) as model:

        async def play() -> None:
            async with AsyncExitStack() as stack:
                opened = (
                    open_session(
                        model, trace=trace, sampling=Sampling(), seed=trace.seed, max_turns=turns
                    )
                    for trace in traces
                )
                sessions = [await stack.enter_async_context(each) for each in opened]
                found = [session.endpoint for session in sessions]
                addresses = [(f"{at.url}/chat/completions", at.key, at.model) for at in found]
                await agents.play(addresses, turns, streaming=True)
            for trace in traces:
                assert (len(trace.branches), len(trace.turns)) == (1, turns)

        yield play


@asynccontextmanager
async def verifiers(engine: str, agents: Agents, count: int, turns: int) -> AsyncIterator[Play]:
    """The interception server of verifiers, with its client for training."""
    from renderers import Qwen3RendererConfig
    from verifiers.v1.clients.client import ModelContext
    from verifiers.v1.configs.client import TrainClientConfig
    from verifiers.v1.interception.server import InterceptionServer
    from verifiers.v1.session import RolloutSession
    from verifiers.v1.trace import WireTrace

    from vf.inference.model_files import resolve_model

    config = TrainClientConfig(
        base_url=engine,
        renderer=Qwen3RendererConfig(),
        renderer_model_name=resolve_model("tiny"),
    )
    record = {"task": {"type": "Task", "data": {"prompt": ""}}, "agent": {"config": {}}}
    sessions = [
        RolloutSession(
            ctx=ModelContext(model=MODEL, client=config),
            trace=WireTrace.model_validate(record),
        )
        for _ in range(count)
    ]

    async with InterceptionServer() as server, AsyncExitStack() as stack:

        async def play() -> None:
            slots = [await stack.enter_async_context(server.acquire(each)) for each in sessions]
            addresses = [(f"{url}/v1/chat/completions", key, MODEL) for url, key, _ in slots]
            await agents.play(addresses, turns, streaming=False)
            for session in sessions:
                assert session.error is None
                assert session.trace.num_turns == turns

        yield play


CONTENDERS: dict[str, Contender] = {
    "direct": direct,
    "floor": floor,
    "ours": ours,
    "verifiers": verifiers,
}


def measure(pipe: Connection, name: str, engine: str, count: int, turns: int) -> None:
    """Run a contender in this process; send what its calls took."""

    from vf.runtime.garbage import fewer_collections

    async def run() -> None:
        crowd = Agents()
        async with CONTENDERS[name](engine, crowd, 4, 4) as play:
            await play()
        async with CONTENDERS[name](engine, crowd, count, turns) as play:
            before, started = cpu_seconds(), time.perf_counter()
            with fewer_collections():  # as `vf.evaluate` does
                await play()
            seconds, cpu = time.perf_counter() - started, cpu_seconds() - before
        crowd.stop()
        calls = count * turns
        pipe.send({"cpu_ms_per_call": 1000 * cpu / calls, "calls_per_s": calls / seconds})

    asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    args = parse(parser, agents=4, turns=3, rounds=1)
    needs = {"verifiers": "verifiers"}
    names = present(list(CONTENDERS), needs, "'{}>=0.3.1'")
    mine, theirs = spawn.Pipe()
    counts = spawn.Value("q", 0), spawn.Value("q", 0)
    server = spawn.Process(target=serve, args=(theirs, *counts), daemon=True)
    server.start()
    engine = f"http://127.0.0.1:{receive(mine, server)}/v1"
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name in names:
            found = in_process(measure, name, engine, args.agents, args.turns)
            runs[name].append(found)
            print(
                f"{name:>9}  {found['cpu_ms_per_call']:6.3f} ms of CPU per call  "
                f"{found['calls_per_s']:7.1f} calls/s",
                flush=True,
            )
    server.terminate()
    results = {
        name: {key: round(median(run[key] for run in found), 3) for key in found[0]}
        for name, found in runs.items()
    }
    print_result(
        args,
        "endpoint",
        **figures(results),
        options=vars(args),
        results=results,
        versions=versions_of("aiohttp", "pydantic_core", "renderers", "verifiers"),
    )


def figures(results: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return the ratios of the last line."""
    cpu = {name: found["cpu_ms_per_call"] for name, found in results.items()}
    added = cpu["ours"] - cpu["direct"]
    peer = cpu.get("verifiers")
    return {
        "ratio": round(TARGET_MS / added, 2),
        "target": 1.0,
        "added_ms": round(added, 3),
        "target_ms": TARGET_MS,
        "floor_ratio": round(cpu["floor"] / cpu["ours"], 3),
        "peer_ratio": None if peer is None else round(peer / cpu["ours"], 2),
    }


if __name__ == "__main__":
    main()
