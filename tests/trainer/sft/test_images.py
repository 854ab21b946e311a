"""Warm starts of models that see, on traces with images."""

from __future__ import annotations

import copy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import vf
from tests.inference.test_engine_images import uncached
from tests.inference.vision_models import save_family
from tests.late import Late
from tests.trainer.sft.conftest import play, written
from tests.trainer.sft.test_training import prepare
from vf.inference.model_files import Checkpoint
from vf.inference.models.local_model import load_renderer
from vf.inference.rendering.renderer import Renderer
from vf.inference.settings import EmbeddedSettings
from vf.runtime.errors import ConfigError
from vf.traces.trace import Trace
from vf.trainer.sft.dataset import load_dataset, seen_images
from vf.trainer.sft.select import IGNORED, select
from vf.trainer.sft.settings import SftConfig, parse_sft_config

training = Late("vf.trainer.sft.training", "trl")


@pytest.fixture(scope="module")
def looked() -> list[Trace]:
    """Pictures that were read, with a look at a tile in between."""
    environment = vf.make("read-picture")
    return play(list(islice(environment.tasks("train"), 6)), environment)


@pytest.fixture
def seen(looked: list[Trace], tmp_path: Path) -> Path:
    return written(looked, tmp_path / "looked.jsonl")


def config(model: Path, traces: Path, **args: Any) -> SftConfig:
    return parse_sft_config(
        {
            "model": str(model),
            "data": {"traces": [str(traces)], "held_out": 0},
            "trainer": {"args": {"images": True, "batch_size": 2, "max_seq_len": 2048, **args}},
        }
    )


def render(model: Path) -> Renderer:
    return load_renderer(Checkpoint.find(str(model)), EmbeddedSettings(), sees=True)


@pytest.mark.trl
@pytest.mark.parametrize(("family", "use_lora"), [("qwen3_vl", True), ("qwen2_5_vl", False)])
def test_the_loss_is_that_of_the_models_own_pass_and_falls(
    family: str, use_lora: bool, seen: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    save_family(family, model)
    settings = config(model, seen, use_lora=use_lora, max_steps=6, learning_rate=1e-2)
    renderer = render(model)
    run = prepare(settings, renderer, tmp_path / "run")
    rows = load_dataset(training.train_file(run))
    assert len(rows) == 6
    assert {len(row["seen"]) for row in rows} == {2}

    loaded = training.load_trainable(settings)
    trainer = training.build_trainer(settings, loaded, run, renderer.tokenizer, renderer.vision)
    batch = trainer.data_collator([rows[0]])
    mine = float(trainer.compute_loss(trainer.model.eval(), batch))
    images = seen_images(rows[0]["seen"])
    plain = Checkpoint.find(str(model)).load(sees=True)
    scores = uncached(plain, renderer, rows[0]["input_ids"], images)
    labels = torch.tensor(rows[0]["labels"])[1:]
    learned = labels != IGNORED
    expected = -scores[:-1][learned].gather(1, labels[learned][:, None]).mean()
    assert mine == pytest.approx(float(expected), abs=1e-4)

    warmed = training.warm_start(settings, run, renderer)
    losses = [line["loss"] for line in run.read_metrics() if "loss" in line]
    assert losses[-1] < losses[0] - 0.1
    again = Checkpoint.find(str(warmed.model)).load(sees=True)
    before = dict(plain.named_parameters())
    changed = [name for name, now in again.named_parameters() if not now.equal(before[name])]
    assert changed
    assert not [name for name in changed if "visual" in name]
    assert render(warmed.model).vision is not None


def test_traces_with_images_are_refused_without_the_setting(seen: Path, renderer: Renderer) -> None:
    settings = config(Path("tiny"), seen, images=False)
    with pytest.raises(
        ConfigError, match=r"has images: set trainer.args.images = true for a model"
    ):
        select(settings, renderer)


def test_the_same_words_about_other_images_are_kept(looked: list[Trace], tmp_path: Path) -> None:
    save_family("qwen3_vl", tmp_path / "model")
    other = copy.deepcopy(looked[0])
    for message, shown in zip(other.messages, looked[1].messages, strict=True):
        message.images = shown.images
    path = written([looked[0], other], tmp_path / "alike.jsonl")
    assert len(select(config(tmp_path / "model", path), render(tmp_path / "model")).train) == 2


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"micro_batch_size": 2}, "micro_batch_size must be 1"),
        ({"long_sequences": "truncate"}, 'long_sequences must not be "truncate"'),
        ({"load_in_4bit": True}, "load_in_4bit must be false"),
    ],
)
def test_settings_that_do_not_go_with_images_are_refused(
    args: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        config(Path("tiny"), Path("traces.jsonl"), **args)
