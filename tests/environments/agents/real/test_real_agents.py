"""Agents as they come from PyPI, answered by a scripted token engine.

More of them, with more calls, are in `scripts/check_agents.py`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from scripted_engine import ScriptedEngine, compare

from vf.environments.agents.program import program
from vf.environments.runner import rollout
from vf.inference.model import Sampling
from vf.inference.model_files import resolve_model
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.rubrics.rubric import Rubric
from vf.traces.task import Task
from vf.traces.trace import Trace

PROGRAMS = Path(__file__).parents[4] / "scripts" / "agent_programs"
ANSWERS = 6


def solved(trace: Trace) -> float:
    return float("Answer: 7" in trace.info["output"])


def run(arguments: Sequence[str], rollouts: int) -> tuple[list[Trace], ScriptedEngine]:
    file, *options = arguments
    engine = ScriptedEngine(Renderer.from_pretrained(resolve_model("tiny")), ANSWERS)
    model = TokenModel(engine, engine.renderer, max_seq_len=100_000)
    tasks = [Task(f"{n}", f"Compute {n} + 3.") for n in range(rollouts)]
    environment = program(
        [sys.executable, str(PROGRAMS / file), *options], tasks, Rubric(outcome=solved)
    )

    async def run_all() -> list[Trace]:
        sampling = Sampling(max_tokens=1000)
        runs = (rollout(environment, task, model, sampling=sampling) for task in tasks)
        return await asyncio.gather(*runs)

    return asyncio.run(run_all()), engine


@pytest.mark.parametrize(
    "arguments",
    [
        ["openai_loop.py"],
        pytest.param(["openai_agents_sdk.py"], marks=pytest.mark.slow),
        pytest.param(["openai_agents_sdk.py", "--chat", "--stream"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_every_token_of_an_agent_is_the_engines(arguments: list[str]) -> None:
    traces, engine = run(arguments, 2)
    found = compare(traces, engine.log)
    assert found.problems == []
    assert found.calls == 2 * ANSWERS
    for trace in traces:
        assert trace.error is None
        assert trace.reward == 1.0
        assert (len(trace.branches), trace.forks, trace.lineages) == (1, [], [])


@pytest.mark.slow
@pytest.mark.gate
def test_what_differs_would_show() -> None:
    [trace], engine = run(["openai_loop.py"], 1)
    [branch] = trace.branches
    sampled = engine.log[2].sampled.token_ids
    text = engine.renderer.decode(sampled)
    again = engine.renderer.tokenizer.encode(text, add_special_tokens=False)
    assert again != sampled  # so encoding an answer again would change it
    branch.token_ids[branch.weight_version.index(2)] += 1
    engine.log.append(engine.log[-1])
    assert compare([trace], engine.log).problems == [
        "0, branch 0, call 2: the tokens differ",
        *(f"0, branch 0, call {later}: the prompts differ" for later in (3, 4, 5)),
        "call 6 is 0 times in the traces, not once",
    ]
