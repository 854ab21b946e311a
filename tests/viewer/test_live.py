"""The live server: who may ask it, and what it tells while files grow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.viewer.pages import append, line, make_run
from vf.runtime.errors import ConfigError
from vf.traces.learned import Learned, write_learned
from vf.viewer.live import LiveServer
from vf.viewer.watch import Watch

Check = Callable[[LiveServer, aiohttp.ClientSession], Awaitable[None]]


def served(paths: list[Path], scratch: Path, check: Check) -> None:
    """Serve these paths while the check runs."""

    async def run() -> None:
        watch = Watch(paths)
        watch.scan()
        server = LiveServer(watch, scratch)
        runner = await server.start()
        following = asyncio.create_task(server.follow())
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as session:
                await check(server, session)
        finally:
            following.cancel()
            await runner.cleanup()

    asyncio.run(run())


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for raw in answer.content:
        text = raw.decode().rstrip("\n")
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))


def test_each_page_gets_everything_and_then_what_is_new(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")

    async def check(server: LiveServer, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{server.url}events") as one:
            first = events(one)
            told = [await anext(first) for _ in range(5)]
            assert [name for name, _ in told] == ["begin", "page", "traces", "run", "whole"]
            assert told[3][1]["columns"]["step"] == [0, 1, 2, 3]
            append(run, line(4))
            async with session.get(f"{server.url}events") as two:  # it must not eat the news
                second = events(two)
                others = [await anext(second) for _ in range(5)]
                assert others[3][1]["columns"]["step"] == [0, 1, 2, 3, 4]
                name, data = await anext(first)
                assert (name, data["from"], data["columns"]["step"]) == ("run", 4, [4])
                append(run, line(5))
                for each in (first, second):
                    name, data = await anext(each)
                    assert (name, data["columns"]["step"]) == ("run", [5])

    served([run], tmp_path, check)


def test_the_page_of_traces_is_written_again_when_they_or_what_was_learned_grow(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "one")
    file = run / "traces" / "step-000001.jsonl"

    async def check(server: LiveServer, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{server.url}traces") as answer:
            assert answer.headers["X-Frame-Options"] == "SAMEORIGIN"
            assert (await answer.read()).count(b'plain" id="t') == 4
        with file.open("ab") as out:
            out.write(file.read_bytes().splitlines(keepends=True)[0])
        async with session.get(f"{server.url}traces") as answer:
            before = await answer.read()
            assert before.count(b'plain" id="t') == 5
        rollout = json.loads(file.read_bytes().splitlines()[0])["id"]
        found = Learned(rollout, 0, 1, [0, 1], [1.0], [-1.0], [0.0])
        write_learned(run / "learned" / file.name, [found])
        async with session.get(f"{server.url}traces") as answer:
            assert await answer.read() != before

    served([run], tmp_path, check)


def test_only_this_machine_is_answered_and_nothing_but_the_page(tmp_path: Path) -> None:
    async def check(server: LiveServer, session: aiohttp.ClientSession) -> None:
        assert server.url.startswith("http://127.0.0.1:")
        async with session.get(server.url) as answer:
            assert answer.headers["X-Frame-Options"] == "DENY"
            assert b"connect-src 'self'" in await answer.read()
        for path in ("", "events", "traces"):
            headers = {"Host": "evil.example:80"}
            async with session.get(server.url + path, headers=headers) as answer:
                assert answer.status == 403
        async with session.get(f"{server.url}etc/passwd") as answer:
            assert answer.status == 404
        port = int(server.url.rstrip("/").rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"--port {port}: .*in use"):
            await LiveServer(server.watch, tmp_path).start(port)

    served([make_run(tmp_path / "one")], tmp_path, check)
