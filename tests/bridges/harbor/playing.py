"""Playing task folders in real containers, by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vf
from vf.evaluation.scripts import oracle_of
from vf.inference.models.scripted_model import Line

SANDBOX = {"pool": 1, "concurrency": 1}


def play(
    path: Path, *scripts: Sequence[Line] | str, kept: Path | None = None, **args: Any
) -> list[vf.Trace]:
    """Play a task once for each script: "oracle" is what solves it."""

    async def run() -> list[vf.Trace]:
        environment = vf.make(f"harbor:{path}", sandbox=SANDBOX, **args)
        environment.artifacts = kept
        (task,) = environment.tasks("eval")
        traces = []
        for script in scripts:
            lines = oracle_of(environment, task) if script == "oracle" else list(script)
            assert lines is not None
            traces.append(await vf.rollout(environment, task, vf.ScriptedModel(lines)))
        return traces

    return asyncio.run(run())


def record(trace: vf.Trace) -> dict[str, Any]:
    assert trace.error is None, trace.error
    found: dict[str, Any] = trace.info["harbor"]
    return found


def bash(command: str) -> Line:
    return {"bash": {"command": command}}
