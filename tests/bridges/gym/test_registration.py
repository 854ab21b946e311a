"""Ids in Gymnasium: whose, when, and what it costs to have them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import gymnasium
import pytest
from gymnasium.error import NameNotFound

import vf
from tests.test_public_surface import fresh, loaded_after
from vf.bridges.gym import registration
from vf.bridges.gym.registration import gymnasium_id, register_all, register_gymnasium

LIGHT = {"vf.environments", "vf.bridges.gym", "vf.bridges.gym.registration"}


@pytest.mark.parametrize(
    "imports",
    ["import vf, gymnasium", "import gymnasium, vf", "import vf, gymnasium.spaces, gymnasium"],
)
def test_the_order_of_the_imports_does_not_matter(imports: str) -> None:
    code = (
        f"{imports}\nimport sys\nassert 'vf/GuessNumber-v0' in gymnasium.registry\n"
        "assert not any('_Watcher' in repr(finder) for finder in sys.meta_path)\n"
        "assert '_Watcher' not in repr(gymnasium.__spec__.loader)\n"
        "print(*[m for m in sys.modules if m.startswith('vf.')])"
    )
    loaded = set(fresh(code).split())
    assert {m for m in loaded if not m.startswith("vf.traces")} == LIGHT


def test_an_id_names_the_module_that_brings_it() -> None:
    code = "import gymnasium\nprint(gymnasium.make('vf:vf/GuessNumber-v0').reset(seed=0)[0])"
    assert fresh(code).startswith("I think of a whole number")


def test_looking_for_gymnasium_is_not_loading_it() -> None:
    code = (
        "import vf, sys, importlib.util\nassert importlib.util.find_spec('gymnasium')\n"
        "assert 'gymnasium' not in sys.modules\nimport gymnasium\n"
        "print('vf/Calculator-v0' in gymnasium.registry)"
    )
    assert fresh(code) == "True"


def test_vf_works_without_gymnasium_and_names_the_extra_where_it_is_needed() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None\nimport vf\nenv = vf.make('guess-number')\n"
        "try:\n    vf.make('gym', gymnasium_id='Taxi-v3')\n"
        "except vf.ConfigError as error:\n    print(error)"
    )
    assert "pip install 'vf-rl[gym]'" in fresh(code)
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
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: odd)
    register_all()
    assert gymnasium.registry.pop("vf/OddOne-v0").kwargs == {"environment": "odd one"}
    with pytest.raises(vf.ConfigError, match="letters and digits"):
        gymnasium_id("---")


def test_gymnasium_before_1_0_finds_its_plugin() -> None:
    [point] = [p for p in entry_points(group="gymnasium.envs") if p.name == "vf"]
    assert point.load() is registration.register_all
