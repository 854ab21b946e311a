"""An OpenEnv server's description of itself: its actions, its tools, its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from vf.bridges.openenv.openenv_session import Session
from vf.runtime.calling import carry_out
from vf.runtime.errors import ConfigError, InfrastructureError
from vf.runtime.extras import load

_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Described:
    """A server's own description.

    Attributes:
        about: Its description of the environment.
        action: JSON schema of an action.
        tools: The tools of an MCP environment, each with ``name``, ``description`` and
            ``input_schema``; None for any other environment.
    """

    about: str
    action: dict[str, Any]
    tools: list[dict[str, Any]] | None


def describe(
    url: str, make_client: Callable[[], Any], headers: Mapping[str, str], patience: float
) -> Described:
    """Request a server's description.

    Args:
        url: Its address.
        make_client: Makes a client of it; must take actions that are dicts.
        headers: Sent with every request.
        patience: Seconds for one answer.

    Raises:
        ConfigError: If no server answers there, or it is not an OpenEnv server.
    """
    address = _http(url)
    schema = _fetched(f"{address}/schema", headers, patience).get("action")
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        raise ConfigError(f"openenv: {url}: its /schema has no schema of actions")
    about = str(_fetched(f"{address}/metadata", headers, patience).get("description") or "")
    fields = schema.get("properties", {}).keys() - {"metadata", "type"}
    if fields and fields != {"tool_name", "arguments"}:
        return Described(about, schema, None)
    return Described(about, schema, carry_out(_tools(url, make_client, patience)))


async def _tools(url: str, make_client: Callable[[], Any], patience: float) -> list[dict[str, Any]]:
    session = Session(make_client, url, patience)
    try:
        result = await session.open(lambda client: client.step({"type": "list_tools"}))
    except InfrastructureError as error:
        raise ConfigError(f"{error}; it was asked for its tools") from error
    finally:
        await session.close()
    tools = result.observation.get("tools") if isinstance(result.observation, dict) else None
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict)
        and isinstance(tool.get("name"), str)
        and isinstance(tool.get("input_schema"), dict)
        for tool in tools
    ):
        raise ConfigError(
            f"openenv: {url}: it did not return a list of tools, but {repr(result)[:200]}"
        )
    if not tools:
        raise ConfigError(
            f"openenv: {url}: its actions have no fields and it has no tools, so a model cannot "
            "act in it"
        )
    return tools


def _http(url: str) -> str:
    parts = urlsplit(url)
    schemes = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
    if parts.scheme not in schemes or not parts.hostname:
        raise ConfigError(
            f"openenv: {url!r} is not a server's address, such as http://localhost:8000"
        )
    return parts._replace(scheme=schemes[parts.scheme]).geturl().rstrip("/")


def _fetched(address: str, headers: Mapping[str, str], patience: float) -> dict[str, Any]:
    httpx = load("httpx", "openenv")
    remote = urlsplit(address).hostname not in _LOCAL  # a proxy is not asked for this machine
    try:
        answer = httpx.get(address, headers=dict(headers), timeout=patience, trust_env=remote)
        answer.raise_for_status()
        content = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise ConfigError(
            f"openenv: no OpenEnv server answers at {address} ({type(error).__name__}: {error}). "
            "Is it running, and is the address right?"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"openenv: {address} does not answer with a JSON object")
    return content
