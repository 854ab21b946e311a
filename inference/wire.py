"""A lean JSON client for the OpenAI wire protocol, with deadlines and retries."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import pydantic_core

from vf.runtime.errors import ModelError

RETRY_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504})


class JsonClient:
    """POSTs JSON to one server and reads JSON back.

    Connection errors, timeouts and the statuses in ``RETRY_STATUSES`` are tried again with
    exponential backoff and jitter; any other 4xx is final at once.

    Args:
        base_url: Up to and including ``/v1``.
        api_key: Sent as a bearer token if given.
        timeout: Seconds for one attempt.
        max_retries: Attempts after the first.
        backoff: Seconds before the first retry; doubles each time, at most 8.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout: float = 120.0,
        max_retries: int = 4,
        backoff: float = 0.25,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._max_retries = max_retries
        self._backoff = backoff
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST ``body`` to ``base_url + path`` and return the decoded answer.

        Raises:
            ModelError: The server refused, or did not answer in any of the attempts.
        """
        url = self.base_url + path
        payload = pydantic_core.to_json(body)
        problem = ""
        for attempt in range(self._max_retries + 1):
            if attempt:
                pause = min(8.0, self._backoff * 2 ** (attempt - 1))
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
            try:
                async with self._open().post(url, data=payload) as response:
                    status, answer = response.status, await response.read()
            except TimeoutError:
                problem = f"{url} did not answer within {self._timeout.total:g} s"
                continue
            except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
                raise ModelError(f"{url} is not a URL: write it as http://host:port/v1") from error
            except aiohttp.ClientError as error:
                problem = f"{url}: {type(error).__name__}: {error}"
                continue
            if status == 200:
                return _object(url, answer)
            problem = f"{url} answered {status}: {_reason(answer)}"
            if status not in RETRY_STATUSES:
                raise ModelError(problem)
        raise ModelError(f"{problem} (after {self._max_retries + 1} attempts)")

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=self._timeout,
                connector=aiohttp.TCPConnector(limit=0),
            )
        return self._session


def _object(url: str, body: bytes) -> dict[str, Any]:
    try:
        answer = pydantic_core.from_json(body)
    except ValueError as error:
        raise ModelError(f"{url} did not answer with JSON: {error}") from error
    if not isinstance(answer, dict):
        raise ModelError(f"{url} answered with JSON that is not an object")
    return answer


def _reason(body: bytes) -> str:
    """Return the message of an OpenAI-style error body, or the start of the body."""
    try:
        return str(pydantic_core.from_json(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:300].decode(errors="replace")
