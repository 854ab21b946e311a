"""Real training on images: the embedded engine, a tiny model that sees."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.inference.vision_models import picture, save_family
from vf.environments.environment import Split
from vf.trainer.collecting.orchestrator import Queue
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.saving.checkpoint import Progress, read_progress, save_checkpoint


class Pictures(vf.Environment):
    """Two pictures, one after the other; how long the answers are is a matter of luck."""

    rubric = vf.Rubric(outcome=lambda trace: float(trace.completion_tokens % 2))
    max_turns = 2

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for seed in range(4):
            content = [picture(seed), "What is it?"]
            yield vf.Task(str(seed), [{"role": "user", "content": content}])

    def step(self, reply: vf.Message) -> vf.Step:
        return vf.Step([vf.Message.of("user", ["And this?", picture(9, 56, 40)])])


vf.register("test-seen", Pictures)


def test_two_steps_with_a_picture_in_every_turn(make_trainer: Any, tmp_path: Path) -> None:
    save_family("qwen3_vl", tmp_path / "model")
    settings = {
        "env": "test-seen",
        "model": str(tmp_path / "model"),
        "images": True,
        "learning_rate": 1e-3,
        "max_steps": 2,
    }
    trainer: RLTrainer = make_trainer(**settings)
    lines = [trainer.step() for _ in range(2)]
    assert any(0 < line["reward/mean"] < 1 for line in lines), lines
    assert all(line["rollouts/failed"] == 0 for line in lines)
    assert all(line["logprob_gap"] < 1e-4 for line in lines), lines
    files = (tmp_path / "run" / "traces").glob("*.jsonl")
    traces = [trace for file in files for trace in vf.TraceStore(file)]
    assert len(traces) == 32
    for trace in traces:
        [branch] = trace.branches
        shown = [image.read() for image in trace.images]
        assert [image.read() for image in branch.images] == shown[:2]  # the last is not answered

    # Rollouts that are ahead of training bring their images along in a checkpoint.
    policy, tokenizer = trainer.learner.policy, trainer.plan.renderer.tokenizer
    ahead = Progress(2, 0.0, queue=Queue({}, traces=traces[:2]))
    saved = save_checkpoint(tmp_path / "checkpoints", policy, tokenizer, ahead)
    restored = read_progress(saved).queue.traces
    shutil.rmtree(saved)
    for trace, same in zip(restored, traces, strict=False):
        assert trace.branches == same.branches
        for image, kept in zip(trace.held_images, same.held_images, strict=True):
            assert image.read() == kept.read()


def test_without_the_setting_images_are_refused(make_trainer: Any) -> None:
    with pytest.raises(vf.ConfigError, match=r"has images .*: set trainer.args.images = true"):
        make_trainer(env="test-seen")
    with pytest.raises(
        vf.ConfigError, match="of the type llama, of which no images are read by vf-rl's embedded"
    ):
        make_trainer(env="test-seen", images=True)
