"""What a run is made of: the models behind the TOML. Every field changes behaviour.

Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from vf.inference.settings import (
    EmbeddedSettings,
    EngineSettings,
    Positive,
    Seconds,
    Strict,
    VllmSettings,
)


class EnvConfig(Strict):
    """``[env]``: which environment, and its arguments."""

    id: str = Field(description="Name of a registered or installed environment.")
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of its constructor.")


def _engine(raw: Any) -> str:
    """Return which engine a raw ``[inference]`` asks for."""
    if isinstance(raw, EngineSettings):
        return str(raw.engine)
    named = raw.get("engine", "embedded") if isinstance(raw, dict) else "embedded"
    return named if isinstance(named, str) else repr(named)


ENGINES: dict[str, type[EngineSettings]] = {"embedded": EmbeddedSettings, "vllm": VllmSettings}
InferenceConfig = Annotated[
    Annotated[EmbeddedSettings, Tag("embedded")] | Annotated[VllmSettings, Tag("vllm")],
    Discriminator(_engine),
]


class TrainerArgs(Strict):
    """``[trainer.args]``: how the model learns."""

    run_name: str | None = Field(
        default=None,
        pattern=r"^[\w.-]+$",
        description="Folder of the run; by default the TOML's name and a number.",
    )
    output_dir: str = Field(default="runs", description="Where run folders are made.")
    seed: int = Field(default=0, description="Seed of everything random.")

    max_steps: Positive = Field(default=100, description="Training steps.")
    batch_size: Positive = Field(default=64, description="Rollouts in one step.")
    rollouts_per_example: Annotated[int, Field(ge=2)] = Field(
        default=8, description="Rollouts of one task in a step; advantages are relative to them."
    )
    num_substeps: Positive = Field(
        default=1, description="Optimizer steps that a batch is split into, by whole groups."
    )
    micro_batch_tokens: Positive = Field(
        default=8192, description="Tokens, padding included, in one forward and backward pass."
    )
    micro_batch_size: Positive | None = Field(
        default=None, description="Most sequences in one forward and backward pass."
    )

    max_tokens: Positive = Field(default=512, description="Tokens sampled in one turn at most.")
    max_prompt_len: Positive = Field(
        default=1024, description="Tokens in a task's first prompt at most."
    )
    max_seq_len: Positive = Field(default=2048, description="Tokens in one context at most.")
    temperature: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="Sampling temperature."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(default=1.0, description="Nucleus mass.")
    top_k: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Likeliest tokens kept; 0 keeps all."
    )
    min_p: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0,
        description="Share of the likeliest token's probability below which tokens are dropped.",
    )
    repetition_penalty: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="Divides the logits of tokens already in the context."
    )
    max_concurrent: Positive = Field(default=64, description="Rollouts in flight at once.")
    generation_timeout: Seconds = Field(
        default=120.0, description="Seconds for one answer of the model."
    )
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.25, description="Share of a step's rollouts that may fail before the run stops."
    )

    learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=1e-4, description="Peak learning rate."
    )
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Course of the learning rate after the warm-up."
    )
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Steps of linear warm-up."
    )
    max_grad_norm: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="Gradient norm is clipped to it."
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="AdamW's decoupled decay."
    )
    loss_fn: Literal["importance_sampling", "ppo"] = Field(
        default="importance_sampling", description="Loss per token; see trainer/losses.py."
    )
    clip_low: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.2, description="`ppo`: ratio floor is 1 - this."
    )
    clip_high: Annotated[float, Field(gt=0)] = Field(
        default=0.2, description="`ppo`: ratio ceiling is 1 + this."
    )
    advantage: Literal["mean", "mean_std"] = Field(
        default="mean",
        description="Reward less the group's mean; `mean_std` also divides by its deviation.",
    )
    bf16: bool = Field(
        default=False, description="Keep the frozen weights in bfloat16 (with LoRA)."
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="Recompute activations in the backward pass: less memory, more time.",
    )

    use_lora: bool = Field(
        default=True, description="Train a LoRA adapter rather than all weights."
    )
    lora_rank: Positive = Field(default=16, description="Rank of the adapter.")
    lora_alpha: Annotated[float, Field(gt=0)] = Field(
        default=32, description="Scale of the adapter, over its rank."
    )
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="Dropout before the adapter."
    )
    lora_target_modules: list[str] | None = Field(
        default=None,
        description="Names of the adapted modules; by default all linear layers but the head.",
    )

    eval_strategy: Literal["no", "steps"] = Field(
        default="steps",
        description="`steps`: before the first step, every `eval_steps`, and after the last.",
    )
    eval_steps: Positive = Field(default=50, description="Steps between evaluations.")
    eval_examples: Positive = Field(default=64, description="Held-out tasks in an evaluation.")
    save_steps: Positive = Field(
        default=50, description="Steps between checkpoints; the last is always saved."
    )
    sample_steps: Positive = Field(
        default=10, description="Steps between conversations shown on the terminal."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse settings that contradict each other."""
        groups, rest = divmod(self.batch_size, self.rollouts_per_example)
        if rest:
            near = max(1, round(self.batch_size / self.rollouts_per_example))
            raise ValueError(
                f"batch_size = {self.batch_size} is not a multiple of rollouts_per_example = "
                f"{self.rollouts_per_example}; try batch_size = {near * self.rollouts_per_example}"
            )
        if groups % self.num_substeps:
            raise ValueError(
                f"num_substeps = {self.num_substeps} does not divide the {groups} groups of a "
                "batch (batch_size / rollouts_per_example)"
            )
        if self.max_prompt_len >= self.max_seq_len:
            raise ValueError(
                f"max_prompt_len = {self.max_prompt_len} leaves no room for an answer in "
                f"max_seq_len = {self.max_seq_len}; lower the first or raise the second"
            )
        if self.micro_batch_tokens < self.max_seq_len:
            raise ValueError(
                f"micro_batch_tokens = {self.micro_batch_tokens} is below max_seq_len = "
                f"{self.max_seq_len}, so a full context fits in no micro-batch; raise it"
            )
        changed = {
            name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.default
        }
        lora = sorted(name for name in changed if name.startswith("lora_"))
        if lora and not self.use_lora:
            raise ValueError(f"{', '.join(lora)} is set, but use_lora = false; remove one")
        if self.bf16 and not self.use_lora:
            raise ValueError(
                "bf16 = true needs use_lora = true: weights trained in bfloat16 lose small updates"
            )
        clips = sorted(changed & {"clip_low", "clip_high"})
        if clips and self.loss_fn != "ppo":
            raise ValueError(f"{', '.join(clips)} is set, but only loss_fn = 'ppo' clips")
        return self


class TrainerConfig(Strict):
    """``[trainer]``: who learns."""

    gpus: int | list[int] | None = Field(
        default=None,
        description="CUDA devices to train on, or how many of the first; one process on each. "
        "By default one process, on the first device that there is.",
    )
    args: TrainerArgs = Field(default_factory=TrainerArgs)

    @field_validator("gpus", mode="before")
    @classmethod
    def _are_devices(cls, gpus: Any) -> Any:
        if isinstance(gpus, list):
            numbers = all(type(gpu) is int and gpu >= 0 for gpu in gpus)
            fine = numbers and 0 < len(gpus) == len(set(gpus))
        else:
            fine = gpus is None or (type(gpus) is int and gpus > 0)
        if not fine:
            raise ValueError(
                f"{gpus!r} is neither a number of devices nor a list of different ones"
            )
        return gpus

    @property
    def devices(self) -> list[int] | None:
        """The devices that ``gpus`` means; None leaves the choice to torch."""
        return list(range(self.gpus)) if isinstance(self.gpus, int) else self.gpus


class Config(Strict):
    """A whole run."""

    model: str = Field(
        description="A local folder or a hub name; `tiny` is the model that ships with the library."
    )
    env: EnvConfig
    inference: InferenceConfig = Field(default_factory=EmbeddedSettings)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)

    @property
    def args(self) -> TrainerArgs:
        """``[trainer.args]``, for short."""
        return self.trainer.args
