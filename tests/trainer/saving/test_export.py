"""`vf-rl export`: what is loaded afresh computes what the trained policy computes."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from vf.inference.model_files import resolve_model
from vf.trainer.commands.main import main
from vf.trainer.learning.policy import Policy
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.saving.checkpoint import Progress, save_checkpoint
from vf.trainer.saving.export import _whole
from vf.trainer.settings.load_config import parse_config
from vf.trainer.settings.write_config import to_toml

ANSWER = [5, 9, 30, 100, 7, 2]
TIED = {"train_unembed": True}  # the tiny model's head shares the embedding's weights
EMBEDDING = {"lora_target_modules": ["embed_tokens", "q_proj"]}
MakeTrainer = Callable[..., RLTrainer]


def trained(make_trainer: MakeTrainer, **settings: Any) -> RLTrainer:
    """Return a trainer whose weights are far from the base's, with a checkpoint of them."""
    rate = 1e-3 if settings.get("use_lora") is False else 2e-2
    noise = {"shuffled": True}  # rewards that differ, whatever is answered
    trainer = make_trainer(max_steps=1, learning_rate=rate, env_args=noise, **settings)
    trainer.folder.config.write_text(to_toml(trainer.plan.config))
    trainer.train()
    return trainer


def logprobs(model: Any, prompt: list[int]) -> list[float]:
    """The answer's log-probabilities in nats, one forward pass, no code of the library."""
    ids = torch.tensor([prompt + ANSWER])
    with torch.no_grad():
        all_logprobs = model(input_ids=ids).logits[0].float().log_softmax(-1)
    return [float(all_logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(ANSWER)]


def gap(left: list[float], right: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


def stored(folder: Path) -> dict[str, str]:
    """Return the type of every tensor in a model's or an adapter's file."""
    (file,) = folder.glob("*.safetensors")
    with safe_open(file, "pt") as tensors:
        return {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118


def export(run: Path, *words: str) -> Path:
    """Run the command, to a folder beside the run's; return the folder."""
    folder = run.parent / f"out-{len(list(run.parent.iterdir()))}"
    assert main(["export", str(run), "-o", str(folder), *words]) == 0
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param(TIED, marks=[pytest.mark.slow, pytest.mark.gate]),
        pytest.param(EMBEDDING, marks=[pytest.mark.slow, pytest.mark.gate]),
    ],
    ids=["plain", "tied", "embedding"],
)
def test_a_merged_model_and_an_adapter_are_what_was_trained(
    make_trainer: MakeTrainer, settings: dict[str, Any]
) -> None:
    trainer = trained(make_trainer, **settings)
    prompt, run = trainer.plan.probe_ids, trainer.folder.path
    expected = trainer.policy.logprobs(prompt, ANSWER)
    base = AutoModelForCausalLM.from_pretrained(resolve_model("tiny"), dtype=torch.float32)
    assert gap(logprobs(base, prompt), expected) > 0.1, "nothing was learned to be exported"

    merged = export(run)
    model = AutoModelForCausalLM.from_pretrained(merged)
    assert model.dtype == torch.float32
    assert gap(logprobs(model, prompt), expected) < 2e-5
    assert model.config.tie_word_embeddings == (not settings)
    assert ("lm_head.weight" in stored(merged)) == bool(settings)

    folder = export(run, "--adapter")
    assert all(".lora_" in name for name in stored(folder)), "the base's weights are in it"
    adapted = PeftModel.from_pretrained(base, str(folder))
    assert gap(logprobs(adapted, prompt), expected) < 2e-5
    config = json.loads((folder / "adapter_config.json").read_text())
    assert Path(config["base_model_name_or_path"], "config.json").is_file()


@pytest.mark.slow
@pytest.mark.gate
def test_all_weights_are_written_as_they_are(make_trainer: MakeTrainer) -> None:
    trainer = trained(make_trainer, use_lora=False)
    folder = export(trainer.folder.path)
    source = trainer.folder.checkpoints / "step-1/model/model.safetensors"
    mine, theirs = load_file(folder / "model.safetensors"), load_file(source)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    prompt = trainer.plan.probe_ids
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert gap(logprobs(model, prompt), trainer.policy.logprobs(prompt, ANSWER)) < 2e-5


@pytest.mark.slow
def test_the_precision_is_the_runs_or_as_asked(make_trainer: MakeTrainer) -> None:
    trainer = trained(make_trainer, bf16=True)
    run, prompt = trainer.folder.path, trainer.plan.probe_ids
    assert set(stored(export(run)).values()) == {"BF16"}
    assert set(stored(export(run, "--adapter")).values()) == {"BF16"}
    assert set(stored(export(run, "--adapter", "--dtype", "float32")).values()) == {"F32"}
    exact = export(run, "--dtype", "float32")
    assert set(stored(exact).values()) == {"F32"}
    # The run computed in bfloat16, so it is the run that is off.
    mine = logprobs(AutoModelForCausalLM.from_pretrained(exact), prompt)
    off = gap(mine, trainer.policy.logprobs(prompt, ANSWER))
    base = AutoModelForCausalLM.from_pretrained(resolve_model("tiny"), dtype=torch.float32)
    assert off < 0.1 * gap(mine, logprobs(base, prompt))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of LoRA leaves for an export, with checkpoints of two steps."""
    folder = tmp_path_factory.mktemp("module") / "run"
    config, _ = parse_config({"model": "tiny", "env": {"id": "test-digits"}})
    policy = Policy("tiny", config.args)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    for step in (1, 2):
        moved = {name: each + 0.01 for name, each in policy.weights.trainable_state().items()}
        policy.weights.load_trainable_state(moved)
        save_checkpoint(folder / "checkpoints", policy, tokenizer, Progress(step, 0.0))
    (folder / "config.toml").write_text(to_toml(config))
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of the run that may be damaged."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_tokenizer_template_and_stop_tokens_come_along(copy: Path, tmp_path: Path) -> None:
    # A base that stops on one more token, and whose sampling flags transformers calls invalid.
    base = Path(shutil.copytree(resolve_model("tiny"), tmp_path / "base"))
    flags = {"_from_model_config": True, "eos_token_id": [0], "temperature": 0.6}
    (base / "generation_config.json").write_text(json.dumps(flags | {"do_sample": False}))
    messages = [{"role": "user", "content": "Compute 3 + 4."}]
    theirs = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    for words in ([], ["--adapter"]):
        folder = export(copy, "--base", str(base), *words)
        generation = GenerationConfig.from_pretrained(folder)
        assert generation.eos_token_id == [0, 2], "the base's and the chat template's"
        assert generation.temperature == 0.6
        mine = AutoTokenizer.from_pretrained(folder)
        assert mine.chat_template == theirs.chat_template
        assert mine.apply_chat_template(messages) == theirs.apply_chat_template(messages)
        assert len({oct(file.stat().st_mode) for file in folder.iterdir()}) == 1
    model = AutoModelForCausalLM.from_pretrained(export(copy, "--base", str(base)))
    assert model.generation_config.eos_token_id == [0, 2]


def test_the_checkpoint_is_the_last_or_the_one_named(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(copy), "--adapter"]) == 0
    said = capsys.readouterr().out
    last = copy / "exports/step-2-adapter"
    assert str(copy / "checkpoints/step-2") in said
    assert f"--lora-modules trained={last}" in said
    (copy / "checkpoints/best").symlink_to("step-1")
    for words in (["--checkpoint", "best"], ["--checkpoint", "step-1"]):
        assert main(["export", str(copy), *words, "--adapter"]) == 0
        first = copy / "exports/step-1-adapter"
        mine = load_file(first / "adapter_model.safetensors")
        theirs = load_file(copy / "checkpoints/step-1/model/adapter_model.safetensors")
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        shutil.rmtree(first)
    for folder in ("step-1", "best"):
        assert main(["export", str(copy / "checkpoints" / folder)]) == 0
        shutil.rmtree(copy / "exports/step-1-merged")
    newer = load_file(last / "adapter_model.safetensors")
    assert any(not torch.equal(newer[name], theirs[name]) for name in theirs)


def test_the_printed_command_passes_the_templates_variables_on(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, table = copy / "config.toml", "[inference.template_args]"
    text = config.read_text()
    assert table in text
    config.write_text(text.replace(table, f"{table}\nenable_thinking = false"))
    export(copy, "--adapter")
    said = capsys.readouterr().out
    assert """--default-chat-template-kwargs '{"enable_thinking": false}'""" in said


def test_a_folder_that_exists_is_not_touched(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    assert main(["export", str(copy), "-o", str(tmp_path / "mine")]) == 2
    said = capsys.readouterr().err
    assert "exists and is never overwritten" in said
    assert said.endswith(f"or choose another folder, such as -o {tmp_path / 'mine-2'}\n")
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("words", [[], ["--adapter"]], ids=["merged", "adapter"])
def test_a_full_disk_leaves_nothing_behind(
    copy: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # as a full disk: writing fails
    try:
        assert main(["export", str(copy), *words]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert f"cannot write {copy / 'exports'}" in said
    assert "nothing is left behind" in said
    assert not (copy / "exports").exists()
    assert main(["export", str(copy), *words]) == 0


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()

    def write() -> None:
        with _whole(tmp_path / "kept/made/target") as folder:
            (folder / "half").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.rglob("*")) == [tmp_path / "kept"]


def _truncate(copy: Path) -> None:
    weights = copy / "checkpoints/step-2/model/adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def _change(copy: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = copy / "checkpoints/step-2/model/adapter_model.safetensors"
    tensors = load_file(weights)
    change(tensors)
    save_file(tensors, weights)


def _halve(copy: Path) -> None:
    _change(copy, lambda tensors: tensors.pop(next(iter(tensors))))


def _lose_a_layer(copy: Path) -> None:
    def lose(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".layers.3.mlp.up_proj." in name]:
            del tensors[name]

    _change(copy, lose)


def _poison(copy: Path) -> None:
    _change(copy, lambda tensors: next(iter(tensors.values())).fill_(float("nan")))


def _remove(path: str) -> Callable[[Path], None]:
    def remove(copy: Path) -> None:
        found = copy / path
        shutil.rmtree(found) if found.is_dir() else found.unlink()

    return remove


def _write(path: str, text: str) -> Callable[[Path], object]:
    return lambda copy: (copy / path).write_text(text)


MODEL = "checkpoints/step-2/model"


@pytest.mark.parametrize(
    ("damage", "words", "said"),
    [
        (_truncate, [], "adapter_model.safetensors: Error while"),
        (_truncate, ["--adapter"], "adapter_model.safetensors: Error while"),
        (_halve, ["--adapter"], "lacks one of its two halves"),
        (_lose_a_layer, [], "tensors are missing"),
        (_poison, ["--adapter"], "NaN or infinity"),
        (_remove(f"{MODEL}/adapter_model.safetensors"), [], "cannot read the adapter"),
        (_remove(MODEL), [], "holds no model"),
        (_remove(f"{MODEL}/tokenizer.json"), [], "cannot load the tokenizer"),
        (_write(f"{MODEL}/adapter_config.json", "{"), [], "cannot read the adapter's config"),
        (_write(f"{MODEL}/adapter_config.json", "{}"), [], "cannot read the adapter's config"),
        (_write("config.toml", "model = "), [], "cannot read"),
        (_write("config.toml", 'model = "./gone"'), [], "Name it with --base"),
        (_remove("checkpoints/step-2/progress.json"), ["--checkpoint", "step-2"], "are: step-1"),
        (_remove("checkpoints"), [], "has no checkpoint yet"),
        (None, ["--checkpoint", "best"], "has no best checkpoint"),
        (None, ["--checkpoint", "step-7"], "no such checkpoint; there are: step-1, step-2"),
        (None, ["--checkpoint", "../checkpoints/step-1"], "no such checkpoint"),
    ],
)
def test_what_is_damaged_or_not_there_is_named(
    copy: Path,
    damage: Callable[[Path], object] | None,
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if damage is not None:
        damage(copy)
    assert main(["export", str(copy), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (copy / "exports").exists()


def test_runs_that_have_nothing_to_export_are_named(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*words: object) -> str:
        assert main(["export", *map(str, words)]) == 2
        return capsys.readouterr().err

    assert "is a file; name a run's folder" in refused(copy / "config.toml")
    assert f"it holds the runs {copy.name}: name one" in refused(copy.parent)
    assert "is a model or an adapter already" in refused(resolve_model("tiny"))
    (copy / "other").mkdir()
    assert "neither a run's folder nor a whole checkpoint's; name" in refused(copy / "other")
    checkpoint = copy / "checkpoints/step-1"
    assert "leave --checkpoint out" in refused(checkpoint, "--checkpoint", "last")
    alone = shutil.copytree(checkpoint, tmp_path / "alone")
    assert "name the folder to write with -o" in refused(alone)
    assert "is itself an adapter" in refused(copy, "--base", checkpoint / "model")
    for folder in (copy / "checkpoints").iterdir():
        shutil.rmtree(folder)
    assert "has no checkpoint yet" in refused(copy)


def test_a_full_fine_tune_has_no_adapter_and_must_be_whole(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = copy / MODEL
    shutil.rmtree(model)
    shutil.copytree(resolve_model("tiny"), model)
    for words in (["--adapter"], ["--base", "tiny"]):
        assert main(["export", str(copy), *words]) == 2
        assert "trained all weights" in capsys.readouterr().err
    tensors = load_file(model / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    assert main(["export", str(copy)]) == 2
    assert "1 weights are missing" in capsys.readouterr().err
    (model / "model.safetensors").write_bytes(b"torn")
    assert main(["export", str(copy)]) == 2
    assert "model.safetensors: Error while deserializing header" in capsys.readouterr().err
