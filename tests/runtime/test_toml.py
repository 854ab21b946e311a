"""What messages about settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict

from vf.runtime.errors import ConfigError
from vf.runtime.parse import parse_json
from vf.runtime.toml import checked, read_toml


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 1


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner | None = None


def test_a_key_of_a_table_that_may_be_missing_is_named_in_full() -> None:
    with pytest.raises(ConfigError, match=r"^inner\.sise: unknown key\. Did you mean 'size'\?"):
        checked(Outer, {"inner": {"sise": 2}})


def test_a_file_from_a_windows_editor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b'\xef\xbb\xbfmodel = "tiny"\r\n[env]\r\nid = "calculator"\r\n')
    assert read_toml(path) == {"model": "tiny", "env": {"id": "calculator"}}


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes('model = "tiny"'.encode("utf-16"))
    with pytest.raises(ConfigError, match=r"run\.toml is not UTF-8 text: .* at byte 0"):
        read_toml(path)


def test_what_is_nested_too_deeply_is_an_error_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "deep.toml"
    file.write_text("a = " + "[" * 100_000 + "]" * 100_000)
    with pytest.raises(ConfigError, match=r"deep\.toml is not valid TOML"):
        read_toml(file)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json('{"a":' * 100_000)


class Rate(BaseModel):
    """A number, or a word in its place."""

    model_config = ConfigDict(allow_inf_nan=False)

    rate: float | Literal["auto"] | None = None
    names: dict[str, str | Literal[False]] = {}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"rate": float("inf")}, "rate = inf: Input should be a finite number or 'auto'."),
        ({"names": {"a": 1}}, "names.a = 1: Input should be a valid string or False."),
    ],
)
def test_a_value_that_fits_no_member_of_a_union_is_one_problem(
    raw: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(Rate, raw)
    assert str(caught.value) == said
