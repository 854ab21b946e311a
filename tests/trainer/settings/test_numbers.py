"""Every number of every table is finite, and no boolean or text is taken for a number."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

import vf
from vf.evaluation.eval_config import EvalConfig, Prices
from vf.runtime.errors import ConfigError
from vf.runtime.toml import _tables, read_toml
from vf.trainer.settings.config import Config
from vf.trainer.settings.load_config import parse_config
from vf.trainer.sft.settings import SftConfig


def holds(kind: Any, *wanted: Any) -> bool:
    return kind in wanted or any(holds(each, *wanted) for each in get_args(kind))


NUMBERS = {
    (table, name)
    for root in (Config, EvalConfig, SftConfig, Prices)
    for _, table in _tables(root)
    for name, field in table.model_fields.items()
    if holds(field.annotation, int, float) and not holds(field.annotation, Any)
}


def test_there_are_many() -> None:
    assert len(NUMBERS) > 150


@pytest.mark.parametrize("value", [True, math.inf, -math.inf, math.nan, "5"])
def test_every_number_is_checked(value: Any) -> None:
    def refused(table: type[BaseModel], name: str) -> bool:
        if value is True and holds(table.model_fields[name].annotation, bool):
            return True
        if value == "5" and holds(table.model_fields[name].annotation, str, Path):
            return True
        for given in (value, [value], {"x": value}):  # whichever the field takes
            try:
                table.model_validate({name: given})
            except ValidationError as error:
                if not any(name in problem["loc"] for problem in error.errors()):
                    return False
            else:
                return False
        return True

    wrong = [f"{table.__name__}.{name}" for table, name in NUMBERS if not refused(table, name)]
    assert wrong == []


def parse(**args: Any) -> None:
    parse_config({"model": "tiny", "env": {"id": "calculator"}, "trainer": {"args": args}})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_steps", True, "max_steps: must be a number, not true"),
        ("max_steps", "5", "max_steps: must be a number without quotes, not '5'"),
        ("betas", ["0.9", 0.9], "betas: must be a number without quotes, not '0.9'"),
        ("max_steps", 10**30, "max_steps: must be a whole number of at most 64 bits"),
        ("max_tokens", 2**63, "max_tokens: must be a whole number of at most 64 bits"),
        ("betas", [0.9, False], "betas: must be a number, not false"),
        ("temperature", math.inf, "temperature = inf: Input should be a finite number"),
        ("learning_rate", math.inf, "learning_rate"),
        ("learning_rate", 1e308, r"learning_rate = 1e\+308: .* less than or equal to 1"),
        ("lora_rank", 2**62, "lora_rank = .*: Input should be less than or equal to 8192"),
        ("seed", -1, "seed = -1: Input should be greater than or equal to 0"),
    ],
)
def test_a_wrong_number_is_named(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"trainer.args.{said}"):
        parse(**{name: value})


class Counts(vf.Environment):
    def __init__(self, most: int = 5, often: bool = False) -> None:
        self.most = most


def test_the_arguments_of_an_environment_are_checked() -> None:
    vf.register("counts-numbers", Counts)
    assert vf.make("counts-numbers", most=3, often=True)
    with pytest.raises(ConfigError, match="most = true: must be a number"):
        vf.make("counts-numbers", most=True)
    with pytest.raises(ConfigError, match="most = inf: must be a finite number"):
        vf.make("counts-numbers", most=math.inf)


@pytest.mark.parametrize("limit", [True, math.nan, "5"])
def test_an_environments_limits_are_numbers(limit: Any) -> None:
    environment = Counts()
    environment.timeout = limit
    with pytest.raises(ConfigError, match="timeout must be positive"):
        environment.check_settings()


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "tiny"', encoding="utf-8-sig")
    assert read_toml(file) == {"model": "tiny"}
