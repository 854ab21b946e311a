"""What a run is made of: the models behind the TOML. Every field changes behaviour.

Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_serializer, field_validator, model_validator

from vf.inference.model import FILTERS, Sampling
from vf.inference.settings import (
    EmbeddedSettings,
    MinP,
    Positive,
    PositiveTemperature,
    Seconds,
    Strict,
    TopK,
    TopP,
)
from vf.trainer.settings.cluster import ClusterConfig
from vf.trainer.settings.determinism import check_deterministic
from vf.trainer.settings.engines import InferenceConfig
from vf.trainer.settings.environments import EnvConfig, check_mixture, listed, names_of, tables_of
from vf.trainer.settings.images import ImageArgs, check_images
from vf.trainer.settings.loop_args import LoopArgs
from vf.trainer.settings.loss_args import LossArgs
from vf.trainer.settings.rollouts import RolloutsConfig
from vf.trainer.settings.shared import SharedArgs
from vf.trainer.settings.tinker import TinkerConfig, check_backend

# Which settings belong to which losses.
_LOSS_SETTINGS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("clip_low", "clip_high"): ("ppo", "cispo"),
    ("dual_clip",): ("ppo",),
    ("sequence_clip_low", "sequence_clip_high"): ("gspo",),
    ("dro_beta",): ("dro",),
    ("drop_low", "drop_high", "dppo_tau"): ("dppo",),
    ("import_path",): ("custom",),
}


class TrainerArgs(LossArgs, LoopArgs, ImageArgs, SharedArgs):
    """``[trainer.args]``: how the model learns."""

    micro_batch_tokens: Positive | Literal["auto"] = 8192
    """Tokens in one forward and backward pass; padding counts where there is any, and a shared
    prefix counts once. `auto` takes as many as the free memory is predicted to hold."""
    packing: bool = True
    """Train sequences packed, without padding; a model that cannot is padded."""
    share_prefixes: bool = True
    """Compute common prefixes of packed sequences only once, where it saves time."""

    max_tokens: Positive = 512
    """Maximum tokens sampled in one turn."""
    max_prompt_len: Positive = 1024
    """Maximum tokens in a task's first prompt."""
    temperature: PositiveTemperature = 1.0
    """Sampling temperature."""
    top_p: TopP = 1.0
    top_k: TopK = 0
    min_p: MinP = 0.0
    generation_timeout: Seconds = 120.0
    """Seconds without a sampled token for any request, after which the engine's answers in progress
    are given up. Time does not count while it pauses for training or new weights, or while a
    request waits for a connection. For a server that does not count its tokens: seconds without an
    answer, for `max_tokens` up to 1,024, and more in proportion.
    """
    bf16: bool | Literal["auto"] = "auto"
    """Compute in bfloat16. Trained parameters are kept and updated in float32, and
    log-probabilities are float32. `auto` does so on a CUDA device that has it; without, float32
    products use TF32.
    """
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Recompute activations in the backward pass: less memory, more time. `auto` does so if the
    predicted peak without it exceeds the free memory.
    """

    disable_dropout: bool = True
    """Train without the base model's dropout, and without other noise that it has in training only,
    for the policy that sampled had none. The adapter's is `lora_dropout`."""

    lora_target_modules: list[str] | None = None
    """Names of the adapted modules; by default what train_attn, train_mlp and train_unembed say,
    in the text part of the model, and never its routers."""
    lora_target_parameters: list[str] | None = None
    """Names of adapted tensors that are in no linear layer, such as `experts.down_proj` of all
    experts in a layer; by default as for lora_target_modules."""

    @property
    def sampling(self) -> Sampling:
        """How rollouts are sampled, whatever an agent asks for."""
        names = ("max_tokens", "temperature", *FILTERS)
        return Sampling(**{name: getattr(self, name) for name in names}, fixed=True, trained=True)

    @field_validator("micro_batch_tokens", mode="before")
    @classmethod
    def _is_budget(cls, tokens: Any) -> Any:
        if isinstance(tokens, str) and tokens != "auto":
            raise ValueError(f"{tokens!r} is neither a number of tokens nor 'auto'")
        return tokens

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse settings that contradict each other."""
        if self.max_prompt_len >= self.max_seq_len:
            raise ValueError(
                f"max_prompt_len = {self.max_prompt_len} leaves no room for an answer in "
                f"max_seq_len = {self.max_seq_len}; lower the first or raise the second"
            )
        if self.micro_batch_tokens != "auto" and self.micro_batch_tokens < self.max_seq_len:
            raise ValueError(
                f"micro_batch_tokens = {self.micro_batch_tokens} is below max_seq_len = "
                f"{self.max_seq_len}, so a full context fits in no micro-batch; raise it"
            )
        changed = self.changed()
        self.check_loop(changed)
        self._check_adapter(changed)
        self._check_loss(changed)
        self._check_credit(changed)
        self._check_reference(changed)
        self._check_teacher(changed)
        return self

    def _check_adapter(self, changed: set[str]) -> None:
        parts = {"train_attn", "train_mlp", "train_unembed"}
        self.check_lora({name for name in changed if name.startswith("lora_") or name in parts})
        targets = sorted(changed & {"lora_target_modules", "lora_target_parameters"})
        if targets and (named := sorted(changed & parts)):
            raise ValueError(
                f"{targets[0]} and {', '.join(named)} both say what is adapted; remove one"
            )
        if not (self.train_attn or self.train_mlp or self.train_unembed):
            raise ValueError(
                "train_attn, train_mlp and train_unembed are all false, so nothing is trained; "
                "set at least one"
            )

    def _check_loss(self, changed: set[str]) -> None:
        """Refuse the settings of one loss beside another."""
        token_clips = sorted(changed & {"clip_low", "clip_high", "dual_clip"})
        if token_clips and self.loss_fn == "gspo":
            raise ValueError(
                f"{', '.join(token_clips)} bounds a token's ratio, but loss_fn = 'gspo' clips the "
                "sequence's: set sequence_clip_low and sequence_clip_high, which are far smaller "
                "(3e-4 and 4e-4 by default)"
            )
        for names, losses in _LOSS_SETTINGS.items():
            set_here = sorted(changed & set(names))
            if set_here and self.loss_fn not in losses:
                readers = " or ".join(map(repr, losses))
                raise ValueError(
                    f"{', '.join(set_here)} is set, but only loss_fn = {readers} reads it; "
                    f"here loss_fn = {self.loss_fn!r}"
                )
        self._check_correction(changed)
        if self.loss_fn == "custom" and self.import_path is None:
            raise ValueError(
                "loss_fn = 'custom' needs import_path = 'package.module:function' (or "
                "'file.py:function')"
            )
        if self.stream_minibatches and self.kl_penalty_type == "advantage":
            raise ValueError(
                "stream_minibatches = true trains on groups before the last is there, but "
                "kl_penalty_type = 'advantage' needs the mean over all of them; remove one"
            )
        if self.fixed_length is not None and self.loss_normalisation != "fixed":
            raise ValueError(
                "fixed_length is set, but only loss_normalisation = 'fixed' reads it; remove one"
            )

    def _check_correction(self, changed: set[str]) -> None:
        mode = self.importance_sampling_mode
        clips = {"importance_sampling_clip_max", "importance_sampling_clip_min"}
        if mode == "off" and (named := sorted(changed & clips)):
            raise ValueError(
                f"{', '.join(named)} is set, but importance_sampling_mode = 'off' weighs nothing; "
                "remove one"
            )
        if "importance_sampling_clip_min" in changed and not (mode or "").endswith("_mask"):
            raise ValueError(
                "importance_sampling_clip_min is set, but only importance_sampling_mode = "
                "'token_mask' or 'sequence_mask' reads it; set one of them, or remove it"
            )

    def _check_credit(self, changed: set[str]) -> None:
        if self.overlong_buffer is None and "overlong_penalty" in changed:
            raise ValueError("overlong_penalty is set without overlong_buffer; set both")
        if self.overlong_buffer is not None and self.overlong_buffer >= self.max_tokens:
            raise ValueError(
                f"overlong_buffer = {self.overlong_buffer} leaves no turn free of cost, for "
                f"max_tokens = {self.max_tokens}; lower the first"
            )
        if self.credit == "trace" and "credit_discount" in changed:
            raise ValueError("credit_discount is set, but only credit = 'turn' discounts")
        if self.advantage == "max_rl" and (self.credit == "turn" or self.overlong_buffer):
            raise ValueError(
                "advantage = 'max_rl' divides by the mean reward, which credit = 'turn' and "
                "overlong_buffer can make negative; choose another advantage, or leave them out"
            )

    def _check_reference(self, changed: set[str]) -> None:
        about = {"kl_penalty_type", "kl_discount_factor", "reference_model"}
        unused = sorted(changed & (about | {"reference_update_steps", "reference_update_rate"}))
        if unused and not self.kl_penalty_coef:
            raise ValueError(
                f"{', '.join(unused)} is set, but kl_penalty_coef = 0 asks for no reference; "
                "set it, or remove the rest"
            )
        if "reference_update_rate" in changed and self.reference_update_steps is None:
            raise ValueError(
                f"reference_update_rate = {self.reference_update_rate:g} is set without "
                "reference_update_steps, the optimizer steps between two updates; set both"
            )
        if self.kl_discount_factor and self.kl_penalty_type != "advantage":
            raise ValueError(
                "kl_discount_factor is set, but only kl_penalty_type = 'advantage' discounts"
            )
        if self.reference_update_steps and self.use_lora and self.reference_model is not None:
            raise ValueError(
                "reference_update_steps makes the reference the model as it is, which "
                f"reference_model = {self.reference_model!r} cannot become with use_lora = true; "
                "remove one"
            )
        if self.kl_penalty_coef and not self.use_lora and self.reference_model is None:
            raise ValueError(
                f"kl_penalty_coef = {self.kl_penalty_coef:g} without a reference: with use_lora = "
                "false nothing keeps the weights that training began with. Set reference_model "
                "(usually to the same as model; it is then held in memory a second time)"
            )

    def _check_teacher(self, changed: set[str]) -> None:
        if self.teacher_model is None:
            if unused := sorted(name for name in changed if name.startswith("teacher_")):
                raise ValueError(
                    f"{', '.join(unused)} is set without teacher_model, the model that teaches; "
                    "set it, or remove the rest"
                )
            return
        if self.teacher_base_url is not None and self.temperature != 1.0:
            raise ValueError(
                f"temperature = {self.temperature:g}, but a teacher at teacher_base_url answers at "
                "temperature 1, and the two are compared: set temperature = 1, or remove "
                "teacher_base_url, so that the trainer loads the teacher"
            )
        if "teacher_top_k" in changed and self.teacher_loss != "forward_kl":
            raise ValueError(
                "teacher_top_k is set, but only teacher_loss = 'forward_kl' reads it; set both"
            )
        filters = sorted(changed & {*FILTERS})
        if filters:
            raise ValueError(
                f"{', '.join(filters)} changes what is sampled, but teacher_model is compared with "
                "the whole distribution: remove one"
            )
        if not self.teacher_reward_coef and self.max_refill:
            raise ValueError(
                "max_refill replaces groups whose rewards are all equal, but with "
                "teacher_reward_coef = 0 rewards give no learning signal: remove one"
            )


class TrainerConfig(Strict):
    """``[trainer]``: who learns."""

    gpus: int | list[int] | None = None
    """CUDA devices to train on, or how many of the first; one process on each. By default what
    `inference.gpus` leaves, or half of them, where the run starts a vLLM server; else one process,
    on the first device that there is."""
    accelerate_config: str | None = None
    """A file that `accelerate config` wrote, such as one for FSDP2 or DeepSpeed: how the trainer's
    processes are started, and whether they share the weights. `gpus` still says how many and
    where."""
    backend: Literal["local", "tinker"] = "local"
    """`local`: this machine trains; `tinker`: a server of the Tinker API trains and samples."""
    tinker: TinkerConfig = Field(default_factory=TinkerConfig)
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

    model: str
    """A local folder or a hub name; `tiny` is the model that ships with the library."""
    env: Annotated[list[EnvConfig], BeforeValidator(listed)]
    """The environments: one `[env]`, or several `[[env]]`."""
    inference: InferenceConfig = Field(default_factory=EmbeddedSettings)
    rollouts: RolloutsConfig = Field(default_factory=RolloutsConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)

    @property
    def args(self) -> TrainerArgs:
        """``[trainer.args]``, for short."""
        return self.trainer.args

    @property
    def names(self) -> list[str]:
        """The environments' names, all different."""
        return names_of(self.env)

    @property
    def tables(self) -> list[str]:
        """The environments' tables, as ``--set`` and messages name them."""
        return tables_of(self.env)

    def args_of(self, env: EnvConfig) -> TrainerArgs:
        """Return ``[trainer.args]`` as they are in an environment."""
        return self.args.model_copy(update=env.own_args)

    def with_args(self, **updates: Any) -> Self:
        """Return a copy with other ``[trainer.args]``, which are not checked again."""
        args = self.args.model_copy(update=updates)
        return self.model_copy(update={"trainer": self.trainer.model_copy(update={"args": args})})

    @field_serializer("env")
    def _as_written(self, envs: list[EnvConfig]) -> Any:
        """Write a single environment as a table, and not as a list."""
        return envs[0] if len(envs) == 1 else envs

    @model_validator(mode="after")
    def _mixes(self) -> Self:
        """Refuse environments that do not go together, or with ``[trainer.args]``."""
        check_mixture(self.env, self.args, TrainerArgs.model_validate)
        return self

    @model_validator(mode="after")
    def _serves_what_is_trained(self) -> Self:
        """Refuse a server whose weights, or bits, are not those that are trained."""
        own = {table: env.own_args for table, env in zip(self.tables, self.env, strict=True)}
        check_deterministic(self.trainer, self.inference, own)
        check_backend(self)
        check_images(self)
        if self.args.load_in_4bit and not self.inference.in_process:
            raise ValueError(
                "trainer.args.load_in_4bit = true trains an adapter on rounded weights, and a vLLM "
                'server would sample from exact ones: set inference.engine = "embedded", or '
                "load_in_4bit = false"
            )
        return self

    @model_validator(mode="after")
    def _places_by_number(self) -> Self:
        """Refuse numbers of devices where a cluster chooses them."""
        if self.cluster.backend == "ray" and isinstance(self.trainer.gpus, list):
            raise ValueError(
                f"trainer.gpus = {self.trainer.gpus} numbers the devices of one machine, but with "
                'cluster.backend = "ray" they are anywhere in the cluster: say how many, '
                f"trainer.gpus = {len(self.trainer.gpus)}"
            )
        if self.cluster.backend == "ray" and getattr(self.inference, "gpus", None) is not None:
            raise ValueError(
                "inference.gpus numbers the devices of one machine, but with cluster.backend = "
                '"ray" they are anywhere in the cluster: say how many each server has with '
                "inference.gpus_per_replica"
            )
        return self

    @model_validator(mode="after")
    def _sleeps_alone(self) -> Self:
        """Refuse what would ask a sleeping server."""
        args, inference = self.args, self.inference
        if inference.started is not None and inference.started.sleep:
            if args.max_steps_off_policy:
                raise ValueError(
                    "inference.sleep = true lets the server sleep while the model is trained, so "
                    "nothing can be generated ahead: set trainer.args.max_steps_off_policy = 0"
                )
            if args.stream_minibatches:
                raise ValueError(
                    "inference.sleep = true lets the server sleep while the model is trained, but "
                    "stream_minibatches = true trains while it generates; remove one"
                )
        return self
