"""The server of an event loop's endpoints: there while it is needed, and nothing left of it."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from tests.inference.endpoint.rollout_talk import Texts, client, new_trace, say, token_model
from vf.inference.endpoint.session import open_session
from vf.inference.model import Sampling

USER = {"role": "user", "content": "Tea?"}


def test_a_server_is_there_as_long_as_a_session_is() -> None:
    async def run() -> None:
        async def opens() -> str:
            async with open_session(
                token_model(Texts(["Yes."])),
                trace=new_trace(),
                sampling=Sampling(8),
                seed=0,
                max_turns=1,
            ) as session:
                assert session.socket.is_socket()
                assert session.socket.parent.stat().st_mode & 0o777 == 0o700
                async with client(session) as agent:
                    await say(agent, [USER])
                return session.endpoint.url

        first = await asyncio.gather(*(opens() for _ in range(3)))
        assert len({*first}) == 3
        assert len({url.split("/r/")[0] for url in first}) == 1
        assert len(asyncio.all_tasks()) == 1
        await opens()

    asyncio.run(run())


def test_what_killed_processes_left_of_their_sockets_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = {name: tmp_path / f"vf-endpoint-{name}" for name in ("killed", "living", "young")}

    async def run() -> None:
        async with open_session(
            token_model(Texts([])), trace=new_trace(), sampling=Sampling(8), seed=0, max_turns=1
        ) as session:
            left = {*map(tmp_path.joinpath, os.listdir(tmp_path))} - {session.socket.parent}
            assert left == {folders["living"], folders["young"]}

    with socket.socket(socket.AF_UNIX) as killed, socket.socket(socket.AF_UNIX) as living:
        for name, server in (("killed", killed), ("living", living)):
            folders[name].mkdir()
            server.bind(str(folders[name] / "socket"))
            os.utime(folders[name], (0, 0))
        folders["young"].mkdir()
        living.listen()
        killed.close()
        asyncio.run(run())
