"""Training on images: log-probabilities are the engine's, and what learns is what is said to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.inference.test_engine_images import TURNS, of_sampled, seeing, talk, uncached
from tests.inference.vision_models import FAMILIES, picture, save_family
from vf.inference.embedded.embedded_server import EmbeddedServer
from vf.inference.model import Conversation
from vf.inference.model_files import Checkpoint, adapts_whole
from vf.inference.models.local_model import load_renderer
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.vision import Vision
from vf.inference.settings import EmbeddedArgs, EmbeddedSettings
from vf.runtime.errors import ConfigError
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample, collate
from vf.trainer.learning.policy import Policy
from vf.trainer.saving.merging import merge
from vf.trainer.settings.config import Config, TrainerArgs

SEQUENCE: dict[str, Any] = {"max_seq_len": 512, "max_prompt_len": 256, "images": True}
IMAGE = {"images": True}
TOWER = {"train_vision": True}
IMAGES = [picture(1), picture(2, 56, 40), picture(3, 24, 64), picture(1)]


@pytest.fixture(params=[name for name in FAMILIES if name != "smolvlm"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path: Path = tmp_path / request.param
    save_family(request.param, path)
    return path


def rolled_out(policy: Policy, renderer: Renderer, seeds: int = 1) -> list[Branch]:
    """Return what conversations with the policy's own module are in tokens."""
    server = EmbeddedServer(
        EmbeddedSettings(args=EmbeddedArgs(max_requests=4)),
        policy.weights.module,
        renderer,
        "m",
        max_seq_len=512,
    )
    server.start(lambda _: None)
    server.publish(0)
    try:
        model = TokenModel(server.sampler(60.0), renderer, max_seq_len=512)
        spoken = [Conversation() for _ in range(seeds)]
        for conversation in spoken:
            asyncio.run(talk(model, conversation, *TURNS))
    finally:
        server.stop()
    return [branch for conversation in spoken for branch in conversation.branches]


def changed(policy: Policy, samples: list[Sample]) -> set[str]:
    """Return which parameters an optimizer step changes."""
    model = policy.weights.module
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    policy.update(samples)
    return {
        name for name, tensor in model.named_parameters() if not torch.equal(before[name], tensor)
    }


def sees(name: str) -> bool:
    return any(part in name for part in ("visual", "vision", "multi_modal", "connector"))


def test_log_probabilities_are_the_engines_and_an_uncached_pass_has_them(folder: Path) -> None:
    renderer = load_renderer(Checkpoint.find(str(folder)), EmbeddedSettings(), sees=True)
    policy = Policy(str(folder), TrainerArgs(use_lora=False, learning_rate=1e-3, **SEQUENCE))
    [branch] = rolled_out(policy, renderer)
    [logprobs] = policy.sample_logprobs([Sample(branch, 0.0)])
    with torch.no_grad():
        scores = uncached(policy.weights.module, renderer, branch.token_ids, IMAGES)
    engine, plain = of_sampled(scores, branch)
    own = [float(logprobs[i]) for i, sampled in enumerate(branch.loss_mask) if sampled]
    assert own == pytest.approx(engine, abs=1e-4)
    assert own == pytest.approx(plain, abs=1e-4)

    # The model that has changed is what samples next, and its prefixes are not the old ones.
    names = changed(policy, [Sample(branch, 1.0), Sample(branch, -0.5)])
    assert names
    assert not any(map(sees, names))
    [branch] = rolled_out(policy, renderer)
    [logprobs] = policy.sample_logprobs([Sample(branch, 0.0)])
    own = [float(logprobs[i]) for i, sampled in enumerate(branch.loss_mask) if sampled]
    engine = [x for x, sampled in zip(branch.logprobs, branch.loss_mask, strict=True) if sampled]
    assert own == pytest.approx(engine, abs=1e-4)


@pytest.mark.parametrize("use_lora", [False, True])
def test_the_vision_tower_learns_only_if_it_is_to(folder: Path, use_lora: bool) -> None:
    renderer = load_renderer(Checkpoint.find(str(folder)), EmbeddedSettings(), sees=True)
    learns = {}
    for train_vision in (False, True):
        args = TrainerArgs(
            use_lora=use_lora, learning_rate=1e-3, train_vision=train_vision, **SEQUENCE
        )
        policy = Policy(str(folder), args)
        samples = [Sample(branch, 1.0) for branch in rolled_out(policy, renderer)]
        names = changed(policy, samples)
        assert any(not sees(name) for name in names)
        learns[train_vision] = any(map(sees, names))
    assert learns == {False: False, True: True}


def test_samples_of_the_same_tokens_differ_by_their_images(tmp_path: Path) -> None:
    save_family("qwen3_vl", tmp_path)
    renderer = load_renderer(Checkpoint.find(str(tmp_path)), EmbeddedSettings(), sees=True)
    policy = Policy(str(tmp_path), TrainerArgs(use_lora=False, **SEQUENCE))
    [branch] = rolled_out(policy, renderer)
    swapped = replace(picture(9), at=branch.images[0].at)
    other = replace(branch, images=[swapped, *branch.images[1:]])
    text = Branch([5, 6, 7, 8], [0, 0, 1, 1], [0.0] * 4, [0] * 4, [-1, -1, 0, 0])
    samples = [Sample(each, 1.0) for each in (branch, text, other, text)]
    together = policy.sample_logprobs(samples)
    alone = [policy.sample_logprobs([sample])[0] for sample in samples]
    for own, expected in zip(together, alone, strict=True):
        assert own.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert not torch.allclose(together[0], together[2], atol=1e-3)
    with pytest.raises(ValueError, match="a micro-batch of its own"):
        collate(samples[:2])


@pytest.mark.parametrize("use_lora", [False, True])
def test_what_was_trained_is_read_again_as_it_was(use_lora: bool, folder: Path) -> None:
    renderer = load_renderer(Checkpoint.find(str(folder)), EmbeddedSettings(), sees=True)
    args = TrainerArgs(use_lora=use_lora, learning_rate=1e-2, train_vision=True, **SEQUENCE)
    policy = Policy(str(folder), args)
    [branch] = rolled_out(policy, renderer)
    policy.update([Sample(branch, 1.0)])
    with torch.no_grad():
        expected = uncached(policy.weights.module, renderer, branch.token_ids, IMAGES)
    saved = folder.parent / "saved"
    policy.weights.save(saved)
    read = [Checkpoint.find(str(saved)).load(sees=True)]
    if use_lora:
        read.append(merge(saved, str(folder), torch.float32)[0])
        if adapts_whole(saved):
            read.append(Checkpoint.find(str(saved)).load())  # as for tasks without images
    else:
        renderer.tokenizer.save_pretrained(saved)  # as a checkpoint does
        assert Vision.from_pretrained(str(saved)).token_id == seeing(renderer).token_id
    for model in read:
        with torch.no_grad():
            scores = uncached(model.eval(), renderer, branch.token_ids, IMAGES)
        assert torch.allclose(scores, expected, atol=1e-3)


def test_an_adapter_of_the_text_part_is_shown_no_images(tmp_path: Path) -> None:
    save_family("qwen3_5", tmp_path / "model")
    text = Policy(str(tmp_path / "model"), TrainerArgs(use_lora=True, lora_rank=2))
    text.weights.save(tmp_path / "adapter")
    checkpoint = Checkpoint.find(str(tmp_path / "adapter"))
    checkpoint.load()
    with pytest.raises(ConfigError, match=r"is of the text part of .*model alone, which sees no"):
        checkpoint.load(sees=True)


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"trainer": {"args": TOWER}}, "train_vision = true .* set both"),
        ({"trainer": {"args": IMAGE | {"deterministic": True}}}, "deterministic must be false"),
        ({"trainer": {"args": IMAGE | {"observation_loss_coef": 0.1}}}, "must be 0: training on"),
        ({"trainer": {"args": IMAGE}, "rollouts": {"workers": 2}}, "rollouts.workers must be 0"),
        (
            {"trainer": {"args": IMAGE | TOWER}, "inference": {"engine": "vllm"}},
            "train_vision must be false or use_lora false",
        ),
        (
            {
                "trainer": {"args": IMAGE | TOWER | {"use_lora": False}},
                "inference": {"engine": "vllm", "keep_cache": True},
            },
            "train_vision or inference.keep_cache must be false",
        ),
    ],
)
def test_settings_that_do_not_go_with_images_are_refused(
    tables: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        Config.model_validate({"model": "tiny", "env": {"id": "read-picture"}, **tables})
