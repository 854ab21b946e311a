"""What follows from how generation and training overlap."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.configs import configured
from vf.trainer.settings.overlap import bounded, steps_ahead, streams


@pytest.mark.parametrize(
    ("engine", "args", "mode"),
    [
        ("vllm", {}, "token_truncate"),
        ("vllm", {"loss_fn": "ppo"}, "token_truncate"),
        ("vllm", {"max_steps_off_policy": 0}, None),
        ("vllm", {"importance_sampling_mode": "off"}, "off"),
        ("vllm", {"importance_sampling_mode": "sequence_mask"}, "sequence_mask"),
        ("vllm", {"loss_fn": "cispo"}, None),
        ("embedded", {}, None),
        ("embedded", {"max_steps_off_policy": 2}, "token_truncate"),
    ],
)
def test_where_generation_runs_ahead_weights_are_bounded(
    engine: str, args: dict[str, Any], mode: str | None
) -> None:
    found = bounded(configured(args, inference={"engine": engine}))
    assert found.args.importance_sampling_mode == mode
    assert found.args.importance_sampling_clip_max == 2.0


@pytest.mark.parametrize(("deterministic", "expected"), [(False, (1, True)), (True, (0, False))])
def test_by_default_timing_decides_nothing_with_deterministic(
    deterministic: bool, expected: tuple[int, bool]
) -> None:
    config = configured({"deterministic": deterministic}, inference={"engine": "vllm"})
    assert (steps_ahead(config), streams(config)) == expected
