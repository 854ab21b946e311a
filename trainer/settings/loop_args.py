"""The settings of `[trainer.args]` for the loop of rollouts, training and evaluation.

docs/loop.md explains them. Importing this module loads no torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, field_validator

from vf.inference.settings import (
    STRICT,
    MinP,
    Positive,
    Seconds,
    Temperature,
    TopK,
    TopP,
    real_numbers,
)

Count = Annotated[int, Field(ge=0)]
Outcome = Annotated[float, Field(ge=0, le=1)]


class LoopArgs(BaseModel):
    """Batches, staleness, signal, evaluation and checkpoints: a base of ``TrainerArgs``."""

    model_config = STRICT
    _numbers = real_numbers()

    max_steps: Positive = 100
    """Training steps."""
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    """Rollouts in one step."""
    rollouts_per_example: Annotated[int, Field(ge=2)] = 8
    """Rollouts of one task in a step; advantages are relative to them."""
    num_substeps: Positive = 1
    """Optimizer steps that a batch is split into, by whole groups."""
    num_iterations: Positive = 1
    """How often a batch is trained on; more than once needs a loss that clips."""
    stream_minibatches: bool | None = None
    """Train on groups as they finish, while others are still running; the gradient is the same. On
    by default if the engine is a separate server, without `deterministic`.
    """
    max_steps_off_policy: Count | None = None
    """Steps that generation may run ahead of training: the most training steps that a token's
    weights are behind. 0 is exactly on-policy. By default 1 where the engine is a server of its
    own, and 0 where it cannot generate while the model is trained, or with `deterministic`."""
    max_concurrent: Positive = 64
    """Maximum number of concurrent rollouts."""
    deterministic: bool = False
    """Compute so that a log-probability has the same bits whatever else is in the batch, in the
    embedded engine and in the trainer: float32 on a CPU, with one thread. A vLLM server, on a GPU,
    is started with VLLM_BATCH_INVARIANT=1."""
    max_error_rate: Outcome = 0.25
    """Share of a step's rollouts that may fail before the run stops."""

    overlong_prompts: Literal["skip", "error"] = "skip"
    """A task whose first prompt is longer than max_prompt_len is left out, or ends the run."""
    max_refill: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Groups whose rewards are all equal are replaced by groups of fresh tasks, at most this share
    of a batch's groups, rounded, in a step; 0 replaces none."""
    oversample: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """Rollouts started of a task, over rollouts_per_example; once that many have ended, the slowest
    are stopped. More than 1 prefers short rollouts."""
    min_group_size: Annotated[int, Field(ge=2)] = 2
    """Scored rollouts below which a group is not trained on."""
    rest_easy: Count = 0
    """Epochs that a task rests after its group's outcomes were all high."""
    rest_hard: Count = 0
    """Epochs that a task rests after its group's outcomes were all low."""
    easy_outcome: Outcome = 1.0
    """A group is easy if each of its outcomes is at least this."""
    hard_outcome: Outcome = 0.0
    """A group is hard if each of its outcomes is at most this."""

    eval_strategy: Literal["no", "steps"] = "steps"
    """`steps`: before the first step, every `eval_steps`, and after the last."""
    eval_steps: Positive = 50
    """Steps between evaluations."""
    eval_examples: Positive = 64
    """Held-out tasks in an evaluation."""
    eval_rollouts_per_example: Positive = 1
    """Rollouts of one held-out task in an evaluation; with more than one, pass@k is estimated."""
    eval_temperature: Temperature | None = None
    """Sampling temperature of evaluations; 0 is greedy. By default `temperature`."""
    eval_top_p: TopP | None = None
    """Nucleus mass in evaluations; by default `top_p`."""
    eval_top_k: TopK | None = None
    """Likeliest tokens kept in evaluations; by default `top_k`."""
    eval_min_p: MinP | None = None
    """Share of the likeliest token's probability below which evaluations drop a token; by default
    `min_p`."""
    eval_max_tokens: Positive | None = None
    """Tokens sampled in one turn of an evaluation at most; by default `max_tokens`."""
    eval_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of max_concurrent that an evaluation may take from training rollouts; it may also use
    slots that these leave free.
    """
    save_total_limit: Positive = 3
    """Number of newest checkpoints to keep, in addition to the best by held-out reward."""
    sample_steps: Positive = 10
    """Steps between conversations shown on the terminal."""
    learned_groups: Count = 2
    """Groups of a step whose advantages, trainer's log-probabilities, ratios and clips are written
    down token by token, for `vf-rl view`; 0 writes none."""
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    """Only 1, which is off: the trainer does not compute another penalty, and refuses it."""
    stall_timeout: Seconds = 300.0
    """Seconds without any progress after which the run reports what waits for what."""

    @property
    def groups_per_step(self) -> int:
        """Groups in a batch."""
        return self.batch_size // self.rollouts_per_example

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps in a training step."""
        return self.num_substeps * self.num_iterations

    def evaluates_after(self, step: int) -> bool:
        """Return whether a held-out evaluation is due after so many steps."""
        return self.eval_strategy == "steps" and (
            step == self.max_steps or step % self.eval_steps == 0
        )

    def check_loop(self, changed: set[str]) -> None:
        """Refuse settings that contradict each other.

        Args:
            changed: Names of the settings that are not at their default.

        Raises:
            ValueError: If settings contradict each other.
        """
        groups, rest = divmod(self.batch_size, self.rollouts_per_example)
        if rest:
            near = max(1, round(self.batch_size / self.rollouts_per_example))
            raise ValueError(
                f"batch_size = {self.batch_size} is not a multiple of rollouts_per_example = "
                f"{self.rollouts_per_example}; try batch_size = {near * self.rollouts_per_example}"
            )
        if groups % self.num_substeps:
            raise ValueError(
                f"num_substeps = {self.num_substeps} does not divide the {groups} groups of a "
                "batch (batch_size / rollouts_per_example)"
            )
        if self.min_group_size > self.rollouts_per_example:
            raise ValueError(
                f"min_group_size = {self.min_group_size} is more than rollouts_per_example = "
                f"{self.rollouts_per_example}, so no group would ever be trained on; lower it"
            )
        if self.easy_outcome <= self.hard_outcome:
            raise ValueError(
                f"easy_outcome = {self.easy_outcome:g} must be above hard_outcome = "
                f"{self.hard_outcome:g}"
            )
        for threshold, rest_name in (("easy_outcome", "rest_easy"), ("hard_outcome", "rest_hard")):
            if threshold in changed and not getattr(self, rest_name):
                raise ValueError(f"{threshold} is set, but only {rest_name} reads it; set both")

    @field_validator("repetition_penalty")
    @classmethod
    def _is_off(cls, penalty: float) -> float:
        if penalty != 1.0:
            raise ValueError(
                "it changes the logits by what was said before, which the trainer does not "
                "compute: leave it at 1. top_p, top_k and min_p are computed, and vf-rl eval takes "
                "a penalty"
            )
        return penalty
