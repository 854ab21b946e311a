"""How two processes of one run come to be peers: one listens and invites, the other connects.

Each invitation has a number and a random key, is used once, and travels in the environment of the
process that is to connect. Both ends prove that they know the key, by an HMAC over what each drew
at random, before anything is unpickled. That keeps out strangers who connect; what is sent
afterwards is not encrypted. Run on a network that you trust, as for NCCL and Ray.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from vf.runtime.errors import ConfigError, WorkerLost
from vf.runtime.peers import SILENCE_SECONDS, Handler, Peer

INVITATION = "VF_INVITATION"  # the variable: host, port, number and key
CONNECT_SECONDS = 30.0  # for a connection to be made
PROOF_SECONDS = 10.0  # for both ends to prove that they know the key
STRANGERS = 64  # connections at once that have not proved it yet; a proof takes milliseconds
_HELLO = b"vf-rl peers 1\n"
_NUMBER, _RANDOM, _DIGEST = 16, 32, 32  # bytes
_WELCOME = b"\x01"

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Invitation:
    """A place for one process that is to connect.

    Attributes:
        name: What the process is, for the errors.
        environ: The environment variable that it needs to.
    """

    name: str
    environ: Mapping[str, str]
    _key: bytes = field(repr=False)
    _streams: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]

    async def accepted(
        self,
        handlers: Mapping[str, Handler],
        timeout: float,
        silence: float = SILENCE_SECONDS,
    ) -> Peer:
        """Wait until the process has connected. If this raises, it cannot any more.

        Args:
            handlers: The functions that it may call, by name.
            timeout: Seconds after which it is given up.
            silence: See :class:`Peer`.

        Raises:
            WorkerLost: If it did not connect in time.
        """
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await self._streams
        except BaseException as error:
            if not self._streams.cancel() and not self._streams.cancelled():
                self._streams.result()[1].close()  # it connected at the last moment
            if isinstance(error, TimeoutError):
                raise WorkerLost(f"{self.name} did not connect within {timeout:g} s") from None
            raise
        return Peer(reader, writer, handlers, self.name, silence)

    def withdraw(self) -> None:
        """Let the process no longer connect: it is not going to be started."""
        self._streams.cancel()


class Listener:
    """Where the processes that were invited connect; made by :func:`listen`.

    Attributes:
        host: Its address, as those processes reach it.
        port: Its port.
    """

    def __init__(self, host: str) -> None:
        self.host, self.port = host, 0
        self._invited: dict[bytes, Invitation] = {}
        self._strangers: dict[asyncio.Task[None], None] = {}  # the oldest first

    def invite(self, name: str) -> Invitation:
        """Make a place for a process.

        Args:
            name: The process's name, such as ``rollout worker 3``.
        """
        number, key = secrets.token_bytes(_NUMBER), secrets.token_bytes(_RANDOM)
        environ = {INVITATION: f"{self.host} {self.port} {number.hex()} {key.hex()}"}
        streams = asyncio.get_running_loop().create_future()
        self._invited[number] = invitation = Invitation(name, environ, key, streams)
        streams.add_done_callback(lambda _: self._invited.pop(number, None))
        return invitation

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._strangers[task] = None
        if len(self._strangers) > STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        try:
            async with asyncio.timeout(PROOF_SECONDS):
                invitation = await self._check(reader, writer)
            # Meanwhile it may have been given up, or have let in another process.
            if invitation is not None and not invitation._streams.done():
                writer.write(_WELCOME)
                invitation._streams.set_result((reader, writer))
                return
            _log.warning("refused a connection from %s", writer.get_extra_info("peername"))
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._strangers.pop(task, None)
        writer.close()

    async def _check(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Invitation | None:
        """Return the invitation of which the other end knows the key."""
        if await reader.readexactly(len(_HELLO)) != _HELLO:
            return None
        number, theirs = await reader.readexactly(_NUMBER), await reader.readexactly(_RANDOM)
        invitation = self._invited.get(number)
        if invitation is None:
            return None
        ours = secrets.token_bytes(_RANDOM)
        writer.write(ours + _digest(invitation._key, b"listener", number, theirs, ours))
        digest = await reader.readexactly(_DIGEST)
        expected = _digest(invitation._key, b"connector", number, theirs, ours)
        return invitation if hmac.compare_digest(digest, expected) else None


@asynccontextmanager
async def listen(host: str = "127.0.0.1") -> AsyncIterator[Listener]:
    """Let invited processes connect until the block ends; connections last longer.

    Args:
        host: The address of this machine at which they reach it, such as a fleet's ``host``.

    Raises:
        ConfigError: If this machine does not have that address.
    """
    listener = Listener(host)
    try:
        server = await asyncio.start_server(listener._meet, host, 0)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host!r}: {error}") from error
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()


async def connect(
    handlers: Mapping[str, Handler],
    name: str = "the process that invited this one",
    silence: float = SILENCE_SECONDS,
) -> Peer:
    """Connect to the process that invited this one.

    The invitation is taken from the environment, so that no program started later inherits it.

    Args:
        handlers: The functions that the other end may call, by name.
        name: Its name, for the errors.
        silence: See :class:`Peer`.

    Raises:
        ConfigError: If this process was not invited.
        WorkerLost: If the other end cannot be reached, does not know the key, or no longer
            expects this process.
    """
    words = os.environ.pop(INVITATION, "").split(" ")
    if len(words) != 4:
        raise ConfigError(f"{INVITATION} is not set: a run starts this program, not a user")
    host, port = words[0], int(words[1])
    number, key = bytes.fromhex(words[2]), bytes.fromhex(words[3])
    where = f"{name} at {host}, port {port},"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:  # TimeoutError included
        raise WorkerLost(f"{where} cannot be reached: {error or 'no answer'}") from error
    try:
        async with asyncio.timeout(PROOF_SECONDS):
            ours = secrets.token_bytes(_RANDOM)
            writer.write(_HELLO + number + ours)
            theirs = await reader.readexactly(_RANDOM)
            expected = _digest(key, b"listener", number, ours, theirs)
            if not hmac.compare_digest(await reader.readexactly(_DIGEST), expected):
                raise ConnectionError("it does not know the key")
            writer.write(_digest(key, b"connector", number, ours, theirs))
            await reader.readexactly(len(_WELCOME))
    except (OSError, EOFError) as error:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        if isinstance(error, EOFError):
            why = "it expects this process no longer"
        else:
            why = str(error) or f"no answer within {PROOF_SECONDS:g} s"
        raise WorkerLost(f"{where} cannot be used: {why}") from error
    return Peer(reader, writer, handlers, name, silence)


def _digest(key: bytes, side: bytes, number: bytes, connector: bytes, listener: bytes) -> bytes:
    return hmac.digest(key, b" ".join([side, number, connector, listener]), "sha256")
