"""Reading Chat Completions."""

from typing import Any

import pytest

from vf.inference.endpoint.chat import read_tools


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "add", "parameters": {}, **fields}}


@pytest.mark.parametrize("default", [False, None])
def test_a_tool_with_its_defaults_written_out_is_the_same_tool(default: bool | None) -> None:
    assert read_tools([tool(strict=default)]) == [tool()]


def test_a_strict_tool_stays_strict() -> None:
    assert read_tools([tool(strict=True)]) == [tool(strict=True)]
