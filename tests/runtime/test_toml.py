"""What messages about settings say."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict

from vf.runtime.errors import ConfigError
from vf.runtime.toml import checked


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 1


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner | None = None


def test_a_key_of_a_table_that_may_be_missing_is_named_in_full() -> None:
    with pytest.raises(ConfigError, match=r"^inner\.sise: unknown key\. Did you mean 'size'\?"):
        checked(Outer, {"inner": {"sise": 2}})
