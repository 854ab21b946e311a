# What others write need not be typed as strictly as ours.
# mypy: ignore-errors
"""A v1 taskset as ``code_golf`` of verifiers' repository: what the model wrote is run."""

from __future__ import annotations

import re

import verifiers.v1 as vf

__all__ = ["GolfTaskset"]


class GolfData(vf.TaskData):
    expected: str


class GolfTask(vf.Task[GolfData]):
    def runtime_env(self) -> dict[str, str]:
        return {"GREETING": "hello"}

    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("data/number.txt", b"42")
        await runtime.run_background(["sh", "-c", "echo began; echo too >&2"], {}, "server.log")

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        said = await runtime.run(["sh", "-c", "echo $GREETING $NAME; pwd"], {"NAME": "you"})
        trace.info["said"] = said.stdout.splitlines()[0]
        trace.info["folder"] = said.stdout.splitlines()[1]

    @vf.metric
    async def evaluate(self, trace: vf.Trace, runtime: vf.Runtime) -> dict[str, float]:
        match = re.search(r"```(?:python)?\n(.*?)```", trace.last_reply or "", re.DOTALL)
        program = match.group(1) if match else ""
        await runtime.write("solution.py", program.encode())
        result = await runtime.run(["python3", "solution.py"], {})
        length = len(await runtime.read("solution.py"))
        capped = 0.0
        try:
            await runtime.read("solution.py", max_bytes=3)
        except vf.SandboxError:
            capped = 1.0
        passed = result.exit_code == 0 and result.stdout.strip() == self.data.expected
        return {"passed": float(passed), "length": float(length), "capped": capped}

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return trace.metrics["passed"]

    @vf.metric
    async def greeted(self, trace: vf.Trace) -> float:
        return float(trace.info["said"] == "hello you")


class GolfTaskset(vf.Taskset[GolfTask, vf.TasksetConfig]):
    def load(self) -> list[GolfTask]:
        return [
            GolfTask(GolfData(idx=0, prompt="Print the number.", expected="42"), self.config.task)
        ]
