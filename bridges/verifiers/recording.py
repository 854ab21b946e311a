"""What became of a rollout, in the words of verifiers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vf.traces.trace import StopReason, Trace

KEY = "vf"  # our trace's place in verifiers' trace.info
# Which of verifiers' stop conditions says that a limit of ours was reached.
_STOPS = {
    StopReason.MAX_TURNS: "max_turns",
    StopReason.MAX_TOKENS: "max_output_tokens",
    StopReason.MAX_SEQ_LEN: "context_length",
    StopReason.TRUNCATED: "truncated",
}
# Which of verifiers' errors belongs to what failed; the rest is its HarnessError.
_ERRORS = {
    "sandbox": "SandboxError",
    "tool": "ToolsetError",
    "rubric": "TaskError",
    "environment": "TaskError",
}


def recorded(ours: Trace, theirs: Any) -> None:
    """Put our trace into verifiers' trace, and its end, where a limit made it.

    Args:
        ours: The rollout.
        theirs: A ``verifiers.v1.Trace``; it has the turns and their tokens already.

    Raises:
        verifiers.v1.RolloutError: The rollout failed, or the rubric said that it cannot be scored:
            it has no reward, which is not a reward of 0.
    """
    import verifiers.v1 as v1

    theirs.info[KEY] = json.loads(ours.to_json())
    if ours.error is not None:
        kind = getattr(v1, _ERRORS.get(ours.error.boundary, "HarnessError"))
        raise kind(f"{ours.error.boundary}: {ours.error.message}")
    if ours.reward is None:
        raise v1.TaskError("the rubric said that this rollout cannot be scored")
    if ours.stop_reason in _STOPS:
        theirs.stop(_STOPS[ours.stop_reason])


def reward(info: Mapping[str, Any]) -> float:
    """Return the reward of a rollout from verifiers' ``trace.info``.

    Raises:
        ValueError: Another harness than ours ran it.
    """
    return float(_score(info)["reward"])


def metrics(info: Mapping[str, Any]) -> dict[str, float]:
    """Return what the reward is made of, by the names that ``vf-eval`` has for it.

    Raises:
        ValueError: Another harness than ours ran it.
    """
    score = _score(info)
    groups = {"penalty": "penalties", "gate": "gates", "part": "parts", "metric": "metrics"}
    found = {"outcome": score["outcome"]} | {
        f"{word}/{name}": value
        for word, group in groups.items()
        for name, value in score[group].items()
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _score(info: Mapping[str, Any]) -> Mapping[str, Any]:
    if KEY not in info:
        raise ValueError(
            "this task is scored by its environment's rubric, and another harness ran it: leave "
            "the harness out (env.agent.harness), which is then the environment's own"
        )
    score: Mapping[str, Any] = info[KEY]["score"]
    return score
