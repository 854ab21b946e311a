"""Code that takes more memory than its sandbox has, in sandboxes of 384 MiB."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import vf

GROWS = "rows = []\nwhile True:\n    rows.append(bytearray(10**6))"


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        pytest.param("docker", marks=pytest.mark.docker),
    ],
)
def test_code_that_takes_too_much_memory_ends_by_that_and_costs_no_reward(backend: str) -> None:
    source = vf.sandbox_source({"backend": backend, "memory": 384 * 2**20})

    class Memory(vf.Environment):
        tools = (vf.PythonTool(source, timeout=300.0),)  # on a busy machine it grows slowly
        tool_timeout = timeout = 1200.0
        rubric = vf.Rubric(
            outcome=lambda trace: float(trace.messages[-1].content == "2"),
            penalties=[vf.penalties.code_timeouts(0.5, scale=1)],
        )

        async def step(self, reply: vf.Message) -> vf.Step:
            step = await self.run_tools(reply)
            step.info["code_timeouts"] = self.sandbox.timeouts
            return step

    calls: list[Any] = [{"python": {"code": GROWS}}, {"python": {"code": "1 + 1"}}, "2"]
    trace = asyncio.run(vf.rollout(Memory(), vf.Task("t", "?"), vf.ScriptedModel(calls)))
    said = [message.content for message in trace.messages if message.role == "tool"]
    assert said == [
        "[the interpreter ended: its state is lost]\n"
        "[out of memory: killed at the sandbox's limit]",
        "2",
    ]
    assert trace.reward == 1.0
