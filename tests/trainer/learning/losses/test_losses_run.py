"""Everything at once in a running trainer, with its metrics."""

from __future__ import annotations

import math
from typing import Any

import pytest

from vf.runtime.errors import ConfigError
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.watching.plan_text import describe


@pytest.mark.slow
def test_a_run_with_all_of_it(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(
        loss_fn="gspo",
        loss_normalisation="sequence",
        advantage="rloo",
        credit="turn",
        credit_discount=0.9,
        overlong_buffer=4,
        mask_truncated=True,
        max_tokens=24,
        batch_size=32,
        num_substeps=2,
        entropy_coef=0.01,
        kl_penalty_coef=0.1,
        kl_penalty_type="advantage",
        reference_update_steps=3,
        learning_rate="auto",
        train_mlp=False,
    )
    lines = [trainer.step() for _ in range(3)]
    trained = [line for line in lines if line["tokens/trained"]]
    assert trained
    for line in trained:
        numbers = [line["kl_reference_v3"], line["kl_sample_train_v3"], line["clip_fraction"]]
        assert all(math.isfinite(number) for number in numbers)
        assert line["ratio/min"] <= line["ratio/p50"] <= line["ratio/max"]
        # The first optimizer step of a batch is on-policy; only the second can be off it.
        assert line["ratio/p50"] == pytest.approx(1.0, abs=0.05)
        assert 0.0 <= line["masked_fraction"] <= 1.0
        assert line["overlong/cost_mean"] >= 0.0
        assert line["alarm/kl"] in (0.0, 1.0)
    assert any(line["masked_fraction"] > 0.0 for line in lines)
    assert "learning rate 0.000142" in dict(describe(trainer.plan))["training"]


@pytest.mark.slow
@pytest.mark.parametrize("streams", [True, False])
def test_later_optimizer_steps_of_a_batch_know_what_it_began_with(
    make_trainer: Any, streams: bool
) -> None:
    """Two halves of a batch, each trained on twice: the old log-probabilities are of the first."""
    trainer: RLTrainer = make_trainer(
        loss_fn="ppo",
        importance_sampling_mode="token_mask",
        num_substeps=2,
        num_iterations=2,
        batch_size=32,
        stream_minibatches=streams,
        learning_rate=2e-2,
    )
    lines = [line for line in (trainer.step() for _ in range(3)) if line["tokens/trained"]]
    assert lines
    # The embedded engine computes as the trainer does, so only the policy's own ratio moves.
    assert max(line["kl_sample_train_v3"] for line in lines) > 1e-4
    for line in lines:
        assert line["kl_sample_old_v3"] == pytest.approx(0.0, abs=1e-6)
        assert line["importance_weight/mean"] == pytest.approx(1.0, abs=1e-3)
        assert line["bounded_fraction"] == 0.0


@pytest.mark.slow
@pytest.mark.gate
def test_rollouts_of_older_weights_are_bounded_by_default(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(max_steps=3, max_steps_off_policy=1, learning_rate=2e-2)
    trainer.train()
    lines = [line for line in trainer.folder.read_metrics() if line.get("tokens/trained")]
    assert {"importance_weight/mean", "bounded_fraction", "kl_sample_old_v1"} <= lines[-1].keys()
    assert all(line["importance_weight/mean"] <= 2.0 for line in lines)
    assert max(line["kl_sample_old_v3"] for line in lines) > 1e-5
    assert "importance weights: token_truncate at 2" in dict(describe(trainer.plan))["loop"]


def test_a_custom_loss_that_is_not_there_is_found_before_the_model_loads(make_trainer: Any) -> None:
    with pytest.raises(ConfigError, match=r"import_path.*no_such_losses"):
        make_trainer(loss_fn="custom", import_path="no_such_losses:mine")


def test_the_plan_remarks_on_a_rate_far_from_the_rule(make_trainer: Any) -> None:
    described = dict(describe(make_trainer(learning_rate=0.5).plan))
    assert "learning_rate = 0.5 is" in described["advice"]
