"""How the tests play in a served environment."""

from __future__ import annotations

import asyncio

import vf
from tests.late import Late
from tests.waiting import wait_until
from vf.inference.models.scripted_model import Script
from vf.traces.messages import Message

servers = Late("tests.bridges.openenv.openenv_servers", package="openenv")


def run(environment: vf.Environment, script: Script, task: vf.Task | None = None) -> vf.Trace:
    task = task or next(iter(environment.tasks("train")))
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script)))


def all_closed() -> bool:
    return wait_until(lambda: not servers.OPEN)


def bisect(messages: list[Message]) -> str:
    low, high = 1, 8
    told = [message.content for message in messages]
    for said, hint in zip(told[1::2], told[2::2], strict=True):
        low, high = (int(said) + 1, high) if hint == "Higher." else (low, int(said) - 1)
    return str((low + high) // 2)
