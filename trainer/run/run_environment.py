"""One environment of a run, with its tasks and its own settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vf.environments.environment import Environment
from vf.traces.task import Task
from vf.trainer.run.first_prompts import FirstPrompts
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.settings.environments import EnvConfig


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """One environment of a run; a run has one, or a mixture of several.

    Attributes:
        name: Unique in the run.
        settings: The environment's table, ``[env]``.
        environment: Where the model acts.
        args: ``[trainer.args]`` as they are here.
        tasks: The train split, with the tasks that are left out.
        eval_tasks: The held-out tasks to evaluate on; empty if there is no evaluation.
        overlong: Ids of the train tasks whose first prompts were found to be too long.
        prompts: What is known of the tasks' first prompts; None if they were not measured.
        left_out: How many tasks are left out because of that, in one line; empty if none is.
        table: The table in the TOML, as messages name it.
    """

    name: str
    settings: EnvConfig
    environment: Environment
    args: TrainerArgs
    tasks: Sequence[Task]
    eval_tasks: Sequence[Task] = ()
    overlong: Sequence[str] = ()
    prompts: FirstPrompts | None = None
    left_out: str = ""
    table: str = "env"
