"""What a warm start is made of: the models behind the TOML of `vf-sft`, and reading it.

Names that stand in a training run's TOML too mean the same here. Importing this module loads
neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from vf.evaluation.load_eval_config import explain, read_toml
from vf.inference.settings import Positive, Strict
from vf.runtime.errors import ConfigError
from vf.trainer.settings.load_config import override
from vf.trainer.settings.loss_args import Beta, NotNegative
from vf.trainer.settings.shared import (
    LongSequences,
    LoraAlpha,
    LoraDropout,
    LoraRank,
    MaxGradNorm,
    OutputDir,
    RunName,
    Schedule,
    Seed,
    WarmupSteps,
)


class SftData(Strict):
    """``[data]``: which conversations are learned from."""

    traces: Annotated[list[str], Field(min_length=1)] = Field(
        description="Traces files, run folders, results folders of vf-eval, or OpenAI chat lines."
    )
    min_reward: Annotated[float, Field(ge=0, le=1)] = Field(
        default=1.0,
        description="Traces with a lower reward, or none, are dropped. Conversations of other "
        "programs, which have no reward, are kept.",
    )
    top_per_task: Positive | None = Field(
        default=None,
        description="Traces kept of one task: those with the highest rewards, the first among "
        "equals.",
    )
    max_samples: Positive | None = Field(
        default=None,
        description="Traces kept in all: those with the highest rewards, drawn among equals.",
    )
    include_truncated: bool = Field(
        default=False,
        description="Keep traces that a limit ended, or one of whose answers was cut off.",
    )
    deduplicate: bool = Field(
        default=True, description="Keep one of several traces that say the same."
    )
    tokens: Literal["auto", "recorded", "rendered"] = Field(
        default="auto",
        description="`recorded`: train on the tokens that were sampled, and drop traces without "
        "any of this model's tokenizer; `rendered`: render the messages anew; `auto`: recorded "
        "where they are, else rendered.",
    )
    template_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Variables for the chat template, where messages are rendered.",
    )
    held_out: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.1,
        description="Share of the tasks whose traces are not trained on, but measured with.",
    )


class SftArgs(Strict):
    """``[trainer.args]`` of a warm start."""

    run_name: RunName = None
    output_dir: OutputDir = "runs"
    seed: Seed = 0

    num_epochs: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="How often every trace is trained on."
    )
    max_steps: Positive | None = Field(
        default=None, description="Optimizer steps, instead of num_epochs."
    )
    batch_size: Positive = Field(default=16, description="Sequences in one optimizer step.")
    micro_batch_size: Positive | None = Field(
        default=None,
        description="Most sequences in one forward and backward pass; must divide batch_size. By "
        "default all.",
    )
    max_seq_len: Positive = Field(default=2048, description="Tokens in one sequence at most.")
    long_sequences: LongSequences = "drop"

    learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=1e-4, description="Peak learning rate."
    )
    lr_scheduler_type: Schedule = "linear"
    warmup_steps: WarmupSteps = 0
    max_grad_norm: MaxGradNorm = 1.0
    betas: Annotated[list[Beta], Field(min_length=2, max_length=2)] = Field(
        default=[0.9, 0.95], description="AdamW's decay rates of the two moments."
    )
    weight_decay: NotNegative = Field(default=0.0, description="AdamW's decoupled decay.")
    bf16: bool = Field(
        default=False,
        description="Compute in bfloat16. With LoRA, the frozen weights are kept in it too.",
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="Recompute activations in the backward pass: less memory, more time.",
    )

    use_lora: bool = Field(
        default=True,
        description="Train a LoRA adapter, which is merged in the end, rather than all weights.",
    )
    lora_rank: LoraRank = 16
    lora_alpha: LoraAlpha = 32
    lora_dropout: LoraDropout = 0.0
    lora_target_modules: list[str] | None = Field(
        default=None,
        description="Names of the adapted modules; by default all linear layers but the head.",
    )

    eval_steps: Positive = Field(
        default=50,
        description="Steps between measurements of the held-out loss, beside the first and last.",
    )
    save_steps: Positive = Field(
        default=50, description="Steps between checkpoints; the last is always saved."
    )
    save_total_limit: Positive | None = Field(
        default=None, description="Newest checkpoints that are kept; by default all."
    )
    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        default=[], description="Where metrics go beside metrics.jsonl."
    )

    @property
    def rows(self) -> int:
        """Sequences in one forward pass."""
        return self.micro_batch_size or self.batch_size

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse settings that contradict each other."""
        changed = {
            name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.default
        }
        lora = sorted(name for name in changed if name.startswith("lora_"))
        if lora and not self.use_lora:
            raise ValueError(f"{', '.join(lora)} is set, but use_lora = false; remove one")
        if self.max_steps is not None and "num_epochs" in changed:
            raise ValueError("max_steps and num_epochs both say how long to train; remove one")
        if self.batch_size % self.rows:
            raise ValueError(
                f"micro_batch_size = {self.rows} does not divide batch_size = {self.batch_size}"
            )
        return self


class SftTrainer(Strict):
    """``[trainer]`` of a warm start."""

    args: SftArgs = Field(default_factory=SftArgs)


class SftConfig(Strict):
    """A whole warm start."""

    model: str = Field(
        description="A local folder or a hub name; `tiny` is the model that ships with the library."
    )
    data: SftData
    trainer: SftTrainer = Field(default_factory=SftTrainer)

    @property
    def args(self) -> SftArgs:
        """``[trainer.args]``, for short."""
        return self.trainer.args


def load_sft_config(path: Path, overrides: Sequence[str] = ()) -> SftConfig:
    """Read the TOML of a warm start.

    Args:
        path: The file.
        overrides: ``key=value`` pairs. A bare name means ``[trainer.args]`` or, where it is one
            of those, ``[data]``; the value is TOML, or else text.

    Raises:
        ConfigError: The file is missing or not TOML, or a key or value is wrong. All problems
            are listed.
    """
    raw = read_toml(path)
    for each in overrides:
        override(raw, each, _path)
    return parse_sft_config(raw)


def parse_sft_config(raw: dict[str, Any]) -> SftConfig:
    """Check a config given as nested dicts; see :func:`load_sft_config`."""
    try:
        return SftConfig.model_validate(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise ConfigError("\n".join(explain(SftConfig, problem) for problem in problems)) from None


def _path(key: str) -> list[str]:
    path = key.strip().split(".")
    if len(path) == 1:
        for table, model in ((["trainer", "args"], SftArgs), (["data"], SftData)):
            if path[0] in model.model_fields:
                return [*table, path[0]]
    return path
