"""What every trainer process except rank 0 does: hold the model, and follow rank 0."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from operator import attrgetter

import torch

from vf.runtime.errors import VfError
from vf.trainer.learning.policy import Policy
from vf.trainer.learning.sharding.rank_commands import (
    Accumulate,
    Finish,
    Load,
    Save,
    Stop,
    Together,
)
from vf.trainer.saving.checkpoint import begin_part, load_checkpoint
from vf.trainer.settings.config import Config

GRACE_SECONDS = 10.0


def follow(config: Config) -> None:
    """Take part in the updates of rank 0 until it sends ``Stop``. Writes nothing.

    Args:
        config: The run's settings, the same as rank 0's.

    Raises:
        ConfigError: If the model or a checkpoint cannot be loaded.
        TrainingError: If rank 0 or another process is gone.
    """
    from accelerate.utils import set_seed

    set_seed(config.args.seed)
    try:
        take_part(Policy(config.model, config.args))
    except VfError:
        # Rank 0 most likely hit the same error, or caused it, and reports it. The launcher then
        # ends this process; if this one exited first, rank 0's message would be lost.
        time.sleep(GRACE_SECONDS)
        raise


def take_part(policy: Policy) -> None:
    """Follow rank 0 with a policy until it sends ``Stop``; see :func:`follow`."""
    saving: Future[None] | None = None
    while True:
        command = policy.ranks.listen()
        match command:
            case Stop():
                if saving is not None:
                    wait([saving])  # rank 0 reports what went wrong
                policy.ranks.stop()
                return
            case Save(path):
                if saving is not None:
                    wait([saving])
                saving = begin_part(path, policy)
            case Load(path):
                load_checkpoint(path, policy)
            case Accumulate(seed=seed):
                torch.manual_seed(seed)
                policy.add_gradient(command)
            case Together(path, args):
                result = attrgetter(path)(policy)(*args)
                if isinstance(result, Iterator):
                    deque(result, maxlen=0)
            case Finish(learning_rate):
                policy.take_step(learning_rate)
