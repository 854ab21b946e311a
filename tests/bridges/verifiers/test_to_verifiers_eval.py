"""Our environments through verifiers' own evaluation, with our embedded server as the model."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.late import Late
from vf.traces.messages import Message, ToolCall
from vf.traces.trace import Trace

pytest.importorskip("torch")
from tests.inference.tiny_serving import load_model, running_engine, running_server

Late("verifiers.v1")  # skips these tests without it
pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[3] / "docs" / "prime-rl.md"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The tiny model behind the embedded engine's OpenAI-compatible server."""
    with running_engine(load_model(), max_seq_len=1024) as engine, running_server(engine) as url:
        yield url


def shown(heading: str) -> list[str]:
    """Return the arguments of the command that the page shows under a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n", 1)[1]
    match = re.search(r"^uv run eval (.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert match is not None
    return shlex.split(match[1].replace("\\\n", " "))


def evaluate(argv: list[str], url: str, folder: Path) -> list[dict[str, Any]]:
    """Run verifiers' command, and return the traces that it saved."""
    argv = [url if arg == "http://127.0.0.1:8000/v1" else arg for arg in argv]
    where = ["--output-dir", str(folder), "--run.name", "run", "--no-rich"]
    command = "from verifiers.v1.cli.eval.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, *argv, *where],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (folder / "run" / "traces.jsonl").read_text(encoding="utf-8").splitlines()
    episodes = [json.loads(line) for line in lines]
    assert all(episode["ok"] for episode in episodes), done.stderr
    return [trace for episode in episodes for trace in episode["traces"]]


def ours(trace: dict[str, Any]) -> Trace:
    return Trace.from_json(json.dumps(trace["info"]["vf"]))


def said(trace: dict[str, Any]) -> list[Message]:
    """Return what the model said, as verifiers has recorded it."""
    return [
        Message(
            "assistant",
            node["message"].get("content") or "",
            reasoning=node["message"].get("reasoning_content"),
            tool_calls=[
                ToolCall(call["id"], call["name"], call["arguments"])
                for call in node["message"].get("tool_calls") or ()
            ],
        )
        for node in trace["nodes"]
        if node["sampled"]
    ]


def played_again(environment: vf.Environment, trace: dict[str, Any]) -> Trace:
    """Play verifiers' recorded completions in our own loop, which verifiers has no part in."""
    mine = ours(trace)
    model = vf.ScriptedModel(said(trace))
    return asyncio.run(vf.rollout(environment, mine.task, model, seed=mine.seed))


def check(environment: vf.Environment, traces: list[dict[str, Any]]) -> None:
    for trace in traces:
        again = played_again(environment, trace)
        assert again.error is None
        assert again.score is not None
        assert trace["rewards"] == {"reward": {"score": again.reward, "weight": 1.0}}
        assert trace["metrics"]["outcome"] == again.score.outcome
        assert {f"penalty/{name}" for name in again.score.penalties} < set(trace["metrics"])
        assert [m.content for m in again.messages] == [m.content for m in ours(trace).messages]
        # One branch: what was said before is never said differently later.
        parents = [node.get("parent") for node in trace["nodes"]]
        assert parents == [None, *range(len(parents) - 1)]


def test_an_environment_with_tools_through_its_workers(url: str, tmp_path: Path) -> None:
    """The command of the page: each rollout in a worker process, as prime-rl does it."""
    argv = [*shown("Evaluate with verifiers"), "--sampling.temperature", "0"]
    traces = evaluate(argv, url, tmp_path)
    assert len(traces) == 4
    assert {trace["info"]["vf"]["environment"] for trace in traces} == {"calculator"}
    assert any(ours(trace).tool_events for trace in traces)
    check(vf.make("calculator", max_operand=20), traces)


def test_an_environment_without_tools_in_process(url: str, tmp_path: Path) -> None:
    argv = [
        *("vf-rl", "--env.taskset.environment", "reverse-text", "--env.taskset.split", "eval"),
        *("--env.taskset.args", '{"partial_credit": true}', "--model", "tiny", "-n", "3"),
        *("--client.base-url", "http://127.0.0.1:8000/v1", "--client.api-key-var", "NO_KEY"),
        *("--sampling.max-tokens", "16", "--no-push"),
    ]
    if version("verifiers").startswith("0.3."):  # later ones know no other way
        argv.append("--no-serve")
    traces = evaluate(argv, url, tmp_path)
    environment = vf.make("reverse-text", partial_credit=True)
    check(environment, traces)
    held_out = [task.id for task in environment.tasks("eval")][:3]
    assert sorted(trace["task"]["key"] for trace in traces) == sorted(held_out)
    assert all(len(said(trace)) == 1 for trace in traces)
