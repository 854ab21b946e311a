"""A lean JSON client for the OpenAI wire protocol."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pydantic_core

from vf.runtime.api_keys import clean_key, hide, in_url, tells, without_data
from vf.runtime.errors import ModelError

if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS = 30.0
# The server is paused, overloaded, or being started; 521 to 523 and 529 are a proxy's words for it.
AWAY = frozenset({429, 502, 503, 521, 522, 523, 529})
TIMEOUTS = frozenset({408, 504})  # of the server, or of a proxy before it
RETRY_STATUSES = AWAY | TIMEOUTS | {409, 425, 500, 507, *range(520, 531)}
MOST_BACKOFF = 8.0  # seconds
MOST_AFTER = 60.0  # seconds: a server that wants to be asked later than that is asked again then
_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)\s?"
_DURATION = re.compile(
    rf"(?=\d)(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s(?:ec(?:ond)?s?)?)?(?:{_NUMBER}ms)?"
)
MOST_WORDS = 500  # characters of what a server says that an error quotes


class Unavailable(ModelError):
    """The server refused the request or was interrupted; a later attempt may be answered.

    Attributes:
        away: The server refused connections or asked to come back later, so nothing was sampled.
        answered: It did answer.
        after: Seconds after which it asked to come back, if it did.
    """

    def __init__(
        self, message: str, *, away: bool, answered: bool, after: float | None = None
    ) -> None:
        super().__init__(message)
        self.away = away
        self.answered = answered
        self.after = after


class AnswerTimeout(Unavailable):
    """The server took the request, and did not answer it in its own or a proxy's time."""


class Garbled(Unavailable):
    """The server answered with something other than an answer, such as half of one."""

    def __init__(self, message: str) -> None:
        super().__init__(message, away=False, answered=True)


class JsonClient:
    """POSTs JSON to one server and reads JSON back.

    Args:
        base_url: Up to and including ``/v1``.
        api_key: Sent as a bearer token if given.
        timeout: Seconds for one attempt.
        max_retries: Attempts after the first.
        backoff: Seconds before the first retry; doubles each time, at most 8.

    Raises:
        ConfigError: If the key holds what no HTTP header can.
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
        self.api_key = api_key
        self.timeout = timeout
        self.max_retries = max_retries
        self.backoff = backoff
        key = clean_key(api_key, "api_key") if api_key else None
        self._secrets = key, *in_url(base_url)
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST ``body``, as often as needed, and return the decoded answer.

        For what may be asked twice. Connection errors, timeouts and the statuses in
        ``RETRY_STATUSES`` are retried, when the server says or with exponential backoff and jitter;
        any other 4xx is final.

        Raises:
            ModelError: If the server refused, or did not answer in any of the attempts.
        """
        problem, after = "", None
        for attempt in range(self.max_retries + 1):
            if attempt:
                await asyncio.sleep(max(pause(self.backoff, attempt), after or 0.0))
            try:
                async with asyncio.timeout(self.timeout):
                    return await self.send(path, body)
            except TimeoutError:
                url = hide(self.base_url + path, *self._secrets)
                problem = f"{url} did not answer within {self.timeout:g} s"
                after = None
            except Unavailable as error:
                problem, after = str(error), error.after
        raise ModelError(f"{problem} (after {self.max_retries + 1} attempts)")

    async def send(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST ``body`` once and return the decoded answer. The caller has the deadline.

        Raises:
            Unavailable: If the request failed and may be tried again.
            ModelError: If the server refused, or answered with something else.
        """
        import aiohttp  # takes a while, and an engine in this process needs no client

        url = hide(self.base_url + path, *self._secrets)
        try:
            async with self._open().post(
                self.base_url + path, data=pydantic_core.to_json(body)
            ) as response:
                status, answer = response.status, await response.read()
                after = retry_after(response.headers)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            problem = f"{url} is not a URL: write it as http://host:port/v1"
            raise ModelError(problem) from self._cause(error)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _broken(url, error, away=True) from self._cause(error)
        except aiohttp.ClientError as error:
            raise _broken(url, error, away=False) from self._cause(error)
        if status == 200:
            return _object(url, answer)
        problem = hide(f"{url} answered {status}: {words_of(answer)}", *self._secrets)
        raise refusal(problem, status, after)

    async def text(self, path: str) -> str | None:
        """GET a path of the server's root; None if it has no answer.

        Args:
            path: The path after host and port.
        """
        import aiohttp

        try:
            root = self.base_url.removesuffix("/v1")
            async with self._open().get(root + path) as response:
                return await response.text() if response.status == 200 else None
        except (aiohttp.ClientError, UnicodeDecodeError):
            return None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _cause(self, error: Exception) -> Exception | None:
        """Return an error as the cause of another; None where it tells a key."""
        return None if tells(error, *self._secrets) else error

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                connector=aiohttp.TCPConnector(limit=0),
            )
        return self._session


def field_name(loc: Iterable[int | str]) -> str:
    """Return the name of a request's field, without the types of a union that pydantic adds."""
    types = ("str", "constrained-str")
    return ".".join(str(part) for part in loc if part not in types and "[" not in str(part))


def split_query(url: str | None) -> tuple[str | None, dict[str, object]]:
    """Return the address of an API and its query, such as Azure's ``?api-version=...``.

    A client appends each path to the address, and sends the query with every request.
    """
    if url is None or "?" not in url:
        return url, {}
    address, _, query = url.partition("?")
    return address, dict(parse_qsl(query.partition("#")[0], keep_blank_values=True))


def refusal(problem: str, status: int, after: float | None = None) -> ModelError:
    """Return the error of an answer with this status, which is not 200."""
    if status not in RETRY_STATUSES:
        return ModelError(problem)
    kind = AnswerTimeout if status in TIMEOUTS else Unavailable
    return kind(problem, away=status in AWAY, answered=True, after=after)


def pause(backoff: float, attempt: int) -> float:
    """Return the seconds to wait before the ``attempt``-th retry, counted from 1."""
    return min(MOST_BACKOFF, backoff * 2.0 ** min(attempt - 1, 30)) * random.uniform(0.75, 1.25)


def _broken(url: str, error: Exception, *, away: bool) -> Unavailable:
    return Unavailable(f"{url}: {type(error).__name__}: {error}", away=away, answered=False)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which a server wants to be asked again, at most ``MOST_AFTER``.

    Args:
        headers: The headers of its answer. ``retry-after-ms`` is in milliseconds; ``Retry-After``
            in seconds, with units (``1m30s``), or a date.

    Returns:
        None if it does not say.
    """
    seconds = _number(headers.get("retry-after-ms"), 1e-3)
    text = headers.get("Retry-After")
    if seconds is None:
        seconds = _number(text)
    if seconds is None and text and (duration := _DURATION.fullmatch(text.strip())):
        parts = (float(part or 0) for part in duration.groups())
        seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1, 1e-3), strict=True))
    if seconds is None and text:
        try:
            seconds = (_date(text) - _date(headers.get("Date"))).total_seconds()
        except ValueError:
            return None
    return None if seconds is None else min(max(0.0, seconds), MOST_AFTER)


def _number(text: str | None, unit: float = 1.0) -> float | None:
    try:
        number = float(text or "") * unit
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _date(text: str | None) -> datetime:
    """Return an HTTP date; the present where there is none.

    Raises:
        ValueError: If it is no date.
    """
    if text is None:
        return datetime.now(UTC)
    date = parsedate_to_datetime(text)
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _object(url: str, body: bytes) -> dict[str, Any]:
    try:
        answer = pydantic_core.from_json(body)
    except ValueError as error:
        raise ModelError(f"{url} did not answer with JSON: {error}") from error
    if not isinstance(answer, dict):
        raise ModelError(f"{url} answered with JSON that is not an object")
    return answer


def words_of(body: object) -> str:
    """Return what a server says that is wrong.

    Args:
        body: Its answer, read or not. The message of an OpenAI-style error is returned; of any
            other body, its beginning.
    """
    parsed = body
    if isinstance(body, bytes | str):
        try:
            parsed = pydantic_core.from_json(body)
        except ValueError:
            parsed = None
    if isinstance(parsed, list) and len(parsed) == 1:  # Google's API
        parsed = parsed[0]
    error = parsed.get("error") if isinstance(parsed, dict) else None
    if isinstance(error, dict) and (message := error.get("message")):
        more = error.get("metadata")  # OpenRouter's, with the words of the provider behind it
        raw = more.get("raw") if isinstance(more, dict) else None
        return _short(f"{message} ({raw})" if raw else str(message))
    text = body if isinstance(body, bytes | str) else pydantic_core.to_json(body)
    return _short(text if isinstance(text, str) else text.decode(errors="replace")) or "nothing"


def _short(text: str) -> str:
    text = without_data(text)
    return text if len(text) <= MOST_WORDS else text[:MOST_WORDS] + "..."
