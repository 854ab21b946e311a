"""Real training of agents: the embedded engine, the tiny model, a function and a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

import vf
from tests.environments.agents.programs import ASK, PYTHON
from tests.trainer.configs import configured
from vf.trainer.preflight import preflight
from vf.trainer.rl_trainer import RLTrainer

pytestmark = pytest.mark.slow

TASKS = [{"id": f"t{n}", "prompt": f"Say digits: {n}"} for n in range(40)]
DIGITS = vf.Rubric(
    outcome=lambda trace: sum(c.isdigit() for c in trace.reply) / max(1, len(trace.reply))
)


@vf.agent
async def two_turns(task: vf.Task, endpoint: vf.Endpoint) -> str | None:
    """Ask twice, and wish for what a trainer does not grant."""
    messages: list[Any] = [{"role": "user", "content": task.prompt}]
    async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key) as client:
        for _ in range(2):
            answer = await client.chat.completions.create(
                model=endpoint.model, messages=messages, temperature=0, seed=1
            )
            said = answer.choices[0].message
            messages += [said, {"role": "user", "content": "Again."}]
    return said.content


vf.register("test-agent", vf.AgentEnvironment(two_turns, tasks=TASKS, rubric=DIGITS))


def traces_of(run: Path) -> list[vf.Trace]:
    files = (run / "traces").glob("*.jsonl")
    return [vf.Trace.from_json(row) for file in files for row in file.read_bytes().splitlines()]


def test_a_function_is_trained_token_by_token(make_trainer: Any, tmp_path: Path) -> None:
    trainer: RLTrainer = make_trainer(env="test-agent", max_steps=2)
    lines = [trainer.step() for _ in range(2)]
    assert all(line["rollouts/failed"] == 0 for line in lines)
    assert all(line["logprob_gap"] < 0.01 for line in lines)
    assert any(line["grad_norm"] > 0 for line in lines)
    traces = traces_of(tmp_path / "run")
    assert len(traces) == 32
    for trace in traces:
        assert len(trace.turns) == 2
        assert len(trace.branches) == 1
        assert sum(trace.branches[0].loss_mask) == trace.completion_tokens
        assert trace.info["asked"]["temperature"] == [0]
    first = {trace.messages[1].content for trace in traces if trace.task.id == traces[0].task.id}
    assert len(first) > 1, "the agent asked for greedy answers, and the trainer decides"


def test_a_template_without_tools_is_named_before_training() -> None:
    def template(name: str | None) -> str:
        limits = {"max_prompt_len": 192, "max_seq_len": 384}
        inference = {"chat_template": name} if name else {}
        return preflight(configured(limits, env={"id": "test-agent"}, inference=inference)).template

    assert "does not tell the model of its tools" in template("plain")
    assert "tools" not in template(None)


def test_a_program_is_trained(make_trainer: Any, tmp_path: Path) -> None:
    code = f"{ASK}\nprint(ask(json.load(open(os.environ['VF_TASK']))['prompt']))"
    rubric = tmp_path / "digits_rubric.py"
    rubric.write_text("def outcome(trace):\n    return 0.1 * len(trace.info['output'].split())\n")
    trainer: RLTrainer = make_trainer(
        env="program",
        env_args={
            "command": [*PYTHON, "-c", code],
            "tasks": TASKS,
            "rubric": f"{rubric}:outcome",
        },
        max_steps=1,
    )
    line = trainer.step()
    assert line["rollouts/failed"] == 0
    assert line["rollouts/scored"] == 16
    assert all(trace.info["program"]["exit_code"] == 0 for trace in traces_of(tmp_path / "run"))
