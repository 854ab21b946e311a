"""vf-rl's side of the learning benchmark: `RLTrainer` as `vf-rl` runs it, with its evaluation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vf.trainer.rl_trainer import RLTrainer
    from vf.trainer.settings.config import Config


def train_ours(pipe: Connection, config: Config, folder: Path, slices: Sequence[int]) -> None:
    """Train; the protocol is :func:`learning.in_turns`'s.

    On the clock is what `RLTrainer.train` does in every step: roll out, score, learn, publish,
    write traces, metrics and the report. Saving is not.
    """
    started = time.perf_counter()
    trainer = open_trainer(config, folder)

    from vf.trainer.watching.report import write_report

    with trainer:
        pipe.send(time.perf_counter() - started)
        for steps in slices:
            pipe.recv()
            times, rewards = [], []
            # The next step's rollouts shall not begin at the end of a slice, off the clock.
            trainer.args.max_steps = trainer.step_count + steps
            for _ in range(steps):
                before = time.perf_counter()
                metrics = trainer.step()
                trainer.folder.append_metrics(metrics)
                write_report(trainer.folder, trainer.plan)
                times.append(time.perf_counter() - before)
                rewards.append(metrics["reward/mean"])
            pipe.send((times, rewards, trainer.save() / "model"))


def evaluate(pipe: Connection, config: Config, folder: Path, adapters: Sequence[Path]) -> None:
    """Send the mean held-out reward of the model without an adapter, then with each of them.

    All by the evaluation that a run does, on the same tasks with the same seeds.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    with open_trainer(config, folder) as trainer:
        model = trainer.policy.model
        pipe.send(trainer.evaluate()["eval/reward/mean"])
        for number, adapter in enumerate(adapters, 1):
            state = load_file(adapter / "adapter_model.safetensors")
            if state.keys() != get_peft_model_state_dict(model).keys():
                raise RuntimeError(f"the adapter {adapter} is not of the same kind as ours")
            set_peft_model_state_dict(model, state)
            trainer.step_count = number  # names the file of the traces
            trainer.learner.publish(number)
            pipe.send(trainer.evaluate()["eval/reward/mean"])


def open_trainer(config: Config, folder: Path) -> RLTrainer:
    """Return a trainer that has just started."""
    from vf.trainer.preflight import preflight
    from vf.trainer.rl_trainer import RLTrainer
    from vf.trainer.run.run_folder import RunFolder

    plan, run = preflight(config), RunFolder(folder)
    run.create()
    return RLTrainer(plan, run)
