"""An environment as a run has it, without a config or a preflight."""

from __future__ import annotations

import vf
from vf.inference.model import Model
from vf.trainer.collecting.runners import InProcess
from vf.trainer.run.run_environment import RunEnvironment
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.settings.environments import EnvConfig


def in_a_run(environment: vf.Environment, args: TrainerArgs, name: str = "env") -> RunEnvironment:
    """The environment with all its tasks, as the only one or one of several."""
    tasks, held_out = [*environment.tasks("train")], [*environment.tasks("eval")]
    return RunEnvironment(name, EnvConfig(id=name), environment, args, tasks, held_out)


def in_process(environment: vf.Environment, model: Model, name: str = "env") -> InProcess:
    """What runs its rollouts in this process."""
    return InProcess({name: (environment, model)})
