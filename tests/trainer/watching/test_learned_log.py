"""What is written down of the loss is what the loss was computed from, of the groups asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vf.traces.learned import Learned, learned_beside
from vf.trainer.learning.losses.policy_gradient import LossArrays, TokenLosses
from vf.trainer.learning.objective import Objective
from vf.trainer.rl_trainer import RLTrainer

Row = tuple[LossArrays, TokenLosses, int]


def watched(trainer: RLTrainer, monkeypatch: pytest.MonkeyPatch) -> list[list[Row]]:
    """Return what the loss gets and gives from here on: the rows of each optimizer step."""
    steps: list[list[Row]] = [[]]
    real = Objective._token_losses

    def spy(self: Objective, arrays: LossArrays) -> TokenLosses:
        losses = real(self, arrays)
        steps[-1] += [(arrays, losses, row) for row in range(len(arrays.loss_mask))]
        return losses

    monkeypatch.setattr(Objective, "_token_losses", spy)
    finish = trainer.policy.finish

    def finished(*args: Any) -> Any:
        steps.append([])
        return finish(*args)

    monkeypatch.setattr(trainer.policy, "finish", finished)
    return steps


def is_of(learned: Learned, row: Row) -> bool:
    """Return whether the line is the row: the same float32 at every trained token."""
    arrays, losses, at = row
    mask = arrays.loss_mask[at]
    size = len(learned.mask)
    if mask[:size].int().tolist() != learned.mask or mask[size:].any():
        return False

    def of(values: torch.Tensor) -> list[float]:
        return values[at][mask].detach().tolist()

    clipped = torch.zeros_like(arrays.loss_mask) if losses.clipped is None else losses.clipped
    pairs = [
        (learned.logprobs, of(arrays.logprobs)),
        (learned.advantages, of(arrays.advantages)),
        (learned.log_ratios, of(arrays.log_ratio)),
        (learned.clipped, of(clipped.int())),
    ]
    return all(one == other for one, other in pairs)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_fn": "ppo", "clip_low": 0.0005, "clip_high": 0.0005, "num_iterations": 2},
        {"num_substeps": 2, "importance_sampling_mode": "token_truncate"},
        {"stream_minibatches": True, "micro_batch_size": 8},
    ],
)
def test_what_is_written_is_what_the_loss_used(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    trainer: RLTrainer = make_trainer(max_steps=1, learned_groups=2, **settings)
    steps = watched(trainer, monkeypatch)
    trainer.train()
    file = trainer.folder.step_traces(1).path
    traces = {trace.id: trace for trace in trainer.folder.step_traces(1)}
    found = learned_beside(file)
    origins = [origin for rollout in found if (origin := traces[rollout].origin)]
    assert len({origin.group for origin in origins}) == 2
    lines = [learned for each in found.values() for learned in each]
    updates = trainer.args.updates_per_step
    assert {each.update for each in lines} == set(range(1, updates + 1))
    for learned in lines:
        branch = traces[learned.rollout].branches[learned.branch]
        assert learned.mask == [0, *branch.loss_mask[1:]]
        assert any(is_of(learned, row) for row in steps[learned.update - 1])
    if "clip_low" in settings:
        assert any(any(each.clipped) for each in lines if each.update == 2)
    alike = [Learned.from_json(each.to_json()) for each in lines]
    assert alike == lines


@pytest.mark.slow
@pytest.mark.gate
def test_a_teachers_logprobs_are_written_where_there_is_one(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(max_steps=1, teacher_model="tiny", learned_groups=1)
    trainer.train()
    [*lines] = [
        learned
        for each in learned_beside(trainer.folder.step_traces(1).path).values()
        for learned in each
    ]
    assert lines
    for learned in lines:  # the model's own, before its first step
        assert learned.teacher_logprobs == pytest.approx(learned.logprobs, abs=1e-4)
        assert Learned.from_json(learned.to_json()) == learned


@pytest.mark.slow
def test_it_can_be_switched_off_and_moves_with_the_traces_it_is_about(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer("off", max_steps=1, learned_groups=0)
    trainer.train()
    assert not trainer.folder.learned.exists()
    trainer = make_trainer("on", max_steps=2, learned_groups=1)
    trainer.train()
    before = learned_beside(trainer.folder.step_traces(2).path)
    assert len({each.update for lines in before.values() for each in lines}) == 1
    trainer.folder.rewind(1)
    assert trainer.folder.step_learned(1).exists()
    assert not trainer.folder.step_learned(2).exists()
    [moved] = trainer.folder.traces.glob("superseded-*/step-000002.jsonl")
    assert learned_beside(moved) == before


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    traces = tmp_path / "traces" / "step-000001.jsonl"
    file = tmp_path / "learned" / "step-000001.jsonl"
    file.parent.mkdir()
    good = Learned("a", 0, 1, [0, 1, 1], [0.5, float("inf")], [-1.0, -2.0], [0.0, 0.1])
    line = good.to_json()
    bad = [b"{}\n", b"[1]\n", b"\xff\n", line.replace(b'"size": 3', b'"size": 900000000')]
    bad += [line.replace(b'"branch": 0', b'"branch": "x"'), line[:50]]
    file.write_bytes(b"".join([*bad[:-1], line, bad[-1]]))
    assert learned_beside(traces) == {"a": [good]}
    assert learned_beside(tmp_path / "other.jsonl") == {}
