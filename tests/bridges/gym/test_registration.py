"""Ids in Gymnasium: whose, when, and what it costs to have them."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import gymnasium
import pytest
from gymnasium.error import NameNotFound

import vf
from tests.test_public_surface import fresh, loaded_after
from vf.bridges.gym.registration import gymnasium_id, register_all, register_gymnasium

PAGE = (Path(__file__).parents[3] / "docs" / "gymnasium.md").read_text(encoding="utf-8")
HEAVY = {"vf.bridges.gym.as_gym", "vf.environments.bundled"}  # an id needs none of them


@pytest.mark.parametrize(
    "imports",
    [
        "import gymnasium, vf\nassert 'vf/Calculator-v0' not in gymnasium.registry\nimport vf.gym",
        "import vf.gym, gymnasium",
    ],
)
def test_importing_vf_gym_registers_the_environments_and_loads_none(imports: str) -> None:
    code = (
        f"{imports}\nimport sys\nassert 'vf/GuessNumber-v0' in gymnasium.registry\n"
        "print(*[m for m in sys.modules if m.startswith('vf.')])"
    )
    assert HEAVY & set(fresh(code).split()) == set()


def test_the_documented_id_names_the_module_that_registers_it() -> None:
    [id] = set(re.findall(r'gymnasium\.make\("(.*GuessNumber-v0)", high=100\)', PAGE))
    assert id == "vf.gym:vf/GuessNumber-v0"
    code = f"import gymnasium\nprint(gymnasium.make({id!r}).reset(seed=0)[0])"
    assert fresh(code).startswith("I think of a whole number")


@pytest.mark.slow
def test_vf_works_without_gymnasium_and_names_the_extra_where_it_is_needed() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None\nimport vf\nenv = vf.make('guess-number')\n"
        "try:\n    vf.make('gym', gymnasium_id='Taxi-v3')\n"
        "except vf.ConfigError as error:\n    print(error)\n"
        "try:\n    import vf.gym\nexcept vf.ConfigError as error:\n    print(error)"
    )
    assert fresh(code).count("pip install 'vf-rl[gym]'") == 2
    assert loaded_after("import vf; vf.GymEnvironment") == ""
    assert "gymnasium" not in fresh("import sys, vf; vf.GymEnvironment; print(*sys.modules)")


@pytest.mark.parametrize(
    ("id", "class_name", "expected"),
    [
        ("guess-number", "GuessNumber", "vf/GuessNumber-v0"),
        ("geo-qa", "GeoQA", "vf/GeoQA-v0"),
        ("my_env.two", "make_env", "vf/MyEnvTwo-v0"),
        ("2048", "", "vf/2048-v0"),
    ],
)
def test_names(id: str, class_name: str, expected: str) -> None:
    assert gymnasium_id(id, class_name) == expected


class Mine(vf.Environment):
    """One task, one turn."""

    max_turns = 1
    rubric = vf.Rubric(outcome=lambda trace: float(trace.reply == "yes"))

    def tasks(self, split: str) -> list[vf.Task]:
        return [vf.Task("0", "Say yes.")]


def test_ones_own_environment_gets_an_id() -> None:
    vf.register("test-gym-mine", Mine)
    with pytest.raises(NameNotFound):
        gymnasium.make("vf/TestGymMine-v0")
    assert register_gymnasium("test-gym-mine") == "vf/TestGymMine-v0"
    assert register_gymnasium("test-gym-mine") == "vf/TestGymMine-v0"
    env = gymnasium.make("vf/TestGymMine-v0")
    assert env.reset()[0] == "Say yes."
    assert env.step("yes")[1:4] == (1.0, True, False)
    env.close()
    vf.register("test_gym_mine", Mine)
    with pytest.raises(vf.ConfigError, match="is 'test-gym-mine'; rename one"):
        register_gymnasium("test_gym_mine")
    with pytest.raises(vf.ConfigError, match="there is no environment 'test-gym-mien'"):
        register_gymnasium("test-gym-mien")


def test_a_name_that_gymnasium_cannot_have_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [EntryPoint(name, "nowhere:Odd", "vf.environments") for name in ("---", "odd one")]
    monkeypatch.setattr("vf.bridges.gym.registration.entry_points", lambda **_: odd)
    register_all()
    assert gymnasium.registry.pop("vf/OddOne-v0").kwargs == {"environment": "odd one"}
    with pytest.raises(vf.ConfigError, match="letters and digits"):
        gymnasium_id("---")
