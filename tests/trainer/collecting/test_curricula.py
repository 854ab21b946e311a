"""Curricula: what they choose, what they remember, and how they are found."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.runtime.seeding import derive_seed
from vf.trainer.collecting import curriculum as finding
from vf.trainer.collecting.curricula import League, Stages, SuccessRate, Uniform
from vf.trainer.collecting.curriculum import make_curriculum
from vf.trainer.collecting.task_cursor import TaskCursor
from vf.trainer.run.run_environment import RunEnvironment
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.settings.environments import EnvConfig

DRAWS = 20_000


def tasks_of(count: int, **info: Any) -> list[vf.Task]:
    return [
        vf.Task(f"t{n}", "?", info={key: f(n) for key, f in info.items()}) for n in range(count)
    ]


def cursor(tasks: Sequence[vf.Task], curriculum: str, seed: int = 0, **args: Any) -> TaskCursor:
    own = args.pop("curriculum_args", {})
    settings = EnvConfig(id="e", curriculum=curriculum, curriculum_args=own)
    made = TrainerArgs(seed=seed, **args)
    return TaskCursor(RunEnvironment("e", settings, vf.Environment(), made, tasks))


def test_uniform_is_what_runs_have_always_had() -> None:
    tasks, made = tasks_of(7), cursor(tasks_of(7), "uniform", seed=3)
    expected = []
    for epoch in range(3):
        order = list(range(7))
        random.Random(derive_seed(3, "epoch", epoch)).shuffle(order)
        expected += [tasks[place].id for place in order]
    assert [made.draw().task.id for _ in range(21)] == expected


def test_success_rate_draws_in_proportion_to_the_variance_of_an_outcome() -> None:
    tasks = tasks_of(4)
    made = SuccessRate(tasks, seed=1, floor=0.1, memory=0.5)
    made.observe(tasks[0], [0.0] * 8)
    made.observe(tasks[0], [0.0] * 8)
    made.observe(tasks[1], [1.0, 0.0] * 4)
    made.observe(tasks[2], [1.0] * 7 + [0.0])
    # Independently: s and n with the earlier group's counting half, then Laplace's estimate.
    rates = [(0 + 1) / (12 + 2), (4 + 1) / (8 + 2), (7 + 1) / (8 + 2), 1 / 2]
    weights = [0.1 + 0.9 * 4 * rate * (1 - rate) for rate in rates]
    found = Counter(made.choose(number).id for number in range(DRAWS))
    chi = sum(
        (found[task.id] - DRAWS * w / sum(weights)) ** 2 / (DRAWS * w / sum(weights))
        for task, w in zip(tasks, weights, strict=True)
    )
    assert chi < 16.27, "the 0.1 % point with three degrees of freedom"
    assert found["t1"] > 2 * found["t0"]


@pytest.mark.parametrize(
    ("weighting", "weigh"),
    [
        ("hard", lambda p: (1 - p) ** 2),
        ("even", lambda p: 4 * p * (1 - p)),
        ("uniform", lambda p: 1),
    ],
)
def test_a_league_draws_opponents_by_the_results_against_them(weighting: str, weigh: Any) -> None:
    tasks = tasks_of(9, opponent=lambda n: ("weak", "equal", "strong")[n % 3])
    made = League(tasks, seed=2, weighting=weighting, floor=0.1, memory=0.5)
    made.observe(tasks[0], [1.0] * 4)
    made.observe(tasks[3], [1.0] * 4)
    made.observe(tasks[2], [0.5, 0.0, 0.0, 0.5])
    rates = {"weak": (6 + 1) / (6 + 2), "equal": 1 / 2, "strong": (1 + 1) / (4 + 2)}
    weights = {name: 0.1 + 0.9 * weigh(rate) for name, rate in rates.items()}
    drawn = [made.choose(number) for number in range(DRAWS)]
    found = Counter(task.info["opponent"] for task in drawn)
    total = sum(weights.values())
    chi = sum((found[n] - DRAWS * w / total) ** 2 / (DRAWS * w / total) for n, w in weights.items())
    assert chi < 13.82, "the 0.1 % point with two degrees of freedom"
    assert {task.id for task in drawn} == {task.id for task in tasks}


def test_a_league_knows_opponents_that_are_numbers() -> None:
    tasks = tasks_of(4, opponent=lambda n: n % 2)
    made = League(tasks, seed=0, floor=0.01)
    made.observe(tasks[0], [1.0] * 50)  # beaten, so it hardly comes any more
    again = League(tasks, seed=0, floor=0.01)
    again.load(json.loads(json.dumps(made.state())))
    for each in (made, again):
        found = Counter(each.choose(number).info["opponent"] for number in range(400))
        assert found[1] > 10 * found[0]


@pytest.mark.parametrize("curriculum", ["uniform", "success_rate", "stages", "league"])
def test_a_resumed_curriculum_draws_what_the_unbroken_one_would(curriculum: str) -> None:
    tasks = tasks_of(9, level=lambda n: n // 3)
    own = {"stages": {"by": "level", "window": 2}, "league": {"by": "level"}}.get(curriculum, {})
    rng = random.Random(5)
    made = cursor(tasks, curriculum, curriculum_args=own, rest_easy=1)
    for _ in range(12):
        draw = made.draw()
        made.observe(draw, [float(rng.random() < 0.8) for _ in range(4)])
    again = cursor(tasks, curriculum, curriculum_args=own, rest_easy=1)
    again.load(json.loads(json.dumps(made.state())))
    assert [again.draw() for _ in range(40)] == [made.draw() for _ in range(40)]


def test_what_may_come_is_seen_ahead_without_being_drawn() -> None:
    made = cursor(tasks_of(8), "success_rate")
    coming = [task.id for task in made.next(5)]
    assert coming == [made.draw().task.id for _ in range(5)]


def test_tasks_that_rest_or_are_left_out_are_passed_over() -> None:
    made = cursor(tasks_of(4), "success_rate", rest_easy=3)
    made.leave_out("t0")
    draw = next(d for d in iter(made.draw, None) if d.task.id == "t1")
    made.observe(draw, [1.0, 1.0])
    rests = [made.draw() for _ in range(40)]
    within = [d.task.id for d in rests if d.epoch <= draw.epoch + 3]
    assert within
    assert {"t0", "t1"}.isdisjoint(within)
    assert "t1" in [d.task.id for d in rests], "it returns"
    assert "t0" not in [d.task.id for d in rests]


def test_stages_begin_once_the_one_before_is_learned() -> None:
    tasks = tasks_of(6, level=lambda n: ["easy", "hard"][n % 2])
    made = Stages(tasks, 0, by="level", threshold=0.75, window=2)
    easy, hard = tasks[0], tasks[1]
    assert {made.choose(n).info["level"] for n in range(20)} == {"easy"}
    assert made.observe(easy, [1.0, 0.0]) is None
    assert made.observe(hard, [1.0, 1.0]) is None, "a task of another stage says nothing"
    assert made.observe(easy, [1.0, 0.8]) is None, "0.7 is not enough"
    said = made.observe(easy, [1.0, 0.2])  # 0.75
    assert said is not None
    assert "stage 2 of 2 begins, level = 'hard'" in said
    assert {made.choose(n).info["level"] for n in range(20)} == {"hard"}
    assert made.observe(hard, [1.0, 1.0]) is None
    assert made.observe(hard, [1.0, 1.0]) is None, "the last one does not end"


def test_stages_come_in_the_order_that_is_given() -> None:
    tasks = tasks_of(6, level=lambda n: n % 3)
    made = Stages(tasks, 0, by="level", stages=[2, 0], window=1)
    assert made.choose(0).info["level"] == 2
    made.observe(tasks[2], [1.0])
    assert made.choose(0).info["level"] == 0


MINE = '''
class Last:
    """Always the task of a number."""

    def __init__(self, tasks, seed, which=-1):
        self.tasks, self.which, self.seen = tasks, which, []

    def choose(self, number):
        return self.tasks[self.which]

    def observe(self, task, outcomes):
        self.seen.append([task.id, *outcomes])

    def state(self):
        return {"seen": self.seen}

    def load(self, state):
        self.seen = state["seen"]


class Foreign(Last):
    def choose(self, number):
        import vf
        return vf.Task("t0", "another")


class Broken(Last):
    def choose(self, number):
        return 1 / 0


class Lacking:
    def __init__(self, tasks, seed):
        pass
'''


def test_ones_own_is_found_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "my_choice.py"
    path.write_text(MINE)
    made = cursor(tasks_of(3), f"{path}:Last", curriculum_args={"which": 1})
    assert [made.draw().task.id for _ in range(3)] == ["t1"] * 3
    made.observe(made.draw(), [0.5])
    assert made.state()["curriculum"] == {"seen": [["t1", 0.5]]}
    with pytest.raises(vf.VfError, match=r"env.curriculum = .*Foreign.* was not given"):
        cursor(tasks_of(3), f"{path}:Foreign").draw()
    with pytest.raises(vf.VfError, match="choose raised ZeroDivisionError"):
        cursor(tasks_of(3), f"{path}:Broken").draw()
    with pytest.raises(vf.ConfigError, match=r"has no method choose: see vf\.Curriculum"):
        cursor(tasks_of(3), f"{path}:Lacking")
    made.leave_out("t1")
    with pytest.raises(vf.ConfigError, match="chooses only tasks whose first prompts are longer"):
        made.draw()


def test_an_installed_one_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    target = "vf.trainer.collecting.curricula:Uniform"
    points = EntryPoints([EntryPoint("theirs", target, finding.ENTRY_POINT_GROUP)])
    monkeypatch.setattr(finding, "entry_points", lambda group: points)
    assert isinstance(make_curriculum("theirs", {}, tasks_of(2), 0), Uniform)


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("sucess_rate", {}, "env.curriculum = 'sucess_rate': unknown. Did you mean 'success_rate'"),
        ("success_rate", {"flor": 0.1}, "env.curriculum_args: there is no 'flor'. Did you mean"),
        ("success_rate", {"floor": 0.0}, "env.curriculum_args.floor = 0.0: must be a number above"),
        ("success_rate", {"memory": 1.5}, "env.curriculum_args.memory = 1.5: must be a number"),
        ("stages", {}, "env.curriculum_args: missing a required argument: 'by'"),
        ("league", {"by": "levl"}, "by = 'levl': task 't0' has no such key in its info. Did you"),
        ("league", {"by": "level", "weighting": "hrad"}, "Did you mean 'hard'"),
        ("stages", {"by": "levl"}, "by = 'levl': task 't0' has no such key in its info. Did you"),
        (
            "stages",
            {"by": "level", "threshold": 1.2},
            "env.curriculum_args.threshold = 1.2: must be a number above 0 to 1",
        ),
        ("stages", {"by": "level", "threshold": [0.5] * 3}, "there are 3 for 2 stages; give one"),
        ("stages", {"by": "level", "stages": [7]}, "stages: no task has info['level'] = 7; known"),
        ("stages", {"by": "level", "window": 0}, "window = 0: must be a number of groups"),
        ("uniform", {"floor": 1}, "'uniform' takes: no arguments"),
        ("no.such:Thing", {}, "env.curriculum"),
    ],
)
def test_a_bad_curriculum_is_named(name: str, args: dict[str, Any], said: str) -> None:
    with pytest.raises(vf.ConfigError) as error:
        cursor(tasks_of(4, level=lambda n: n % 2), name, curriculum_args=args)
    assert said in str(error.value)
