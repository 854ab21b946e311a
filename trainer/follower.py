"""What every trainer process except rank 0 does: hold the model, and follow rank 0."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from operator import attrgetter

import torch

from vf.runtime.errors import VfError
from vf.trainer.learning.policy import Policy
from vf.trainer.learning.ranks import Accumulate, Finish, Load, Stop, Together
from vf.trainer.saving.checkpoint import load_checkpoint
from vf.trainer.settings.config import Config

GRACE_SECONDS = 10.0


def follow(config: Config) -> None:
    """Take part in the updates of rank 0 until it sends ``Stop``. Writes nothing.

    Args:
        config: The run's settings, the same as rank 0's.

    Raises:
        ConfigError: The model or a checkpoint cannot be loaded.
        TrainingError: Rank 0 or another process is gone.
    """
    from accelerate.utils import set_seed

    set_seed(config.args.seed)
    try:
        _follow(Policy(config.model, config.args))
    except VfError:
        # Rank 0 most likely hit the same error, or caused it, and reports it. The launcher then
        # ends this process; if this one exited first, rank 0's message would be lost.
        time.sleep(GRACE_SECONDS)
        raise


def _follow(policy: Policy) -> None:
    while True:
        command = policy.ranks.listen()
        match command:
            case Stop():
                policy.ranks.stop()
                return
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
