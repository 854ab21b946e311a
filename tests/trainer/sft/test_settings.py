"""The settings of a warm start."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from vf.runtime.errors import ConfigError
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.settings.write_config import to_toml
from vf.trainer.sft.settings import SftArgs, SftData, load_sft_config, parse_sft_config

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "configs" / "sft").glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=str)
def test_the_shipped_configs_are_valid_and_written_back_equal(path: Path, tmp_path: Path) -> None:
    config = load_sft_config(path, ["data.template_args.enable_thinking=false"])
    (tmp_path / "again.toml").write_text(to_toml(config))
    assert load_sft_config(tmp_path / "again.toml") == config


def test_no_setting_is_dead() -> None:
    """Every field is read somewhere outside of the config models."""
    read = {
        node.attr
        for path in [*(ROOT / "trainer/sft").glob("*.py"), ROOT / "trainer/commands/sft.py"]
        if path.name != "settings.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    # By `rows`, by `choose_folder`, and by `lora_config`.
    read |= {"micro_batch_size", "output_dir", "run_name", "lora_alpha"}
    assert {*SftArgs.model_fields, *SftData.model_fields} - read == set()


def test_settings_of_the_same_name_mean_the_same_as_in_a_training_run() -> None:
    shared = set(SftArgs.model_fields) & set(TrainerArgs.model_fields)
    other = {name for name in SftArgs.model_fields if name not in shared}
    assert other == {"num_epochs"}
    # A training run finds out what "auto" means; here there is nothing to find it out with.
    found_out = {"bf16", "gradient_checkpointing"}
    for name in shared - {"max_steps", "batch_size", "lr_scheduler_type"} - found_out:
        assert SftArgs.model_fields[name].default == TrainerArgs.model_fields[name].default


def test_a_bare_name_in_set_finds_its_table(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('model = "tiny"\n[data]\ntraces = ["x"]\n')
    config = load_sft_config(path, ["top_per_task=3", "batch_size=4", "model=other"])
    assert (config.data.top_per_task, config.args.batch_size, config.model) == (3, 4, "other")


def test_defaults_are_enough() -> None:
    config = parse_sft_config({"model": "tiny", "data": {"traces": ["x"]}})
    assert config.args.rows == config.args.batch_size


DATA = {"traces": ["x"]}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {},
        {"lerning_rate": 1},
        "lerning_rate: unknown key. Did you mean 'learning_rate'",
    ),
    ({"min_rewards": 1}, {}, "data.min_rewards: unknown key. Did you mean 'min_reward'"),
    ({"min_reward": 2}, {}, "data.min_reward = 2"),
    ({"traces": []}, {}, "data.traces = []"),
    (
        {},
        {"batch_size": 8, "micro_batch_size": 3},
        "micro_batch_size = 3 does not divide batch",
    ),
    ({}, {"max_steps": 4, "num_epochs": 2}, "max_steps and num_epochs both say how long to train"),
    ({}, {"use_lora": False, "lora_rank": 4}, "lora_rank is set, but use_lora = false"),
]


@pytest.mark.parametrize(("data", "args", "words"), REFUSED)
def test_a_wrong_setting_is_named(data: dict[str, Any], args: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_sft_config({"model": "tiny", "data": DATA | data, "trainer": {"args": args}})
    assert words in str(error.value)
