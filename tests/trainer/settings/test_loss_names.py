"""What a misspelt loss is answered with."""

from __future__ import annotations

import pytest

from vf.runtime.errors import ConfigError
from vf.trainer.settings.load_config import parse_config


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gropo", "'grpo' is these settings: loss_fn = "),
        ("dapoo", "'dapo' is these settings: loss_fn = "),
        ("pppo", "Did you mean 'ppo'"),
        ("gsp", "Did you mean 'gspo'?"),
        ("nonsense", "Known: importance_sampling"),
    ],
)
def test_only_a_loss_is_suggested_as_one(name: str, said: str) -> None:
    args = {"loss_fn": name}
    with pytest.raises(ConfigError) as error:
        parse_config({"model": "tiny", "env": {"id": "x"}, "trainer": {"args": args}})
    assert f"there is no loss '{name}'. {said}" in str(error.value)
