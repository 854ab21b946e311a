"""Held-out evaluation: how it samples, and how often."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from tests.trainer.collecting.test_step_rollouts import build, one_step, run
from vf.inference.model import Sampling


def test_evaluation_has_sampling_and_rollouts_of_its_own() -> None:
    seen: list[tuple[str, Sampling]] = []

    async def answer(prompt: str, sampling: Sampling) -> str:
        seen.append((prompt, sampling))
        return str((sampling.seed or 0) % 2)

    own: dict[str, Any] = {
        "eval_temperature": 0.0,
        "eval_top_p": 0.5,
        "eval_top_k": 3,
        "eval_min_p": 0.25,
    }
    work = build(answer, temperature=0.75, eval_rollouts_per_example=3, eval_max_tokens=7, **own)
    [result] = run(work.evaluate(lambda trace: None)).values()
    assert Counter(trace.task.id for trace in result.traces) == {f"eval-{i}": 3 for i in range(12)}
    asked = {replace(sampling, seed=None) for _, sampling in seen}
    assert asked == {Sampling(7, temperature=0.0, top_p=0.5, top_k=3, min_p=0.25, fixed=True)}
    assert len({trace.seed for trace in result.traces}) == 36
    # The first rollout of a task is the one that an evaluation of one rollout has.
    [single] = run(build(answer).evaluate(lambda trace: None)).values()
    assert [trace.seed for trace in single.traces] == [t.seed for t in result.traces[::3]]
    seen.clear()
    run(one_step(work))
    assert {replace(sampling, seed=None) for _, sampling in seen} == {
        Sampling(temperature=0.75, fixed=True, trained=True)
    }
