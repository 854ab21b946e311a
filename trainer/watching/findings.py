"""What a run's user should know about its steps, in sentences: alarms, signal, waits, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vf.trainer.run.group import Group
from vf.trainer.run.metrics import Metrics
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.watching.alarms import RunAlarms

WAIT_SHARE = 0.2  # of the step's time: waits for sandboxes above it are worth a note
TOO_EASY = 0.8


class Findings:
    """Finds what is remarkable about the steps of a run.

    Args:
        args: ``[trainer.args]``.
        args_of: The same by the environment's name, as they are there.

    Attributes:
        alarms: What watches the rewards over many steps.
    """

    def __init__(self, args: TrainerArgs, args_of: Mapping[str, TrainerArgs]) -> None:
        self._args = args
        self._args_of = args_of
        self._silence = Silence()
        self.alarms = RunAlarms(args_of)

    def of_step(
        self, step: int, groups: Sequence[Group], metrics: Metrics
    ) -> tuple[Metrics, list[str]]:
        """Return the metrics of the alarms, and what is remarkable about a step.

        Args:
            step: The step's number, from 1.
            groups: The step's groups, by number.
            metrics: The step's metrics.
        """
        alarms, begun = self.alarms.observe(groups, metrics, self._args)
        return alarms, [
            *(f"step {step}: {note}" for note in begun),
            *self._silence.notes(step, groups, metrics),
            *step_notes(step, metrics),
        ]

    def of_baseline(self, step: int, metrics: Metrics) -> list[str]:
        """Return what is remarkable about the model before it is trained.

        Args:
            step: Training steps done.
            metrics: All that is known of it, evaluation included.
        """
        alike = all(  # else evaluation is no baseline
            args.eval_temperature in (None, args.temperature) for args in self._args_of.values()
        )
        evaluates = self._args.eval_strategy == "steps" and alike
        return baseline_notes(step, metrics, evaluates=evaluates)


class Silence:
    """Tells of steps without learning signal: a reason once, and then how many steps had it."""

    def __init__(self) -> None:
        self._steps: Counter[str] = Counter()

    def notes(self, step: int, groups: Sequence[Group], metrics: Metrics) -> list[str]:
        """Return a note if a step had no signal.

        Args:
            step: The step's number, from 1.
            groups: The step's groups.
            metrics: The step's metrics.
        """
        if metrics.get("groups/effective") or not (reason := _signal(groups)):
            return []
        self._steps[reason] += 1
        if self._steps[reason] == 1:
            return [f"step {step}: no learning signal: {reason}"]
        return [f"step {step}: no learning signal again, {self._steps[reason]} steps so far"]


def step_notes(step: int, metrics: Metrics) -> list[str]:
    """Return what a user should know about a step."""
    return [
        *_skipped(step, metrics),
        *_waits(step, metrics),
        *_memory(step, metrics),
    ]


def baseline_notes(step: int, metrics: Metrics, *, evaluates: bool) -> list[str]:
    """Return a warning if the model, before it is trained, never or usually succeeds.

    Args:
        step: Training steps done.
        metrics: The step's line. Looked at are the held-out tasks before the first step; without
            evaluation, the rollouts of the first step.
        evaluates: Whether there is evaluation.
    """
    kind, first = ("eval/", 0) if evaluates else ("", 1)
    success = metrics.get(f"{kind}success_rate")
    if step != first or success is None:
        return []
    rollouts = f"{metrics[f'{kind}rollouts/scored']:g} rollouts"
    if success == 0.0:
        return [
            f"before training, not one of {rollouts} succeeded. Where no rollout of a group is "
            "better than the others, there is nothing to learn from: begin with easier tasks, "
            "give partial credit in the outcome, or warm the model up on good examples"
        ]
    if success > TOO_EASY:
        return [
            f"before training, {success:.0%} of {rollouts} succeeded: little is left to learn, and "
            "most groups will have no spread. Take harder tasks, or set max_refill and rest_easy"
        ]
    return []


def _signal(groups: Sequence[Group]) -> str:
    """Return why a step without an effective group had no learning signal, if that is known."""
    if not any(group.traces for group in groups):
        return (
            "the rubric left every rollout without a reward. See what its outcome returns None for"
        )
    if not all(group.uniform for group in groups):
        return ""
    if all(len(group.rewards) < group.min_size for group in groups):
        return (
            f"no group has {groups[0].min_size} scored rollouts. See logs/environment.log for what "
            "failed, or lower min_group_size"
        )
    rewards = [reward for group in groups for reward in group.rewards]
    if min(rewards) >= 1.0:
        reason = "All solved: take harder tasks"
    elif max(rewards) <= 0.0:
        reason = (
            "None solved: take easier tasks, or look at the traces for what no rollout gets past"
        )
    else:
        reason = "Take tasks that succeed sometimes, a finer rubric or a higher temperature"
    return f"the rollouts of each group had the same reward. {reason}, or set max_refill"


def _skipped(step: int, metrics: Metrics) -> list[str]:
    if not (count := metrics.get("updates/skipped")):
        return []
    return [
        f"step {step}: {count:g} of its optimizer steps {'was' if count == 1 else 'were'} skipped, "
        "for the loss or the gradient was not finite; the weights are as before. If it happens "
        "again, lower learning_rate, or look for rewards or logprobs gone wrong"
    ]


def _waits(step: int, metrics: Metrics) -> list[str]:
    wait = metrics.get("sandbox/wait_s_mean", 0.0)
    if wait <= max(1.0, WAIT_SHARE * metrics["time/total"]):
        return []
    return [
        f"in step {step}, rollouts waited for their sandboxes: {wait:.1f} s on average, "
        f"{metrics['sandbox/wait_s_max']:.1f} s at most. If the machine has room, raise "
        "env.args.sandbox.pool, or else name more machines in env.args.sandbox.hosts"
    ]


def _memory(step: int, metrics: Metrics) -> list[str]:
    if not metrics.get("oom_retries"):
        return []
    return [
        f"step {step} ran out of memory and was retried with half the tokens in a micro-batch, "
        "which holds for the rest of the run. Set a lower trainer.args.micro_batch_tokens to save "
        "the next run this time"
    ]
