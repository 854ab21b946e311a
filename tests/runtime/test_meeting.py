"""Only the process that was invited connects, once, and only to the one that invited it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from tests.waiting import until
from vf.runtime.errors import ConfigError, WorkerLost
from vf.runtime.meeting import INVITATION, STRANGERS, Invitation, connect, listen
from vf.runtime.peers import Peer

START_SECONDS = 60.0


async def come(invitation: Invitation) -> Peer:
    """Connect as a process does that has this invitation."""
    os.environ.update(invitation.environ)
    return await connect({}, "the run")


def with_other_key(invitation: Invitation) -> str:
    words = invitation.environ[INVITATION].split(" ")
    return " ".join([*words[:3], "00" * 32])


def with_other_number(invitation: Invitation) -> str:
    words = invitation.environ[INVITATION].split(" ")
    return " ".join([*words[:2], "00" * 16, words[3]])


@pytest.mark.parametrize("change", [with_other_key, with_other_number])
async def test_a_stranger_is_refused_and_the_invited_process_still_comes(
    change: Callable[[Invitation], str], caplog: pytest.LogCaptureFixture
) -> None:
    async with listen() as listener:
        invitation = listener.invite("worker 1")
        os.environ[INVITATION] = change(invitation)
        with pytest.raises(WorkerLost, match=r"the run at 127.0.0.1, port \d+, cannot be used"):
            await connect({}, "the run")
        ends = await asyncio.gather(invitation.accepted({}, START_SECONDS), come(invitation))
        for end in ends:
            await end.close()


async def test_strangers_who_stay_silent_take_no_place_of_the_invited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listen() as listener:
        invitation = listener.invite("worker 1")
        strangers = [
            await asyncio.open_connection(listener.host, listener.port)
            for _ in range(3 * STRANGERS)
        ]
        for reader, _ in strangers[: 2 * STRANGERS]:  # the oldest are closed at once
            assert await reader.read() == b""
        ends = await asyncio.gather(invitation.accepted({}, START_SECONDS), come(invitation))
        for end in ends:
            await end.close()
        for _, writer in strangers:
            writer.close()


async def test_what_a_stranger_sends_is_not_read_as_a_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listen() as listener:
        reader, writer = await asyncio.open_connection(listener.host, listener.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        await until(lambda: "refused a connection from" in caplog.text)


async def test_an_invitation_is_good_for_one_connection() -> None:
    async with listen() as listener:
        invitation = listener.invite("worker 1")
        ends = await asyncio.gather(invitation.accepted({}, START_SECONDS), come(invitation))
        with pytest.raises(WorkerLost, match="it expects this process no longer"):
            await come(invitation)
        for end in ends:
            await end.close()


async def test_a_process_that_comes_too_late_is_refused() -> None:
    async with listen() as listener:
        invitation = listener.invite("worker 1")
        with pytest.raises(WorkerLost, match=r"^worker 1 did not connect within 0.01 s$"):
            await invitation.accepted({}, 0.01)
        with pytest.raises(WorkerLost, match="it expects this process no longer"):
            await come(invitation)


async def test_a_process_does_not_trust_who_does_not_know_the_key() -> None:
    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(1000))

    server = await asyncio.start_server(pretend, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    os.environ[INVITATION] = f"127.0.0.1 {port} {'11' * 16} {'22' * 32}"
    with pytest.raises(WorkerLost, match="it does not know the key"):
        await connect({}, "the run")
    server.close()


async def test_a_connection_outlives_the_listener() -> None:
    async def answer() -> int:
        return 1

    async with listen() as listener:
        invitation = listener.invite("worker 1")
        there, here = await asyncio.gather(
            invitation.accepted({"answer": answer}, START_SECONDS), come(invitation)
        )
    serving = [asyncio.create_task(end.serve()) for end in (here, there)]
    assert await here.call("answer") == 1
    await here.close()
    await asyncio.gather(*serving)


async def test_a_listener_that_is_gone_is_named() -> None:
    async with listen() as listener:
        invitation = listener.invite("worker 1")
    with pytest.raises(WorkerLost, match=r"the run at 127.0.0.1, port \d+, cannot be reached"):
        await come(invitation)


def test_an_address_of_another_machine_is_refused() -> None:
    async def main() -> None:
        async with listen("192.0.2.1"):  # RFC 5737: for documentation, no machine's
            pass

    with pytest.raises(ConfigError, match=r"cannot listen at '192.0.2.1'"):
        asyncio.run(main())


def test_the_error_names_the_command_that_starts_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(INVITATION, raising=False)
    with pytest.raises(ConfigError, match="VF_INVITATION is not set"):
        asyncio.run(connect({}))
