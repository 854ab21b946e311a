"""The settings of `[trainer.args]` for the loss and the optimizer.

The formulas and their sources stand in docs/losses.md. Importing this module loads no torch.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, Field, field_validator

from vf.inference.settings import STRICT, Positive, real_numbers
from vf.runtime.errors import did_you_mean
from vf.trainer.settings.shared import NotNegative, Share

LossName = Literal["importance_sampling", "ppo", "cispo", "dro", "gspo", "dppo", "custom"]
CorrectionMode = Literal[
    "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
]
AdvantageKind = Literal["mean", "mean_std", "rloo", "max_rl"]

_REINFORCE = 'loss_fn = "importance_sampling", loss_normalisation = "fixed"'
_GRPO = 'loss_fn = "ppo", advantage = "mean_std"'
# Algorithms that are a loss, advantages and a normalisation together; docs/losses.md has sources.
ALGORITHMS = {
    "grpo": f'{_GRPO}, loss_normalisation = "sequence"; with the KL of the paper, '
    "kl_penalty_coef = 0.04",
    "dr_grpo": 'loss_fn = "ppo", advantage = "mean", loss_normalisation = "fixed"',
    "dapo": f'{_GRPO}, loss_normalisation = "token", clip_high = 0.28, max_refill = 1.0; with '
    "overlong_buffer, a fifth of max_tokens in the paper",
    "bnpo": f'{_GRPO}, loss_normalisation = "token"',
    "reinforce": f'{_REINFORCE}, advantage = "mean"',
    "rloo": f'{_REINFORCE}, advantage = "rloo"',
    "max_rl": 'loss_fn = "importance_sampling", advantage = "max_rl"',
}


class LossArgs(BaseModel):
    """Loss, advantages, credit, KL and optimizer: the base of ``TrainerArgs``."""

    model_config = STRICT
    _numbers = real_numbers()

    loss_fn: LossName = "importance_sampling"
    """Loss per token; see docs/losses.md."""
    loss_normalisation: Literal["token", "sequence", "fixed"] = "token"
    """What the sum of token losses is divided by: all trained tokens of the optimizer step; each
    rollout's own tokens, then the number of rollouts; or a fixed length, then the number of
    rollouts.
    """
    fixed_length: Positive | None = None
    """`fixed`: tokens that a rollout counts for; by default max_seq_len."""
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """`ppo`, `cispo`: a token's ratio floor is 1 - this."""
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    """`ppo`, `cispo`: a token's ratio ceiling is 1 + this."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """`ppo`: where the advantage is negative, the ratio counts at most this much."""
    sequence_clip_low: Annotated[float, Field(gt=0, le=1)] = 3e-4
    """`gspo`: a sequence's ratio floor is 1 - this."""
    sequence_clip_high: Annotated[float, Field(gt=0)] = 4e-4
    """`gspo`: a sequence's ratio ceiling is 1 + this."""
    dro_beta: NotNegative = 0.05
    """`dro`: weight of ½ (log p - log q)²."""
    drop_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """`dppo`: fall of a token's probability beyond which a negative advantage is dropped."""
    drop_high: Annotated[float, Field(gt=0, le=1)] = 0.2
    """`dppo`: rise of a token's probability beyond which a positive advantage is dropped."""
    dppo_tau: NotNegative = 1e-3
    """`dppo`: weight of (log p - log q)²."""
    import_path: str | None = None
    """`custom`: `package.module:function` or `file.py:function` of the loss."""
    importance_sampling_mode: CorrectionMode | None = None
    """Weight of a token for what separates the engine from the trainer, apart from the loss' own
    ratio, which is then to the weights that the batch began with: truncated or masked, of tokens or
    of sequences. By default `token_truncate` where generation runs ahead of training, unless the
    loss bounds its ratio itself (`cispo`), has none (`dro`) or is your own; else `off`."""
    importance_sampling_clip_max: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    """`importance_sampling_mode`: largest weight; what is above is truncated to it, or masked."""
    importance_sampling_clip_min: Annotated[float, Field(ge=0, le=1)] | None = None
    """`token_mask`, `sequence_mask`: smallest weight that is not masked; by default
    1 / importance_sampling_clip_max."""
    entropy_coef: NotNegative = 0.0
    """Weight of the entropy bonus; 0 gives none."""
    observation_loss_coef: NotNegative = 0.0
    """Weight of the cross-entropy on what the environment answered (tool results, a user's
    replies), so that the model learns to predict it; 0 gives none."""
    router_aux_loss_coef: NotNegative = 0.0
    """Mixtures of experts: weight of the auxiliary loss that keeps experts equally busy; 0 gives
    none."""
    router_replay: Literal["off", "compare", "replay"] = "off"
    """Mixtures of experts: `replay` has the trainer send each token to the experts that the engine
    sent it to; `compare` only measures how often they differ. Both record them in the traces."""

    advantage: AdvantageKind = "mean"
    """Reward less the group's mean; `mean_std` divides by its deviation, `max_rl` by the mean;
    `rloo` takes the mean of the others."""
    mask_truncated: bool = False
    """Train no token of a rollout that a limit ended or whose answer was cut at max_tokens; its
    reward still counts in its group."""
    overlong_buffer: Positive | None = None
    """Number of tokens before max_tokens at which a turn starts to cost reward."""
    overlong_penalty: Annotated[float, Field(gt=0)] = 1.0
    """`overlong_buffer`: what a turn of max_tokens costs."""
    credit: Literal["trace", "turn"] = "trace"
    """`trace`: every token gets the rollout's advantage; `turn`: that of what was earned from its
    turn on."""
    credit_discount: Share = 1.0
    """`credit = turn`: discount of a reward per turn."""

    kl_penalty_coef: NotNegative = 0.0
    """Weight of the KL against the reference; 0 needs no reference."""
    kl_penalty_type: Literal["loss", "advantage"] = "loss"
    """`loss`: k3 is added to each token's loss; `advantage`: the token's log ratio to the reference
    is taken from its advantage."""
    kl_discount_factor: Share = 0.0
    """`kl_penalty_type = advantage`: discount per token of later tokens' KL."""
    reference_model: str | None = None
    """Folder or hub name of the reference, loaded beside the model. By default the model without
    its adapter; a full fine-tune has to name one."""
    reference_update_steps: Positive | None = None
    """Optimizer steps between updates of the reference towards the model."""
    reference_update_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    """`reference_update_steps`: how far it moves: 1 copies the model; a smaller value gives an
    exponential moving average of its weights.
    """

    teacher_model: str | None = None
    """On-policy distillation: folder or hub name of a teacher with the model's tokenizer, loaded
    beside it; with teacher_base_url, the name under which that server has it."""
    teacher_base_url: str | None = None
    """URL, up to `/v1`, of a vLLM server that has the teacher. Its log-probabilities are those of
    temperature 1."""
    teacher_loss: Literal["reverse_kl", "forward_kl"] = "reverse_kl"
    """`reverse_kl`: log p_teacher - log q of the sampled token is part of its advantage;
    `forward_kl`: KL(teacher, model) over the teacher's likeliest tokens is added to its loss."""
    teacher_top_k: Positive = 20
    """`forward_kl`: how many of the teacher's likeliest tokens count one by one; the rest count as
    one. A vLLM server gives 20, or what its --max-logprobs says."""
    teacher_coef: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Weight of the teacher, in a token's advantage or in its loss."""
    teacher_reward_coef: NotNegative = 0.0
    """Weight of the reward's advantage beside the teacher's; 0 learns from the teacher alone."""
    teacher_privileged: bool = False
    """The teacher reads before a task what the environment's `privileged_context(task)` returns,
    such as a solution, and the model does not. With a teacher_model that is the model itself, this
    is self-distillation."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = 1e-4
    """Peak learning rate; `auto` follows a rule in docs/losses.md."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW's term in the denominator."""

    train_attn: bool = True
    """LoRA adapts the attention's layers."""
    train_mlp: bool = True
    """LoRA adapts all other linear layers except the head."""
    train_unembed: bool = False
    """LoRA adapts the head."""

    @field_validator("loss_fn", mode="before")
    @classmethod
    def _is_loss(cls, name: object) -> object:
        """Say what other algorithms are here."""
        names = get_args(LossName)
        if name in names:
            return name
        plain = re.sub(r"[^a-z]+", "_", str(name).lower()).strip("_")
        algorithm = {"drgrpo": "dr_grpo", "maxrl": "max_rl"}.get(plain, plain)
        if (settings := ALGORITHMS.get(algorithm)) is not None:
            raise ValueError(
                f"{name!r} is no loss by itself here, but these settings: {settings}. See "
                "docs/losses.md"
            )
        near = difflib.get_close_matches(algorithm, ALGORITHMS, n=1, cutoff=0.6)
        if near and not difflib.get_close_matches(algorithm, names, n=1, cutoff=0.8):
            hint = f" {near[0]!r} is these settings: {ALGORITHMS[near[0]]}."
        else:
            hint = did_you_mean(plain, names)
        raise ValueError(
            f"there is no loss {name!r}.{hint} Known: {', '.join(names)}; see docs/losses.md"
        )

    @field_validator("learning_rate", mode="before")
    @classmethod
    def _is_rate(cls, value: object) -> object:
        """Answer both kinds of value with one message."""
        is_rate = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        if value != "auto" and not is_rate:
            raise ValueError(f"{value!r} is neither a number above 0 nor 'auto'")
        return value
