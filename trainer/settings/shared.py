"""The settings that training runs and warm starts have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from vf.inference.settings import STRICT, Positive, real_numbers

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Schedule = Literal["constant", "linear", "cosine"]
SCHEDULE = "Learning rate schedule after the warm-up."


class SharedArgs(BaseModel):
    """The part of ``[trainer.args]`` that means the same in every kind of run."""

    model_config = STRICT
    _numbers = real_numbers()

    run_name: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    """Folder of the run; by default the TOML's name and a number."""
    output_dir: str = "runs"
    """Folder in which run folders are made."""
    seed: int = Field(default=0, ge=0, le=2**32 - 1)  # what numpy takes
    """Seed of all randomness in the run."""

    micro_batch_size: Positive | None = None
    """Maximum sequences in one forward and backward pass."""
    max_seq_len: Positive = 2048
    """Maximum tokens in one sequence."""
    long_sequences: Literal["drop", "truncate", "refuse"] = "drop"
    """A sequence longer than max_seq_len is dropped or truncated, or ends the run."""

    lr_scheduler_type: Schedule = Field(default="constant", description=SCHEDULE)
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Maximum norm of the gradient, to which it is clipped."""
    betas: Annotated[list[Beta], Field(min_length=2, max_length=2)] = [0.9, 0.95]
    """AdamW's decay rates of the two moments."""
    weight_decay: NotNegative = 0.0
    """AdamW's decoupled decay, of all that is trained: norms and biases, too."""
    optim: Literal["adamw", "adamw_8bit", "adamw_offload"] = "adamw"
    """`adamw_8bit` keeps AdamW's moments in 8 bits (bitsandbytes). `adamw_offload` keeps moments,
    gradients and float32 weights in the host's memory and steps there: slower, with less on the
    device."""

    use_lora: bool = True
    """Train a LoRA adapter rather than all weights."""
    lora_rank: int = Field(default=16, ge=1, le=8192)
    """Rank of the adapter."""
    lora_alpha: float = Field(default=32, gt=0, le=1e6)
    """Scale of the adapter, divided by its rank."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout before the adapter."""
    load_in_4bit: bool = False
    """Hold the frozen weights in 4 bits beneath the adapter: QLoRA (bitsandbytes)."""

    save_steps: Positive = 50
    """Steps between checkpoints; the last is always saved."""
    save_minutes: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5.0
    """Minutes without a checkpoint after which one is written between those of `save_steps`; it is
    kept until the next. The first steps are saved sooner, and a large checkpoint less often, so
    that these take about 5% of the time at most. 0 writes none."""
    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = []
    """Trackers that receive the metrics, besides metrics.jsonl."""

    def changed(self) -> set[str]:
        """Return the names of the settings that are not at their defaults."""
        fields = type(self).model_fields
        return {name for name, field in fields.items() if getattr(self, name) != field.default}

    def check_lora(self, names: set[str]) -> None:
        """Refuse settings of the adapter where there is none.

        Args:
            names: Settings that only the adapter reads, and that were changed.

        Raises:
            ValueError: If there are some, and ``use_lora`` is false.
        """
        if names and not self.use_lora:
            raise ValueError(f"{', '.join(sorted(names))} is set, but use_lora = false; remove one")
        if self.load_in_4bit and not self.use_lora:
            raise ValueError(
                "load_in_4bit = true needs use_lora = true: weights of 4 bits cannot be trained, "
                "only an adapter beside them"
            )
