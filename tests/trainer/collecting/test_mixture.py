"""The mixture: draws of several environments, numbered, shared out and resumed."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.trainer.collecting.test_step_rollouts import Say
from tests.trainer.run_environments import in_a_run
from vf.trainer.collecting.mixture import Mixture
from vf.trainer.run.run_environment import RunEnvironment
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.settings.environments import EnvConfig


def member(name: str, **own: Any) -> RunEnvironment:
    args = TrainerArgs(batch_size=8, rollouts_per_example=4)
    found = in_a_run(Say(), args, name)
    settings = EnvConfig(id=name, **own)
    return RunEnvironment(name, settings, Say(), args, found.tasks, found.eval_tasks)


def test_numbers_are_unique_and_rise_whoever_draws() -> None:
    made = Mixture([member("a", ratio=3), member("b", ratio=1)])
    numbers, names = [], Counter[str]()
    for _ in range(10):
        draws = made.draws(4)
        draws.append(made.draw("b"))
        draws.append(made.draw("a", instead=True))
        numbers += [draw.number for draw in draws]
        names.update(draw.environment for draw in draws[:4])
        assert all(draw.task in made.members[draw.environment].tasks for draw in draws)
    assert numbers == sorted(set(numbers))
    assert names == {"a": 30, "b": 10}


def test_a_mixture_of_one_numbers_as_runs_always_did() -> None:
    made = Mixture([member("a")])
    assert [draw.number for draw in made.draws(30)] == list(range(30))


def test_a_saved_mixture_draws_on() -> None:
    made = Mixture([member("a", token_ratio=1), member("b", token_ratio=2)])
    made.draws(5)
    again = Mixture([member("a", token_ratio=1), member("b", token_ratio=2)])
    again.load(json.loads(json.dumps(made.state())))
    assert again.draws(9) == made.draws(9)


def test_the_state_of_before_there_were_mixtures_is_read() -> None:
    made = Mixture([member("a")])
    made.load({"position": 7, "rests_through": {}, "left_out": {}})
    assert made.draw("a").number == 7


def test_numbers_do_not_repeat_once_an_environment_is_removed() -> None:
    made = Mixture([member("a"), member("b")])
    last = made.draws(20)[-1].number
    fewer = Mixture([member("a")])
    fewer.load(made.state())
    assert fewer.draw("a").number == last + 1
