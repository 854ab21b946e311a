"""The TOML of `vf-rl sft`: its pydantic models, and the function that reads it.

Names shared with a training run's TOML mean the same here. Importing this module loads neither
torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from vf.inference.model import ToolStyle
from vf.inference.settings import Positive, Strict
from vf.runtime.toml import checked, override, read_toml
from vf.trainer.settings.shared import SCHEDULE, Schedule, SharedArgs


class SftData(Strict):
    """``[data]``: the conversations to train on."""

    traces: Annotated[list[str], Field(min_length=1)]
    """Traces files, run folders, results folders of `vf-rl eval`, or OpenAI chat lines."""
    min_reward: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Drop traces whose reward is lower or missing. Conversations from other programs, which have
    no reward, are kept."""
    top_per_task: Positive | None = None
    """Traces kept per task: those with the highest rewards; the first of equal ones."""
    max_samples: Positive | None = None
    """Traces kept in total: those with the highest rewards; a random choice of equal ones."""
    include_truncated: bool = False
    """Keep traces that a limit ended or in which an answer was cut off."""
    deduplicate: bool = True
    """Keep only one of several identical conversations."""
    tokens: Literal["auto", "recorded", "rendered"] = "auto"
    """`recorded`: train on the sampled tokens, and drop traces that have none from this model's
    tokenizer; `rendered`: render the messages again; `auto`: recorded tokens where there are any,
    rendered ones otherwise."""
    template_args: dict[str, Any] = Field(default_factory=dict)
    """Variables for the chat template, used where messages are rendered."""
    chat_template: str | None = None
    """Chat template to use in place of the model's own: `chatml`, `plain` or a file. It is saved
    with the model."""
    tool_style: ToolStyle = "template"
    """As in [inference] of a training run; used where messages are rendered."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the tasks whose traces are held out to measure the loss on."""


class SftArgs(SharedArgs):
    """``[trainer.args]`` of a warm start."""

    num_epochs: Annotated[float, Field(gt=0)] = 1.0
    """Passes over the selected traces."""
    max_steps: Positive | None = None
    """Optimizer steps, instead of num_epochs."""
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    """Sequences in one optimizer step; a multiple of micro_batch_size."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-4
    """Peak learning rate."""
    lr_scheduler_type: Schedule = Field(default="linear", description=SCHEDULE)
    optim: Literal["adamw", "adamw_8bit"] = "adamw"
    """`adamw_8bit` keeps AdamW's moments in 8 bits (bitsandbytes)."""
    bf16: bool = False
    """Compute in bfloat16; what is trained is kept in float32. With LoRA, the frozen weights are
    kept in bfloat16."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    images: bool = False
    """Load what sees, and train on conversations with images; it stays as it was loaded. Each
    sequence is then a forward pass of its own."""
    lora_target_modules: list[str] | None = None
    """Names of the adapted modules; by default all linear layers except the head, in the text
    part of the model, its experts too, and never its routers."""
    lora_target_parameters: list[str] | None = None
    """Names of adapted tensors that are in no linear layer, such as `experts.down_proj` of all
    experts in a layer; by default as for lora_target_modules."""

    eval_steps: Positive = 50
    """Steps between measurements of the held-out loss, besides the first and last."""
    save_total_limit: Positive = 3
    """Newest checkpoints that are kept."""

    @property
    def rows(self) -> int:
        """Sequences in one forward pass."""
        return 1 if self.images else self.micro_batch_size or self.batch_size

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse settings that contradict each other."""
        changed = self.changed()
        self.check_lora({name for name in changed if name.startswith("lora_")})
        if self.max_steps is not None and "num_epochs" in changed:
            raise ValueError("max_steps and num_epochs both say how long to train; remove one")
        if self.images:
            wrong = [
                (self.micro_batch_size not in (None, 1), "micro_batch_size must be 1"),
                (self.load_in_4bit, "load_in_4bit must be false"),
                (self.long_sequences == "truncate", 'long_sequences must not be "truncate"'),
            ]
            if problems := [problem for holds, problem in wrong if holds]:
                raise ValueError(f"images = true, but {'; '.join(problems)}")
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

    model: str
    """A local folder or a hub name; `tiny` is the model that ships with the library."""
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
        overrides: ``key=value`` pairs. A bare name belongs to ``[trainer.args]`` or ``[data]``;
            the value is parsed as TOML, or else is text.

    Raises:
        ConfigError: If the file is missing or not TOML, or a key or value is wrong. All problems
            are listed.
    """
    raw = read_toml(path)
    for assignment in overrides:
        override(raw, assignment, _path)
    return parse_sft_config(raw)


def parse_sft_config(raw: dict[str, Any]) -> SftConfig:
    """Check a config given as nested dicts; see :func:`load_sft_config`."""
    return checked(SftConfig, raw)


def _path(key: str) -> list[str]:
    path = key.strip().split(".")
    if len(path) > 1 or path[0] in SftConfig.model_fields:
        return path
    return ["data", *path] if path[0] in SftData.model_fields else ["trainer", "args", *path]
