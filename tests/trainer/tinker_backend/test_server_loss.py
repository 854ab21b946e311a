"""Which loss of the API has the gradient of a loss here."""

from __future__ import annotations

from typing import Any

import pytest

from vf.trainer.settings.config import TrainerArgs
from vf.trainer.tinker_backend.server_loss import ServerLoss, server_loss

TRUNCATED = {"importance_sampling_mode": "token_truncate", "importance_sampling_clip_max": 3.0}
CLIPS = {"clip_low_threshold": 0.75, "clip_high_threshold": 1.5}


@pytest.mark.parametrize(
    ("args", "first", "expected"),
    [
        ({}, True, ServerLoss("importance_sampling")),
        ({"loss_fn": "ppo", "clip_low": 0.25, "clip_high": 0.5}, False, ServerLoss("ppo", CLIPS)),
        (
            {"loss_fn": "cispo", "clip_low": 0.25, "clip_high": 0.5},
            True,
            ServerLoss("cispo", CLIPS),
        ),
        (
            TRUNCATED,
            True,
            ServerLoss("cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": 3.0}),
        ),
        (TRUNCATED, False, None),
        (TRUNCATED | {"loss_fn": "dro"}, True, None),
        ({"importance_sampling_mode": "token_mask"}, True, None),
        ({"loss_fn": "ppo", "dual_clip": 3.0}, True, None),
        ({"loss_fn": "gspo"}, True, None),
    ],
)
def test_the_loss_of_the_api(args: dict[str, Any], first: bool, expected: Any) -> None:
    assert server_loss(TrainerArgs(**args), None, first=first) == expected


def test_a_function_is_computed_here() -> None:
    assert server_loss(TrainerArgs(), lambda arrays: arrays.logprobs, first=True) is None
