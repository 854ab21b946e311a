"""A run that is resumed with another ``max_steps_off_policy``, or with fewer steps."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import vf
from tests.trainer.collecting.test_step_rollouts import build, groups_of, mixed, run
from vf.inference.model import Sampling
from vf.traces.trace import Branch
from vf.trainer.run.group import Group


def test_steps_that_may_no_longer_run_so_far_ahead_wait() -> None:
    """Their rollouts would be too old again, and be dropped once they were written."""

    async def scene() -> tuple[list[vf.Trace], list[vf.Trace], list[list[Group]]]:
        work = build(mixed, ahead=2, max_steps=3)
        await work.open(1, version=0)
        while len((queue := await work.queue()).traces) < 24:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for trace in queue.traces:
            trace.branches.append(Branch([7], [1], [-0.5], [0], [0]))
        version, written = 0, list[vf.Trace]()

        async def answer(prompt: str, sampling: Sampling) -> str:
            sampled.append(version)
            return await mixed(prompt, sampling)

        sampled: list[int] = []
        saved_twice = build(answer, ahead=0, max_steps=3)
        await saved_twice.restore(replace(queue, version=version))
        again = build(answer, written, ahead=0, max_steps=3)
        await again.restore(replace(await saved_twice.queue(), version=version))
        trained = []
        for version in range(3):
            await again.open(version + 1, version)
            trained.append(await groups_of(again, version + 1))
        assert sampled == [1] * 8 + [2] * 8, "only what was too old was asked for again, and once"
        return queue.traces, written, trained

    old, written, trained = run(scene())
    kept = [trace for groups in trained for group in groups for trace in group.traces]
    assert sorted(trace.id for trace in written) == sorted(trace.id for trace in kept)
    assert [group.number for groups in trained for group in groups] == [0, 1, 2, 3, 4, 5]
    assert [trace in old for trace in kept] == [True] * 8 + [False] * 16


def test_steps_beyond_fewer_max_steps_do_not_run_and_are_kept() -> None:
    """Nobody would train on their rollouts; more steps later find them as they were."""

    async def scene() -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[vf.Trace]]:
        work = build(mixed, ahead=2, max_steps=3)
        await work.open(1, version=0)
        while len((queue := await work.queue()).traces) < 24:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        written: list[vf.Trace] = []
        shorter = build(mixed, written, ahead=2, max_steps=2)
        await shorter.restore(replace(queue, version=0))
        for step in (1, 2):
            await shorter.open(step, version=step - 1)
            await groups_of(shorter, step)
        return queue.steps, (await shorter.queue()).steps, written

    before, after, written = run(scene())
    assert after == [state for state in before if state["step"] == 3]
    assert {trace.origin.step for trace in written if trace.origin} == {1, 2}
