"""The trainer's control of a vLLM server: health, weights, pauses. Synchronous, for its thread."""

from __future__ import annotations

from typing import Any

import httpx

from vf.runtime.errors import EngineError

SECONDS = 600.0  # loading the weights of a large model takes minutes


class Refused(EngineError):
    """The server answered, but not with success.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Admin:
    """Talks to one server.

    Args:
        base_url: Up to and including ``/v1``.
        api_key: Sent as a bearer token if given.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self.root = base_url.rstrip("/").removesuffix("/v1")
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(SECONDS, connect=10.0),
            trust_env=False,
        )

    def get(self, path: str) -> Any:
        """GET a path and return the decoded answer.

        Raises:
            Refused: The answer is an error.
            EngineError: There is no answer.
        """
        return self._request("GET", path)

    def post(self, path: str, body: Any = None, **query: str) -> Any:
        """POST to a path and return the decoded answer; raises as :meth:`get` does."""
        return self._request("POST", path, json=body, params=query)

    def healthy(self) -> bool:
        """Return whether the server answers at all, and says that it is well."""
        try:
            return self._http.get(f"{self.root}/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _request(self, method: str, path: str, **content: Any) -> Any:
        url = self.root + path
        try:
            response = self._http.request(method, url, **content)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineError(f"{url}: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            raise Refused(
                f"{url} answered {response.status_code}: {_reason(response)}", response.status_code
            )
        try:
            return response.json()
        except ValueError:
            return response.text


def _reason(response: httpx.Response) -> str:
    try:
        answer = response.json()
        error = answer.get("error", answer.get("detail", answer))
        return str(error["message"] if isinstance(error, dict) and "message" in error else error)
    except (ValueError, AttributeError):
        return response.text[:300]
