"""The plan of a run: what preflight has checked and worked out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vf.environments.environment import Environment
from vf.inference.rendering.renderer import Renderer
from vf.traces.task import Task
from vf.trainer.run.first_prompts import FirstPrompts
from vf.trainer.settings.config import Config


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked run: what it is made of, and what it will take.

    Attributes:
        config: The settings.
        environment: Where the model acts.
        renderer: Chat template and parser.
        tasks: The train split, with the tasks that are left out.
        eval_tasks: The held-out tasks to evaluate on; empty if there is no evaluation.
        probe_ids: The first train task's prompt, which the engine is probed with.
        prompts: What is known of the tasks' first prompts.
        parameters: Parameters of the model.
        hidden_size: Width of the model.
        memory: Bytes of a trainer process at its peak, by purpose, as predicted.
        template: What the chat template makes of conversations, in one line.
        overlong: Ids of the train tasks whose first prompts were found to be too long.
        left_out: How many tasks are left out because of that, in one line; empty if none is.
        budget: How ``micro_batch_tokens = "auto"`` was found, in one line; empty if it is a number.
    """

    config: Config
    environment: Environment
    renderer: Renderer
    tasks: Sequence[Task]
    eval_tasks: Sequence[Task]
    probe_ids: list[int]
    prompts: FirstPrompts
    parameters: int
    hidden_size: int
    memory: dict[str, int]
    template: str
    overlong: Sequence[str] = ()
    left_out: str = ""
    budget: str = ""
