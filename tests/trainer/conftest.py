"""A toy that a tiny model learns in seconds, a trainer for it, and where a real vLLM is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments.environment import Split
from vf.trainer.preflight import preflight
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.load_config import parse_config

TrainerFactory = Callable[..., RLTrainer]
VfRl = Callable[..., tuple[int, str, str]]

SMALL: dict[str, Any] = {
    "max_steps": 2,
    "batch_size": 8,
    "rollouts_per_example": 4,
    "max_tokens": 32,
    "max_prompt_len": 256,
    "max_seq_len": 384,
    "eval_examples": 4,
}
# One rollout at a time, which meets no other: such runs are equal to the last bit.
STEADY: dict[str, Any] = {"run_name": "run", "max_steps": 3, "batch_size": 16, "max_concurrent": 1}
STEADY |= {"learning_rate": 1e-3, "eval_strategy": "no", "save_steps": 1}


def small_run(path: Path, tables: str = "", **args: Any) -> Path:
    """Write the TOML of a run that takes seconds, with its folder ``runs`` beside it.

    Args:
        path: The file.
        tables: More tables.
        args: ``[trainer.args]``, over those of :data:`SMALL`.
    """
    settings = {**SMALL, "output_dir": str(path.parent / "runs"), **args}
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    path.write_text(f'model = "tiny"\nenv.id = "calculator"\n{tables}\n[trainer.args]\n{lines}')
    return path


def digits(trace: vf.Trace) -> float:
    """Share of the reply's characters that are even digits."""
    return sum(c in "02468" for c in trace.reply) / max(1, len(trace.reply))


def noise(trace: vf.Trace) -> float:
    """A reward that has nothing to do with the reply."""
    return random.Random(trace.seed).random()


class Digits(vf.Environment):
    """Reply with even digits. With ``shuffled``, the reward is noise and they only a metric."""

    max_turns = 1

    def __init__(self, shuffled: bool = False) -> None:
        self.rubric = vf.Rubric(outcome=noise if shuffled else digits, metrics={"digits": digits})

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(16):
            yield vf.Task(f"{split}-{index}", f"Say {index}.")


vf.register("test-digits", Digits)


@pytest.fixture
def make_trainer(tmp_path: Path) -> Iterator[TrainerFactory]:
    """Return a factory of running trainers; they are closed when the test ends."""
    with ExitStack() as stack:

        def make(run: str = "run", *, env: Any = "test-digits", **settings: Any) -> RLTrainer:
            model = settings.pop("model", "tiny")
            env_args = settings.pop("env_args", {})
            inference = settings.pop("inference", {})
            rollouts = settings.pop("rollouts", {})
            args = {
                "max_steps": 4,
                "batch_size": 16,
                "rollouts_per_example": 8,
                "max_tokens": 8,
                "max_prompt_len": 192,
                "max_seq_len": 384,
                "micro_batch_tokens": 4096,
                "learning_rate": 5e-3,
                "eval_strategy": "no",
                "max_steps_off_policy": 0,  # also with a server of its own: reproducible
                **settings,
            }
            raw = {
                "model": model,
                "env": {"id": env, "args": env_args} if isinstance(env, str) else env,
                "inference": inference,
                "rollouts": rollouts,
                "trainer": {"args": args},
            }
            folder = RunFolder(tmp_path / run)
            if folder.path.exists():
                folder.open()
            else:
                folder.create()
            config, _ = parse_config(raw)
            return stack.enter_context(RLTrainer(preflight(config), folder))

        yield make


@pytest.fixture
def vf_rl(capsys: pytest.CaptureFixture[str]) -> VfRl:
    """`vf-rl` in this process; returns its exit code, standard output and standard error."""
    from vf.trainer.commands.main import main

    def run(*argv: object) -> tuple[int, str, str]:
        try:
            code = main([*map(str, argv)])
        except SystemExit as ended:  # argparse's way out
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The TOML of a run that takes seconds, beside its folder ``runs``."""
    return small_run(tmp_path / "mine.toml")
