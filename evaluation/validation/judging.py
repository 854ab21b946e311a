"""What the agents' rewards say about an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from vf.evaluation.validation.findings import AgentResult, Finding, lower_bound
from vf.evaluation.validation.trap import Trap

_MARGIN = 0.05  # by how much a hacker must beat the honest to be caught
_SPREAD = 0.25  # by how much the oracle must beat those who know nothing


def judge_oracle(result: AgentResult, task_ids: Sequence[str]) -> Finding:
    """See that the oracle gets 1 on every task."""
    short = [
        f"{reward:.3f} on {id!r}" if reward is not None else f"failed on {id!r}"
        for id, reward in zip(task_ids, result.rewards, strict=True)
        if reward is None or reward < 1.0 - 1e-9
    ]
    if not short:
        return Finding("oracle", "ok", f"gets 1 on all {len(task_ids)} tasks")
    more = f" and {len(short) - 3} more" if len(short) > 3 else ""
    return Finding(
        "oracle",
        "fail",
        f"the oracle must get 1 on every task: {', '.join(short[:3])}{more}",
        "check that the outcome accepts every right answer and no penalty hits a faultless one",
    )


def judge_ignorant(results: Sequence[AgentResult], limits: Mapping[str, float]) -> Finding:
    """See that agents that know nothing get little; chance is given two standard errors."""
    paid = [
        f"{result.name} gets {result.mean:.3f} (at most {limits[result.name]:g})"
        for result in results
        if lower_bound(result.scored) > limits[result.name]
    ]
    if paid:
        return Finding(
            "ignorant",
            "fail",
            f"agents that solve nothing are paid: {'; '.join(paid)}",
            "let the outcome be 0 unless the task is solved; for a task that a guess solves this "
            "often, add choices or ask for more",
        )
    best = best_of(results)
    most = f"the most is {best.mean:.3f}, of {best.name}" if best else "none was scored"
    return Finding("ignorant", "ok", f"those who know nothing get little: {most}")


def judge_hackers(honest: Sequence[AgentResult], hackers: Sequence[AgentResult]) -> Finding:
    """See that no hacker gets more than the best of those who are honest and know nothing.

    Compared task by task: a hacker is caught if it gets more on average than chance explains
    (two standard errors of the mean difference).
    """
    best = best_of(honest)
    caught, by_chance = [], []
    for hacker in hackers:
        gains = [
            mine - theirs
            for mine, theirs in zip(
                hacker.rewards, best.rewards if best else [0.0] * len(hacker.rewards), strict=True
            )
            if mine is not None and theirs is not None
        ]
        if gains and fmean(gains) > _MARGIN and lower_bound(gains) > 0:
            caught.append(f"{hacker.name} gets {hacker.mean:.3f} ({hacker.about})")
        elif gains and fmean(gains) > _MARGIN:
            by_chance.append(f"{hacker.name} by {fmean(gains):.3f}")
    if caught:
        return Finding(
            "hackers",
            "fail",
            f"honest ignorance is worth {best.mean if best else 0.0:.3f}, but {'; '.join(caught)}",
            "read the outcome from typed events and one stated answer, never from text that may "
            "hold anything; run hidden tests where the model cannot reach them",
        )
    text = f"none of {len(hackers)} beats honest ignorance"
    if by_chance:
        text += f" by more than chance explains ({', '.join(by_chance)}); -n 50 tells more"
    return Finding("hackers", "ok", text)


def judge_spread(oracle: AgentResult | None, honest: Sequence[AgentResult]) -> Finding:
    """See that solving a task pays, so that the rewards of a group can differ."""
    best = best_of(honest)
    if oracle is None:
        return Finding("spread", "skipped", "without an oracle, it is not known to be solvable")
    if best is None or not oracle.scored:
        who = "those who know nothing" if oracle.scored else "the oracle"
        return Finding("spread", "skipped", f"no rollout of {who} has a reward")
    gap = oracle.mean - best.mean
    if gap < _SPREAD:
        return Finding(
            "spread",
            "fail",
            f"solving a task is worth only {gap:.3f} more than not solving it",
            "a group whose rewards are all equal has no signal: make solving a task pay",
        )
    return Finding("spread", "ok", f"solving is worth {gap:.3f} more than not solving")


def judge_sandbox(trap: Trap) -> Finding:
    """See that no code of an agent ran outside of a sandbox."""
    if trap.sprung:
        return Finding(
            "sandbox",
            "fail",
            "code that agents wrote ran on this machine, with your files in reach (it did no "
            "harm; but so it could not be tried to overwrite and delete the tests)",
            "run it in a sandbox, and read what came out, not the exit code",
        )
    return Finding("sandbox", "ok", "no code of the agents ran on this machine")


def judge_errors(results: Sequence[AgentResult]) -> Finding:
    """See that no rollout failed, whatever was said in it: a policy could learn to go unscored."""
    failed = [f"{result.name}, {error}" for result in results for error in result.errors]
    total = sum(len(result.rewards) for result in results)
    if failed:
        return Finding(
            "errors",
            "fail",
            f"{len(failed)} of {total} rollouts failed; the first: {failed[0]}",
            "answer whatever a model may say with a message (ToolError in a tool), and let "
            "only broken machinery raise",
        )
    return Finding("errors", "ok", f"none of {total} rollouts failed")


def best_of(results: Sequence[AgentResult]) -> AgentResult | None:
    """Return the result with the highest mean reward; None if nothing was scored."""
    return max((r for r in results if r.scored), key=lambda r: r.mean, default=None)
