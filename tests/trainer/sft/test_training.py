"""Warm starts of a real model through TRL's SFTTrainer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import vf
from tests.late import Late
from tests.trainer.configs import configured
from vf.inference.model_files import load_module
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError, TrainingError
from vf.traces.trace import Trace
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.sft.dataset import load_dataset, save_sequences
from vf.trainer.sft.render import render
from vf.trainer.sft.select import IGNORED, select
from vf.trainer.sft.settings import SftConfig

if TYPE_CHECKING:
    from vf.trainer.sft.training import Warmed

training = Late("vf.trainer.sft.training", "trl")

pytestmark = pytest.mark.trl

MakeConfig = Callable[..., SftConfig]
QUICK: dict[str, Any] = {
    "max_steps": 12,
    "batch_size": 8,
    "learning_rate": 5e-3,
    "use_lora": False,
    "save_steps": 6,
    "save_minutes": 0,
    "eval_steps": 6,
}


def prepare(config: SftConfig, renderer: Renderer, folder: Path) -> RunFolder:
    run = RunFolder(folder)
    run.create()
    selection = select(config, renderer)
    save_sequences(selection.train, training.train_file(run))
    if selection.held_out:
        save_sequences(selection.held_out, training.held_out_file(run))
    return run


def losses(run: RunFolder) -> list[float]:
    return [line["loss"] for line in run.read_metrics() if "loss" in line]


def test_the_labels_of_a_batch_are_our_masks_token_by_token(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    config = make_config(**QUICK)
    run = prepare(config, renderer, tmp_path / "run")
    trainer = training.build_trainer(
        config, training.load_trainable(config), run, renderer.tokenizer
    )
    ours = {}
    for trace in solved:
        [branch] = render(renderer, trace)
        pairs = zip(branch.token_ids, branch.loss_mask, strict=True)
        ours[tuple(branch.token_ids)] = [t if mask else IGNORED for t, mask in pairs]
    seen = 0
    for batch in trainer.get_train_dataloader():
        assert set(batch) == {"input_ids", "labels", "attention_mask"}
        rows = zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True)
        for ids, labels, attended in rows:
            size = int(attended.sum())
            assert labels.tolist()[:size] == ours[tuple(ids.tolist()[:size])]
            assert set(labels.tolist()[size:]) <= {IGNORED}
            seen += 1
    assert seen == len(trainer.train_dataset) == 43


def test_the_gradient_of_what_the_tools_said_is_zero(
    make_config: MakeConfig, renderer: Renderer, solved: list[Trace], tmp_path: Path
) -> None:
    """Whatever the logits at masked positions are, the loss does not move; at others it does."""
    config = make_config(**QUICK)
    run = prepare(config, renderer, tmp_path / "run")
    model = training.load_trainable(config)
    trainer = training.build_trainer(config, model, run, renderer.tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    hidden: list[torch.Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        hidden.append(output.last_hidden_state)

    model.base_model.register_forward_hook(keep)
    loss = trainer.compute_loss(model.train(), dict(batch))
    torch.autograd.backward(loss)
    assert hidden[0].grad is not None
    moved = hidden[0].grad.abs().sum(-1) > 0  # by the logits of position p, which predict p + 1
    predicts = torch.zeros_like(moved)
    predicts[:, :-1] = batch["labels"][:, 1:] != IGNORED
    assert torch.equal(moved, predicts)
    assert "<tool_response>" in renderer.decode(batch["input_ids"][0].tolist())


def test_nothing_is_sent_to_anybody(
    make_config: MakeConfig, renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL reports every trainer that is made to its makers, unless it is kept from it."""
    from trl.trainer import base_trainer

    told: list[str] = []
    monkeypatch.setattr(base_trainer, "send_telemetry", lambda **about: told.append("something"))
    monkeypatch.delenv("CI", raising=False)
    config = make_config(**QUICK)
    run = prepare(config, renderer, tmp_path / "run")
    trainer = training.build_trainer(
        config, training.load_trainable(config), run, renderer.tokenizer
    )
    assert told == []
    base_trainer._BaseTrainer._send_telemetry(trainer)
    assert told == ["something"]  # so the test would see it


@pytest.fixture(scope="module")
def warmed(
    tmp_path_factory: pytest.TempPathFactory, blank: Path, solved: list[Trace], renderer: Renderer
) -> tuple[RunFolder, SftConfig, Warmed]:
    """A blank model, trained on all weights."""
    from vf.trainer.sft.settings import parse_sft_config

    folder = tmp_path_factory.mktemp("warm")
    with vf.TraceStore(folder / "traces.jsonl") as store:
        for trace in solved:
            store.append(trace)
    raw = {
        "model": str(blank),
        "data": {"traces": [str(folder / "traces.jsonl")]},
        "trainer": {"args": {**QUICK, "max_seq_len": 512, "output_dir": str(folder)}},
    }
    config = parse_sft_config(raw)
    run = prepare(config, renderer, folder / "run")
    return run, config, training.warm_start(config, run, renderer)


@pytest.mark.slow
def test_the_held_out_loss_falls(warmed: tuple[RunFolder, SftConfig, Warmed]) -> None:
    run, _, done = warmed
    assert done.steps == 12
    assert done.eval_before is not None
    assert done.eval_after is not None
    assert done.eval_before > 5.5  # ln(512) = 6.2: it knew nothing
    assert done.eval_after < 0.6 * done.eval_before
    lines = run.read_metrics()
    assert [line["step"] for line in lines if "eval/loss" in line] == [0, 6, 12]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert set(lines[1]) >= {"loss", "grad_norm", "learning_rate", "token_accuracy"}


@pytest.mark.slow
def test_the_model_is_one_that_a_run_takes(warmed: tuple[RunFolder, SftConfig, Warmed]) -> None:
    from vf.trainer.preflight import preflight

    run, config, done = warmed
    limits = {"max_seq_len": 1024, "max_prompt_len": 512}
    assert preflight(configured(limits, model=str(done.model))).parameters > 0
    model = load_module(str(done.model), torch.float32)
    before = load_module(config.model, torch.float32)
    for values in (model.config, model.generation_config):
        assert values.eos_token_id == before.config.eos_token_id
    assert model.config.pad_token_id == before.config.pad_token_id
    assert model.config.use_cache is before.config.use_cache is True
    assert not torch.equal(model.lm_head.weight, before.lm_head.weight)
    assert sorted(each.name for each in run.path.iterdir()) == [
        *("checkpoints", "data", "lock", "logs", "metrics.jsonl", "model", "traces")
    ]


@pytest.mark.slow
def test_a_resumed_run_equals_the_unbroken_one(
    warmed: tuple[RunFolder, SftConfig, Warmed], renderer: Renderer, tmp_path: Path
) -> None:
    unbroken, config, done = warmed
    run = RunFolder(tmp_path / "killed")
    shutil.copytree(unbroken.path, run.path)
    run.open()
    shutil.rmtree(run.path / "model")
    later = run.checkpoints / "checkpoint-12"
    (later / "complete").unlink()  # the run was killed while it was written
    assert training.latest_checkpoint(run) == run.checkpoints / "checkpoint-6"
    again = training.warm_start(config, run, renderer)
    assert losses(run) == losses(unbroken)
    assert (again.steps, again.eval_before) == (12, done.eval_before)
    assert again.eval_after == done.eval_after
    mine, theirs = (load_module(str(each.model), torch.float32) for each in (again, done))
    for name, tensor in mine.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name]), name


def test_a_finished_run_has_nothing_left(
    warmed: tuple[RunFolder, SftConfig, Warmed], renderer: Renderer
) -> None:
    run, config, _ = warmed
    with pytest.raises(ConfigError, match="has done all of its 12 steps; raise max_steps"):
        training.warm_start(config, run, renderer)


@pytest.mark.slow
def test_an_adapter_learns_and_is_merged(
    make_config: MakeConfig, renderer: Renderer, tmp_path: Path
) -> None:
    """Of the shipped model: it knows the task, but not how to do it without mistakes."""
    lora = {**QUICK, "use_lora": True, "lora_rank": 8, "max_steps": 8, "bf16": True}
    config = make_config(model="tiny", **lora)
    run = prepare(config, renderer, tmp_path / "run")
    done = training.warm_start(config, run, renderer)
    assert done.eval_before is not None
    assert done.eval_after is not None
    assert done.eval_after < done.eval_before
    assert not (done.model / "adapter_config.json").exists()
    model = load_module(str(done.model), torch.float32).eval()
    again = config.model_copy(update={"model": str(done.model)})
    measured = training.build_trainer(again, model, run, renderer.tokenizer).evaluate()
    assert measured["eval_loss"] == pytest.approx(done.eval_after, abs=0.02)  # bfloat16
    assert (training.latest_checkpoint(run) or run.path).joinpath("adapter_config.json").exists()


def test_an_adapter_from_4_bits_is_merged_into_the_stored_base(
    make_config: MakeConfig, renderer: Renderer, tmp_path: Path
) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    lora = {**QUICK, "use_lora": True, "lora_rank": 8, "max_steps": 4}
    config = make_config(model="tiny", **lora, load_in_4bit=True, optim="adamw_8bit")
    run = prepare(config, renderer, tmp_path / "run")
    trainer = training.build_trainer(
        config, training.load_trainable(config), run, renderer.tokenizer
    )
    assert isinstance(trainer.create_optimizer(), bitsandbytes.optim.AdamW)
    done = training.warm_start(config, run, renderer)
    assert done.eval_before is not None
    assert done.eval_after is not None
    assert done.eval_after < done.eval_before
    merged = load_module(str(done.model), torch.float32).state_dict()
    base = load_module("tiny", torch.float32).state_dict()
    assert merged.keys() == base.keys()
    assert torch.equal(merged["model.norm.weight"], base["model.norm.weight"])
    name = "model.layers.0.mlp.up_proj.weight"
    moved = torch.linalg.svdvals(merged[name] - base[name])
    assert moved[0] > 0
    assert moved[8] < 1e-4 * moved[0], "by the adapter of rank 8, and not by the rounding to 4 bits"


@pytest.mark.slow
def test_a_loss_that_is_not_a_number_ends_the_run(
    make_config: MakeConfig, renderer: Renderer, blank: Path, tmp_path: Path
) -> None:
    model = load_module(str(blank), torch.float32)
    model.model.norm.weight.data[0] = torch.nan
    model.save_pretrained(shutil.copytree(blank, tmp_path / "broken"))
    config = make_config(str(tmp_path / "broken"), **QUICK)
    run = prepare(config, renderer, tmp_path / "run")
    with pytest.raises(TrainingError, match="lower learning_rate"):
        training.warm_start(config, run, renderer)
    assert not (run.path / "model").exists()
    assert all(json.loads(line) for line in run.metrics.read_text().splitlines())


def test_a_layer_that_is_not_there_is_named(
    make_config: MakeConfig, renderer: Renderer, tmp_path: Path
) -> None:
    lora = {**QUICK, "use_lora": True, "lora_target_modules": ["nonsense"]}
    config = make_config(**lora)
    run = prepare(config, renderer, tmp_path / "run")
    with pytest.raises(ConfigError, match="nonsense"):
        training.build_trainer(config, training.load_trainable(config), run, renderer.tokenizer)


def test_sequences_are_read_back_as_they_were(
    make_config: MakeConfig, renderer: Renderer, tmp_path: Path
) -> None:
    found = select(make_config(), renderer).train
    save_sequences(found, tmp_path / "data" / "some.parquet")
    rows = load_dataset(tmp_path / "data" / "some.parquet")
    assert [row["input_ids"] for row in rows] == [list(each.input_ids) for each in found]
    assert [row["labels"] for row in rows] == [list(each.labels) for each in found]
    with pytest.raises(ConfigError, match="cannot read the run's sequences"):
        load_dataset(tmp_path / "none.parquet")
    assert replace(found[0]).learned == sum(label != IGNORED for label in found[0].labels[1:])
