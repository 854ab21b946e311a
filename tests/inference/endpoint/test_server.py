"""The server of an event loop's endpoints: there while it is needed, and nothing left of it."""

from __future__ import annotations

import asyncio

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
