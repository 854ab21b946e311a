"""`[env]` and `[[env]]`: names, ratios, settings of their own, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vf
from vf.trainer.settings.config import Config, TrainerArgs
from vf.trainer.settings.environments import OWN
from vf.trainer.settings.load_config import load_config, overridden, parse_config
from vf.trainer.settings.write_config import HIDDEN, to_toml, without_secrets

TWO = """
model = "tiny"
[[env]]
id = "calculator"
args = { max_operand = 9 }
[[env]]
id = "calculator"
temperature = 0.5
[env.args]
max_operand = 20
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def parse(*envs: dict[str, Any], **args: Any) -> Config:
    listed = [{"id": "calculator", **env} for env in envs]
    return parse_config({"model": "tiny", "env": listed, "trainer": {"args": args}})[0]


def test_one_table_is_a_list_of_one() -> None:
    one, _ = parse_config({"model": "tiny", "env": {"id": "calculator"}})
    assert one == parse({})
    assert one.model_dump()["env"]["id"] == "calculator"
    assert '[env]\nid = "calculator"' in to_toml(one)


def test_several_are_read_overridden_and_written(tmp_path: Path) -> None:
    sets = ["env.0.args.max_operand=3", "env.1.temperature=0.7", "env.1.args.new=[1]"]
    config, notes = load_config(written(tmp_path, TWO), sets)
    assert notes == []
    assert [env.args for env in config.env] == [{"max_operand": 3}, {"max_operand": 20, "new": [1]}]
    assert config.args_of(config.env[1]).temperature == 0.7
    assert config.args_of(config.env[0]).temperature == 1.0
    assert overridden(sets) == {"env.0.args.max_operand", "env.1.temperature", "env.1.args.new"}
    assert load_config(written(tmp_path, to_toml(config)))[0] == config


def test_names_are_unique_and_short() -> None:
    config = parse(
        {}, {"name": "calculator-2"}, {}, {"id": "/some where/my env.py"}, {"id": "gym:Taxi-v3"}
    )
    names = ["calculator", "calculator-2", "calculator-3", "my env", "gym:Taxi-v3"]
    assert config.names == names


def test_relative_files_begin_at_the_toml(tmp_path: Path) -> None:
    text = 'model = "tiny"\n[[env]]\nid = "a b.py:E"\ncurriculum = "c.py:C"\n[[env]]\nid = "x"\n'
    config, _ = load_config(written(tmp_path, text))
    assert config.env[0].id == f"{tmp_path}/a b.py:E"
    assert config.env[0].curriculum == f"{tmp_path}/c.py:C"


def test_every_own_setting_replaces_that_of_the_run() -> None:
    other: dict[str, Any] = {
        "advantage": "rloo",
        "mask_truncated": True,
        "overlong_buffer": 8,
        "min_group_size": 3,
        "eval_temperature": 0.0,
    }
    numbers = {"top_p": 0.5, "min_p": 0.1, "credit_discount": 0.5, "overlong_penalty": 0.5}
    numbers |= {"easy_outcome": 0.9, "hard_outcome": 0.1, "rest_easy": 1, "rest_hard": 1}
    other |= numbers | {"temperature": 0.5, "top_k": 5}
    other["max_seq_len"] = 300
    own = other | {name: 200 for name in OWN if name not in other}
    config = parse(own, {}, credit="turn")
    there, here = config.args_of(config.env[0]), config.args_of(config.env[1])
    assert {name: getattr(there, name) for name in OWN} == own
    assert here == config.args
    assert all(getattr(here, name) != own[name] for name in OWN)
    assert set(OWN) <= set(TrainerArgs.model_fields)


def test_secrets_of_each_are_hidden() -> None:
    shown = without_secrets(parse({"args": {"api_key": "x"}}, {"curriculum_args": {"token": "y"}}))
    assert shown.env[0].args == {"api_key": HIDDEN}
    assert shown.env[1].curriculum_args == {"token": HIDDEN}


@pytest.mark.parametrize(
    ("envs", "said"),
    [
        ([{"ratio": 0}, {"ratio": 1}], "env.0.ratio = 0: Input should be greater than 0"),
        ([{}, {"ratio": -1.5}], "env.1.ratio = -1.5: Input should be greater than 0"),
        ([{"token_ratio": 0.0}, {"token_ratio": 1}], "env.0.token_ratio = 0.0: Input should be"),
        ([{"ratio": 1}, {"token_ratio": 1}], "env.0.ratio is a share of rollouts, and env.1.token"),
        ([{"ratio": 1}, {}], "env.1.ratio: missing, and env.0.ratio is set"),
        ([{"name": "a"}, {}, {"name": "a"}], "env.0.name and env.2.name are both 'a'"),
        ([{"name": " "}, {}], "env.0.name: ' ' must be a line of text"),
        ([{}, {"temprature": 1}], "env.1.temprature: unknown key. Did you mean 'temperature'"),
        ([{}, {"max_seq_len": 4096}], "env.1.max_seq_len = 4096 is more than trainer.args."),
        ([{}, {"max_prompt_len": 2048}], "env.1: max_prompt_len = 2048 leaves no room"),
        ([{}, {"hard_outcome": 1.0, "rest_hard": 1}], "env.1: easy_outcome = 1 must be above"),
        ([{"temperature": 0}, {}], "env.0.temperature = 0: Input should be greater than 0"),
        ([], "there is no environment; write an [env] table"),
    ],
)
def test_what_does_not_go_together_is_named(envs: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(vf.ConfigError) as error:
        parse(*envs)
    assert said in str(error.value)


def test_a_single_one_is_named_without_a_number() -> None:
    for env in ({"id": "calculator", "ratio": 0}, [{"id": "calculator", "ratio": 0}]):
        with pytest.raises(vf.ConfigError, match=r"env(\.0)?\.ratio = 0"):
            parse_config({"model": "tiny", "env": env})


@pytest.mark.parametrize("text", ["[env]\nid = 'a'\n[[env]]\nid = 'b'", "[[env]]\n[ env ]\n"])
def test_both_kinds_of_table_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(vf.ConfigError, match=r"\[env\] in line \d is the only environment of a"):
        load_config(written(tmp_path, f"model = 'tiny'\n{text}\n"))


@pytest.mark.parametrize("key", ["env.args.max_operand", "env.2.args.x", "env.-1.name"])
def test_one_of_several_is_named_by_its_number(tmp_path: Path, key: str) -> None:
    with pytest.raises(vf.ConfigError, match=r"there are 2 of 'env'; name one .* env.0 to env.1"):
        load_config(written(tmp_path, TWO), [f"{key}=1"])
