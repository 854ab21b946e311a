"""Two processes that call each other over one connection, on one machine or two."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Handler = Callable[..., Awaitable[Any]]


class Peer:
    """One end of a connection.

    Arguments and results are pickled: both ends run the same program, and prove to each other that
    they know the connection's key before anything is unpickled.

    Args:
        reader: From the other end.
        writer: To it.
        handlers: What the other end may call, by name.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handlers: Mapping[str, Handler],
    ) -> None:
        raise NotImplementedError

    async def call(self, name: str, *args: Any) -> Any:
        """Call a function of the other end and return its result.

        A call that is cancelled here is cancelled there, and has ended there when this raises.

        Raises:
            WorkerLost: The connection ended first.
            VfError: The function raised this error, which keeps its type.
            RemoteError: It raised anything else; holds the traceback.
            asyncio.CancelledError: The call was cancelled.
        """
        raise NotImplementedError

    def tell(self, name: str, *args: Any) -> None:
        """Call a function of the other end without waiting for its result."""
        raise NotImplementedError

    async def serve(self) -> None:
        """Answer the other end's calls until the connection ends; calls under way then end."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the connection. Safe to call twice."""
        raise NotImplementedError
