"""What Accelerate asks FSDP for, and what the trainer does not do."""

from __future__ import annotations

import pytest

from vf.runtime.errors import ConfigError
from vf.trainer.learning.sharding.fsdp import Fsdp


@pytest.mark.parametrize(
    ("version", "precision", "said"),
    [
        ("1", "no", "set fsdp_version: 2"),
        ("2", "fp16", "trainer.args.bf16 decides"),
        ("2", "bf16", "compute in float32"),
    ],
)
def test_impossible_settings_are_reported_with_a_fix(
    monkeypatch: pytest.MonkeyPatch, version: str, precision: str, said: str
) -> None:
    monkeypatch.setenv("FSDP_VERSION", version)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", precision)
    with pytest.raises(ConfigError, match=said):
        Fsdp()
