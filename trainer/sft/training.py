"""The warm start itself: TRL's SFTTrainer, on token ids and labels that vf-rl made."""

from __future__ import annotations

import copy
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PrinterCallback, TrainerCallback
from trl import SFTConfig as TrlConfig

from vf.inference.embedded.sight import Sight
from vf.inference.model_files import find_model, load_module, save_module
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.vision import Vision
from vf.runtime.errors import ConfigError, TrainingError
from vf.trainer.learning.model.building import freeze_rest
from vf.trainer.learning.model.lora_targets import lora_config, lora_targets
from vf.trainer.learning.model.quantized import (
    EIGHT_BITS,
    FOUR_BITS,
    bitsandbytes,
    four_bits,
    keep_packing,
)
from vf.trainer.run.metrics import Metrics
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.saving.merging import merge
from vf.trainer.saving.save_timer import SaveTimer
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.sft.dataset import load_dataset
from vf.trainer.sft.settings import SftArgs, SftConfig
from vf.trainer.sft.trl_trainer import Collator, SftTrainer
from vf.trainer.watching.trackers import Tracker, open_trackers

COMPLETE = "complete"  # a file in a checkpoint that was written completely
# What TRL logs, and what it is called here.
_NAMES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "epoch": "epoch",
    "mean_token_accuracy": "token_accuracy",
    "entropy": "entropy",
    "num_tokens": "tokens/processed",
    "eval_loss": "eval/loss",
    "eval_mean_token_accuracy": "eval/token_accuracy",
}

# What transformers calls the optimizers.
_OPTIMIZERS = {"adamw": "adamw_torch", "adamw_8bit": "adamw_8bit"}

Watch = Callable[[Metrics], None]


@dataclass(frozen=True, slots=True)
class Warmed:
    """What a warm start came to.

    Attributes:
        steps: Optimizer steps, earlier ones included.
        seconds: Wall time of this part of the run.
        eval_before: Held-out loss before the first step, in nats a token; None without a held-out
            share.
        eval_after: Held-out loss after the last.
        model: The folder of the model.
    """

    steps: int
    seconds: float
    eval_before: float | None
    eval_after: float | None
    model: Path


class _Recorder(TrainerCallback):  # type: ignore[misc]
    """Writes the metrics, marks whole checkpoints, and stops a run whose loss is not a number."""

    def __init__(self, folder: RunFolder, tracker: Tracker, watch: Watch, timer: SaveTimer) -> None:
        self._folder, self._tracker, self._watch, self._timer = folder, tracker, watch, timer

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any
    ) -> None:
        """Write one line of metrics."""
        if "loss" not in logs and "eval_loss" not in logs:
            return  # the totals at the end
        line: Metrics = {"step": state.global_step}
        line |= {_NAMES[name]: value for name, value in logs.items() if name in _NAMES}
        self._folder.append_metrics(line)
        self._tracker.log(line)
        self._watch(line)
        for name in ("loss", "grad_norm", "eval/loss"):
            if not math.isfinite(line.get(name, 0.0)):
                raise TrainingError(
                    f"step {state.global_step}: {name} is {line[name]}; lower learning_rate"
                )

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the checkpoint as whole."""
        (self._folder.checkpoints / f"checkpoint-{state.global_step}" / COMPLETE).touch()
        self._timer.end()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save if that is due by the clock, too."""
        control.should_save = control.should_save or self._timer.due
        if control.should_save:
            self._timer.begin()


def load_trainable(config: SftConfig) -> Any:
    """Return the model that learns.

    Raises:
        ConfigError: If it cannot be loaded, or bitsandbytes is missing.
    """
    args, options = config.args, dict[str, Any]()
    dtype = torch.bfloat16 if args.bf16 and args.use_lora else torch.float32
    if args.load_in_4bit:
        bitsandbytes(FOUR_BITS)
        options["quantization_config"] = four_bits(dtype)
        # Where it will be trained: transformers' trainer does not move it.
        options["device_map"] = {"": 0 if torch.cuda.is_available() else "cpu"}
    model = load_module(config.model, dtype, sees=args.images, **options)
    if args.load_in_4bit:
        keep_packing(model)
    return model


def build_trainer(
    config: SftConfig, model: Any, folder: RunFolder, tokenizer: Any, vision: Vision | None = None
) -> SftTrainer:
    """Return TRL's trainer on the sequences in the run's folder.

    Args:
        config: The settings.
        model: The model that learns.
        folder: The run's folder.
        tokenizer: The model's tokenizer.
        vision: The model's processor of images; None where there are none.

    Raises:
        ConfigError: If the sequences cannot be read, or there is no such layer to adapt.
    """
    args, held_out = config.args, held_out_file(folder)
    if vision is not None and not args.use_lora:
        freeze_rest(model)
    if args.optim == "adamw_8bit":
        bitsandbytes(EIGHT_BITS)
    torch.manual_seed(args.seed)  # of the adapter
    try:
        trainer = SftTrainer(
            model=model,
            args=_trl_config(args, folder, held_out=held_out.exists()),
            train_dataset=load_dataset(train_file(folder)),
            eval_dataset=load_dataset(held_out) if held_out.exists() else None,
            # A collator and a tokenizer of its own: TRL sets a padding token where there is none.
            data_collator=Collator(pad_token_id=_padding(tokenizer)),
            processing_class=copy.deepcopy(tokenizer),
            peft_config=_lora(model, args) if args.use_lora else None,
        )
    except ValueError as error:
        raise ConfigError(f"TRL's SFTTrainer refuses this run: {error}") from error
    trainer.remove_callback(PrinterCallback)
    if vision is not None:
        trainer.sight = Sight(model, vision)
    return trainer


def warm_start(
    config: SftConfig,
    folder: RunFolder,
    renderer: Renderer,
    *,
    watch: Watch = lambda metrics: None,
    begin: Callable[[int, int], None] = lambda step, steps: None,
) -> Warmed:
    """Train, from the newest whole checkpoint if there is one, and write the model.

    Args:
        config: The settings.
        folder: The run's folder, with the sequences in it.
        renderer: The renderer of the model.
        watch: Told every line of metrics.
        begin: Told the steps that are done and all that there will be.

    Raises:
        ConfigError: If the model cannot be loaded, or the run is finished.
        TrainingError: If the loss is not finite.
    """
    started = time.perf_counter()
    model = load_trainable(config)
    original = _own_settings(model)
    # The trainer would not write a checkpoint with flags that contradict each other.
    generation, model.generation_config = model.generation_config, GenerationConfig()
    trainer = build_trainer(config, model, folder, renderer.tokenizer, renderer.vision)
    last = latest_checkpoint(folder)
    done = 0 if last is None else _step_of(last)
    steps = total_steps(config.args, len(trainer.train_dataset))
    if finished(config.args, folder):
        raise ConfigError(
            f"{folder.path} has done all of its {steps} steps; raise max_steps or num_epochs"
        )
    folder.rewind(done if last is not None else -1)
    begin(done, steps)
    tracker = open_trackers(config.args.report_to, folder, config, step=done)
    trainer.add_callback(_Recorder(folder, tracker, watch, SaveTimer(config.args.save_minutes)))
    failed = True
    try:
        measures = trainer.eval_dataset is not None
        if measures and last is None:
            trainer.evaluate()
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        lines = [line for line in folder.read_metrics() if "eval/loss" in line]
        if measures and (not lines or lines[-1]["step"] != trainer.state.global_step):
            trainer.evaluate()
        failed = False
    finally:
        tracker.close(failed=failed)
    model.generation_config = generation
    _save_model(trainer, config, renderer, folder.path / "model", original)
    losses = [line["eval/loss"] for line in folder.read_metrics() if "eval/loss" in line]
    return Warmed(
        trainer.state.global_step,
        time.perf_counter() - started,
        losses[0] if losses else None,
        losses[-1] if losses else None,
        folder.path / "model",
    )


def finished(args: SftArgs, folder: RunFolder) -> int | None:
    """Return after how many steps a run is finished; None if something is left to do."""
    last = latest_checkpoint(folder)
    if last is None or not (folder.path / "model").exists():
        return None
    left = total_steps(args, len(load_dataset(train_file(folder)))) - _step_of(last)
    return None if left > 0 else _step_of(last)


def train_file(folder: RunFolder) -> Path:
    """Return where a run's sequences to train on lie."""
    return folder.path / "data" / "train.parquet"


def held_out_file(folder: RunFolder) -> Path:
    """Return where a run's sequences to measure with lie, if it has any."""
    return folder.path / "data" / "held_out.parquet"


def total_steps(args: SftArgs, sequences: int) -> int:
    """Return how many optimizer steps a run takes."""
    return args.max_steps or math.ceil(args.num_epochs * math.ceil(sequences / args.batch_size))


def latest_checkpoint(folder: RunFolder) -> Path | None:
    """Return the newest checkpoint that was written completely, or None."""
    whole = [mark.parent for mark in folder.checkpoints.glob(f"checkpoint-*/{COMPLETE}")]
    return max(whole, key=_step_of, default=None)


def _trl_config(args: SftArgs, folder: RunFolder, *, held_out: bool) -> TrlConfig:
    constant = args.lr_scheduler_type == "constant"
    with warnings.catch_warnings():
        # That newer transformers have another name for gradient checkpointing; TRL has not yet.
        warnings.simplefilter("ignore", FutureWarning)
        return TrlConfig(
            output_dir=str(folder.checkpoints),
            seed=args.seed,
            data_seed=args.seed,
            num_train_epochs=args.num_epochs,
            max_steps=args.max_steps or -1,
            per_device_train_batch_size=args.rows,
            per_device_eval_batch_size=args.rows,
            gradient_accumulation_steps=args.batch_size // args.rows,
            learning_rate=args.learning_rate,
            lr_scheduler_type="constant_with_warmup" if constant else args.lr_scheduler_type,
            warmup_steps=args.warmup_steps,
            max_grad_norm=args.max_grad_norm,
            adam_beta1=args.betas[0],
            adam_beta2=args.betas[1],
            weight_decay=args.weight_decay,
            optim=_OPTIMIZERS[args.optim],
            bf16=args.bf16,
            gradient_checkpointing=args.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            eval_strategy="steps" if held_out else "no",
            eval_steps=args.eval_steps,
            save_strategy="steps",
            save_steps=args.save_steps,
            save_total_limit=args.save_total_limit,
            logging_steps=1,
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.accelerator.is_available(),
            remove_unused_columns=not args.images,
            dataloader_pin_memory=torch.cuda.is_available(),
            # The sequences are encoded, masked and cut already: TRL is not to touch them.
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
        )


def _lora(model: Any, args: SftArgs) -> Any:
    named = TrainerArgs(
        lora_target_modules=args.lora_target_modules,
        lora_target_parameters=args.lora_target_parameters,
        lora_dropout=args.lora_dropout,
        load_in_4bit=args.load_in_4bit,
    )
    return lora_config(args, lora_targets(model, named))


def _padding(tokenizer: Any) -> int:
    """Return the id that fills up a batch; it is attended to by nothing and carries no loss."""
    pad = tokenizer.pad_token_id
    return int(pad if pad is not None else tokenizer.eos_token_id or 0)


def _own_settings(model: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Remember what the trainer sets to its own in a model's configs."""
    configs = (model.config, model.config.get_text_config(), model.generation_config)
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "use_cache")
    return [(config, {name: getattr(config, name, None) for name in names}) for config in configs]


def _save_model(
    trainer: SftTrainer,
    config: SftConfig,
    renderer: Renderer,
    target: Path,
    original: list[tuple[Any, dict[str, Any]]],
) -> None:
    """Write the model in Hugging Face's format, an adapter merged in; whole or not at all."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if config.args.load_in_4bit:
        model = _merged_whole(model, config)
    else:
        if hasattr(model, "merge_and_unload"):
            model = model.merge_and_unload()
        for own, values in original:
            for name, value in values.items():
                setattr(own, name, value)
    stops = renderer.stop_token_ids
    model.generation_config.eos_token_id = stops[0] if len(stops) == 1 else stops
    writing = target.with_name(f".writing-{target.name}-{os.getpid()}")
    try:
        save_module(model, writing)
        renderer.tokenizer.save_pretrained(writing)
        if target.exists():
            shutil.rmtree(target)  # of the run before it was resumed with more steps
        writing.rename(target)
    except OSError as error:
        raise TrainingError(
            f"the model could not be written to {target}: {error}. The checkpoints are "
            f"intact: make room, then resume with --resume {target.parent}"
        ) from error
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def _merged_whole(model: Any, config: SftConfig) -> Any:
    """Return the base as it is stored, not in 4 bits, with the adapter merged in."""
    dtype = torch.bfloat16 if config.args.bf16 else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        merged, _ = merge(Path(folder), find_model(config.model), dtype)
    return merged


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])
