"""The arguments of `vf.McpTools`."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest

import vf

URL = "http://localhost:1/mcp"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give a command or a url"),
        ({"command": ["x"], "url": URL}, "and not both"),
        ({"command": "python server.py"}, "must be a list of words"),
        ({"command": []}, "must be a list of words"),
        ({"url": "localhost:8000"}, "must begin with http"),
        ({"url": URL, "env": {"A": "b"}}, "env and cwd are for a command"),
        ({"url": URL, "cwd": "/"}, "env and cwd are for a command"),
        ({"command": ["x"], "headers": {"A": "b"}}, "headers are for a url"),
        ({"url": URL, "transport": "websocket"}, "transport must be one of http, sse"),
        ({"url": URL, "session": "none"}, "session must be one of episode, shared"),
        ({"url": URL, "include": ["a"], "exclude": ["b"]}, "not both"),
        ({"url": URL, "timeout": 0}, "timeout must be a positive number"),
        ({"url": URL, "start_timeout": "3"}, "start_timeout must be a positive number"),
        ({"url": URL, "max_output": -1}, "max_output must be a positive number"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(vf.ConfigError, match=message):
        vf.McpTools(**settings)


def test_secrets_are_not_shown() -> None:
    address = vf.McpTools(
        url="https://me:pass1@host/mcp?key=pass2", headers={"Authorization": "pass3"}
    )
    command = vf.McpTools(["serve", "--fast"], env={"KEY": "pass4"})
    assert address.server.name == "the MCP server at https://host/mcp"
    assert command.server.name == "the MCP server `serve --fast`"
    shown = (
        repr(vars(command)) + address.server.name + repr(address) + repr(vars(address)["services"])
    )
    assert "pass3" not in shown
    assert "pass4" not in shown


@pytest.mark.parametrize("found", ["1.23.9", "3.0"])
def test_versions_that_are_not_supported_are_reported(
    found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf.runtime.extras.version", lambda _: found)
    with pytest.raises(vf.ConfigError, match=f"mcp {found} is not supported, but 1.24 and later"):
        asyncio.run(vf.McpTools(command=["true"]).check())


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def none(name: str) -> Any:
        if name == "mcp":
            raise ImportError("No module named 'mcp'")
        return real(name)

    monkeypatch.setattr(importlib, "import_module", none)
    with pytest.raises(vf.ConfigError, match=r"pip install 'vf-rl\[mcp\]'"):
        asyncio.run(vf.McpTools(command=["true"]).check())
