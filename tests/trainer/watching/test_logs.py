"""Where a run's logs go."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import vf
from vf.environments.environment import Split
from vf.trainer.rl_trainer import RLTrainer


class Shaky(vf.Environment):
    """Warns in every episode and fails in some."""

    max_turns = 1
    rubric = vf.Rubric(outcome=lambda trace: 0.5)

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(8):
            yield vf.Task(f"{split}-{index}", "Hello.")

    def step(self, reply: vf.Message) -> vf.Step:
        logging.getLogger("vf.environments.shaky").warning("the ground moves")
        if self.rng.randrange(6) == 0:
            raise KeyError("the database is gone")
        return vf.Step(terminated=True)


vf.register("test-shaky", Shaky)


def test_what_goes_wrong_in_an_environment_has_a_log_of_its_own(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(env="test-shaky", max_error_rate=1.0)
    trainer.step()
    failed = [trace for trace in trainer.folder.step_traces(1) if trace.error is not None]
    assert failed, "the draw must make some fail"
    for path in (trainer.folder.environment_log, trainer.folder.trainer_log):
        said = path.read_text()
        for trace in failed:
            assert f"task {trace.task.id} failed, in the environment: step raised" in said
        assert said.count("KeyError: 'the database is gone'\n") >= len(failed)  # the traceback
        assert "vf.environments.shaky: the ground moves" in said
    assert "engine" not in trainer.folder.environment_log.read_text()
