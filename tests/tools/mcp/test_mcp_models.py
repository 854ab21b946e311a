"""A model that samples tokens, with the tools of a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import vf
from tests.evaluation.commands import call, results, traces
from tests.tools.mcp.servers import PLENTY, served, tools
from vf.environments import registry
from vf.environments.bundled.calculator import Calculator

pytestmark = pytest.mark.slow

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as (address, _, _):
        yield f"{address}/mcp"


class Remote(Calculator):
    """The calculator, whose tool is a server's."""

    tool_timeout = PLENTY
    calculate = None  # type: ignore[assignment]  # the tool of our own

    def __init__(self, url: str, num_eval: int = 4) -> None:
        super().__init__(num_eval=num_eval, max_operand=20)
        self.tools = [tools(url=url, include=["calculate"])]


def test_the_tiny_model_uses_them_and_is_scored(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    vf.register("remote-calculator", Remote)
    shown = Remote(url).episode(0).toolbox.schemas()
    assert shown == Calculator().episode(0).toolbox.schemas()
    argv = ["remote-calculator", "-m", "tiny", "-n", "4", "-r", "2", "--max-tokens", "48"]
    code, _, err = call(
        capsys, *argv, "--args", json.dumps({"url": url}), "-o", str(tmp_path / "out")
    )
    assert code == 0, err
    every = traces(tmp_path / "out")
    assert len(every) == 8
    assert all(trace.error is None for trace in every)
    events = [event for trace in every for event in trace.tool_events]
    answered = [m.content for trace in every for m in trace.messages if m.role == "tool"]
    assert sum(event.kind == "ok" for event in events) > 0
    assert any(text.lstrip("-").isdigit() for text in answered)
    assert results(tmp_path / "out")["turns"] > 8
