"""The procedurally generated problems of reasoning-gym, scored by its own scorers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vf.bridges.reasoning_gym.problems import Problems
from vf.bridges.reasoning_gym.scoring import scorer
from vf.environments.environment import Environment, Split
from vf.environments.generated import split_sizes
from vf.inference.models.scripted_model import Script
from vf.rubrics.rubric import Rubric
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, RubricError, ScoringDied, did_you_mean
from vf.runtime.extras import check_version, load
from vf.runtime.process_pool import InWorker, run_bounded
from vf.runtime.seeding import derive_seed
from vf.traces.task import Task
from vf.traces.trace import Trace

SUPPORTED = ("0.1.20", "0.2")
_TRAIN_SEEDS = 2**29  # those of the eval split begin at twice as much


class ReasoningGym(Environment):
    """Problems of one dataset of reasoning-gym, or of several mixed by its ``composite``.

    The prompt is the question, after one of reasoning-gym's system prompts, which ask for the
    answer between ``<answer>`` and ``</answer>``. The outcome is what the dataset's own
    ``score_answer`` gives for the last such answer (None if there is none), in a worker process.

    A problem is made from a seed and an index. ``Task.info`` holds ``dataset``, ``seed`` and
    ``index``, and it is made again to score it. No seed is in both splits, whatever their sizes,
    and the train split leaves out the questions that the eval split asks.

    Args:
        task: The dataset, such as ``"leg_counting"``, or ``"composite"`` with ``config =
            {"datasets": [{"name": "leg_counting", "weight": 2, "config": {...}}, ...]}``.
        config: Fields of its configuration, such as ``{"max_animals": 5}``.
        level: Use its curriculum's configuration at this level, from 0; ``config`` overrides it.
        system_prompt: The name of one of reasoning-gym's system prompts, or your own text; None for
            none.
        num_train: Problems in the train split, before those of the eval split are left out.
        num_eval: Problems in the eval split.
        seed: Seed of the problems.
        score_timeout: Seconds of processor time to score one answer. One that takes longer, or
            more memory than 1 GiB, is worth 0, unless no answer at all would take as much.

    Raises:
        ConfigError: If there is no such dataset, field or level, a value does not fit, or
            reasoning-gym is missing or of a version that is not supported.
    """

    max_turns = 1

    def __init__(
        self,
        task: str,
        config: Mapping[str, Any] | None = None,
        level: int | None = None,
        system_prompt: str | None = "default",
        num_train: int = 2000,
        num_eval: int = 200,
        seed: int = 0,
        score_timeout: float = 10.0,
    ) -> None:
        load("reasoning_gym", "reasoning-gym")
        check_version("reasoning-gym", "reasoning-gym", *SUPPORTED)
        sizes = split_sizes("reasoning-gym", num_train, num_eval)
        if num_train > _TRAIN_SEEDS // 2:
            raise ConfigError(f"reasoning-gym: num_train must be at most {_TRAIN_SEEDS // 2}")
        if not score_timeout > 0:
            raise ConfigError(f"reasoning-gym: score_timeout must be positive, got {score_timeout}")
        prompts = load("reasoning_gym.utils", "reasoning-gym").SYSTEM_PROMPTS
        if system_prompt is not None and " " not in system_prompt and system_prompt not in prompts:
            raise ConfigError(
                f"reasoning-gym: it has no system prompt {system_prompt!r}."
                f"{did_you_mean(system_prompt, prompts)} It has: {', '.join(prompts)}"
            )
        self.system_prompt = prompts.get(system_prompt, system_prompt)
        self.dataset = task
        self.score_timeout = score_timeout
        first = derive_seed(seed, "reasoning-gym") % (_TRAIN_SEEDS // 2)
        starts: dict[Split, int] = {"train": first, "eval": first + 2 * _TRAIN_SEEDS}
        self._problems = {
            split: Problems(task, config or {}, level, seed=starts[split], size=sizes[split])
            for split in starts
        }
        self._eval_questions: frozenset[str] | None = None
        self.rubric = Rubric(outcome=self.score_answer, metrics={"answered": self.answered})

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield the problems of a split, made one by one.

        Raises:
            ConfigError: If the dataset cannot make that many.
        """
        problems = self._problems[split]
        if split == "train" and self._eval_questions is None:
            held_out = self._problems["eval"]
            self._eval_questions = frozenset(
                held_out[index]["question"] for index in range(held_out.size)
            )
        excluded = self._eval_questions if split == "train" else None
        for index in range(problems.size):
            entry = problems[index]
            if not excluded or entry["question"] not in excluded:
                yield Task(
                    f"{split}-{index}",
                    entry["question"],
                    answer=entry["answer"],
                    info={"dataset": self.dataset, "seed": problems.seed, "index": index},
                )

    async def score_answer(self, trace: Trace) -> float:
        """What reasoning-gym's ``score_answer`` gives, in [0, 1].

        Raises:
            RubricError: If it cannot score its own answer, or this environment's arguments make
                another problem than the task's.
        """
        problems, entry = await call(self._problem, trace.task)
        dataset = problems.dataset_class, problems.config
        score = InWorker(scorer, *dataset, name=f"{problems.name}.score_answer")
        answer, limit = _extract(trace.reply), self.score_timeout
        try:
            value = await run_bounded(score, entry, answer, timeout=limit)
        except ScoringDied:  # the answer's doing, unless none at all does the same
            await run_bounded(score, entry, None, timeout=limit)
            value = 0.0
        return float(value)

    def answered(self, trace: Trace) -> float:
        """1 if the reply holds an answer between the tags, 0 otherwise."""
        return float(_extract(trace.reply) is not None)

    def _problem(self, task: Task) -> tuple[Problems, dict[str, Any]]:
        """Make a task's problem again."""
        for problems in self._problems.values():
            index = int(task.info.get("index", -1))
            if task.info.get("seed") == problems.seed and 0 <= index < problems.size:
                entry = problems[index]
                if entry["question"] == task.prompt:
                    return problems, entry
        raise RubricError(
            f"reasoning-gym: task {task.id!r} is no problem of this environment: make it with the "
            "arguments, and the version of reasoning-gym, that the task was made with"
        )

    def oracle(self, task: Task) -> Script | None:
        """Give the answer of the entry; some datasets have none."""
        return [f"<answer>{task.answer}</answer>"] if isinstance(task.answer, str) else None


def _extract(reply: str) -> str | None:
    answer: str | None = load("reasoning_gym.utils", "reasoning-gym").extract_answer(reply)
    return answer
