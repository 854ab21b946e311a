"""Agents in an evaluation: resumed as long as they are the same, validated, and shown."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vf
from tests.environments.agents.programs import ASK, PYTHON
from vf.environments.agents.program import program
from vf.evaluation.commands.eval import main
from vf.evaluation.fingerprint import describe_environment

EVAL = """
tasks = 3
[[models]]
model = "tiny"
engine = "embedded"
[[environments]]
id = "program"
[environments.args]
command = {command}
tasks = {{ eval = "tasks.jsonl" }}
rubric = "./scoring.py:outcome"
oracle = "./scoring.py:oracle"
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    rows = [{"prompt": f"What is {n} + 1?", "answer": n + 1} for n in range(9)]
    Path("tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("my_agent.py").write_text(
        f"{ASK}\nprint(ask(json.load(open(os.environ['VF_TASK']))['prompt']))"
    )
    Path("scoring.py").write_text(
        "def outcome(trace):\n"
        "    return float(trace.info.get('output') == f'{trace.task.answer}\\n')\n"
        "def oracle(task):\n"
        "    return [str(task.answer)]\n"
    )
    Path("eval.toml").write_text(EVAL.format(command=json.dumps([*PYTHON, "my_agent.py"])))
    yield
    sys.modules.pop("scoring", None)


def outputs() -> list[str]:
    [file] = Path("evals/eval/program").rglob("traces.jsonl")
    traces = map(vf.Trace.from_json, file.read_bytes().splitlines())
    return [trace.info["output"] for trace in traces]


@pytest.mark.slow
def test_a_program_is_evaluated_resumed_and_not_mixed_with_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    assert main(["eval.toml", "--tasks", "2"]) == 0
    first = outputs()
    assert len(first) == 2
    assert main(["eval.toml"]) == 0
    assert len(outputs()) == 3
    assert outputs()[:2] == first
    Path("my_agent.py").write_text(Path("my_agent.py").read_text() + "\nprint('!')")
    assert main(["eval.toml", "--tasks", "4"]) == 2
    assert "my_agent.py" in capsys.readouterr().err


def test_an_oracle_shows_that_an_agents_tasks_can_be_solved() -> None:
    async def solve(task: vf.Task, endpoint: vf.Endpoint) -> str | None:
        import openai

        async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key) as client:
            answer = await client.chat.completions.create(
                model=endpoint.model, messages=[{"role": "user", "content": str(task.prompt)}]
            )
        return answer.choices[0].message.content

    rubric = vf.Rubric(outcome=lambda trace: float(trace.info["output"] == trace.task.answer))
    tasks = {"eval": [vf.Task(f"t{n}", f"What is {n} + 1?", str(n + 1)) for n in range(8)]}
    report = asyncio.run(
        vf.validate(
            vf.AgentEnvironment(
                solve, tasks=tasks, rubric=rubric, oracle=lambda task: [str(task.answer)]
            ),
            tasks=2,
        )
    )
    found = {finding.check: finding.status for finding in report.findings}
    assert found["oracle"] == found["deterministic"] == found["errors"] == "ok"
    [first, *_] = report.agents
    assert first.rewards == [1.0, 1.0]


def test_a_program_is_described_by_its_files() -> None:
    def described() -> str:
        environment = program([*PYTHON, "my_agent.py"], tasks=[], rubric="./scoring.py:outcome")
        environment.id = "program"
        return json.dumps(describe_environment(environment), sort_keys=True, default=str)

    before = described()
    assert described() == before
    Path("my_agent.py").write_text("pass")
    after = described()
    assert after != before
    folder = Path("code")
    folder.mkdir()
    (folder / "main.py").write_text("pass")
    with_folder = program(["python", "main.py"], tasks=[], folder=folder)
    assert set(with_folder.agent.measured()["files"]) == {"main.py"}


async def solve_one(task: vf.Task, endpoint: vf.Endpoint) -> None:
    """Do one thing."""


def test_a_function_is_described_by_its_source() -> None:
    environment = vf.AgentEnvironment(solve_one, tasks=[])
    described = json.dumps(describe_environment(environment))
    assert "tests.evaluation.test_agents:solve_one" in described
    assert "test_agents" in environment.__module__
