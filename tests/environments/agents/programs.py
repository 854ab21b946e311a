"""Small programs as agents: standard library only, so that they start fast."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vf
from vf.environments.agents.program import program

TASK = vf.Task("t", "What is 2 + 2?", answer="4", info={"level": 1})
RIGHT = vf.Rubric(
    outcome=lambda trace: float(str(trace.info.get("output", "")).strip() == trace.task.answer)
)
# What every program begins with: one question to the model.
ASK = """
import json, os, signal, sys, time, urllib.request
def ask(text="Go.", **more):
    body = {"model": os.environ["VF_MODEL"], "messages": [{"role": "user", "content": text}]} | more
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
         "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""
PYTHON = [sys.executable, "-S"]


def code(text: str) -> list[str]:
    """Return the command of a program."""
    return [*PYTHON, "-c", ASK + text]


def agent(command: Sequence[str], **settings: Any) -> vf.AgentEnvironment:
    """Return a program's environment with one task."""
    return program(command, **{"tasks": [TASK], "rubric": RIGHT, **settings})


def play(environment: vf.Environment, model: Any = None, task: vf.Task = TASK) -> vf.Trace:
    """Run one rollout."""
    return asyncio.run(vf.rollout(environment, task, model or vf.ScriptedModel(["4"] * 9)))


def run(text: str, model: Any = None, **settings: Any) -> vf.Trace:
    """Run one rollout of a program."""
    return play(agent(code(text), **settings), model)


def leftovers() -> set[str]:
    """Return the folders of programs that are there now."""
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    return {path.name for path in folder.glob("vf-*/agent-*")}
