"""The requests of the Tinker API, as JSON. A field that is not listed here is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_RANK = 512
MOST_SAMPLES = 1024
MOST_TOP = 64  # likeliest tokens of one position
MOST_STOPS = 64
MOST_TOKENS = 2**31  # of an answer: the context bounds it

Name = Annotated[str, Field(min_length=1, max_length=200)]
Metadata = dict[str, Any] | None
Seconds = Annotated[int, Field(ge=1, le=10 * 366 * 24 * 3600)]


STRICT = ConfigDict(extra="forbid", protected_namespaces=())


class Body(BaseModel):
    """What all requests share."""

    model_config = STRICT

    type: str | None = None


class Heartbeat(Body):
    """``session_heartbeat``, and what else names a session only."""

    session_id: str


class ClientConfig(Body):
    """``client/config`` and ``client/dynamic_config``."""

    sdk_version: str | None = None


class CreateSession(Body):
    """``create_session``."""

    tags: list[str] = []
    user_metadata: Metadata = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class LoraSettings(Body):
    """What of a model an adapter is for."""

    rank: int = Field(ge=1, le=MOST_RANK)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfig(Body):
    """The optimizer of a model."""

    type: Literal["adamw"] = "adamw"


class CreateModel(Body):
    """``create_model``."""

    session_id: str
    model_seq_id: int = Field(ge=0)
    base_model: str
    user_metadata: Metadata = None
    lora_config: LoraSettings | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()


class OneModel(Body):
    """``get_info`` and ``unload_model``."""

    model_id: str


class Sequenced(BaseModel):
    """A request to a model; ``seq_id`` is its number among them, from 1."""

    model_config = STRICT

    type: str | None = None
    model_id: str
    seq_id: int | None = Field(None, ge=0)


class AdamParams(BaseModel):
    """AdamW's settings for one step."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    learning_rate: float = Field(0.0001, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-12, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    grad_clip_norm: float = Field(0.0, ge=0)


class OptimStep(Sequenced):
    """``optim_step``."""

    adam_params: AdamParams


class SaveWeights(Sequenced):
    """``save_weights``: without a path it gets the number of the request as its name."""

    path: Name | None = None
    ttl_seconds: Seconds | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveForSampler(Sequenced):
    """``save_weights_for_sampler``: with a path it is a checkpoint, without one a sampler."""

    path: Name | None = None
    sampling_session_seq_id: int | None = Field(None, ge=0)
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: Seconds | None = None
    user_metadata: dict[str, str] | None = None


class LoadWeights(Body):
    """``load_weights``: into a model, or as a new model of a session."""

    path: str
    optimizer: bool
    model_id: str | None = None
    seq_id: int | None = Field(None, ge=0)
    session_id: str | None = None
    model_seq_id: int | None = Field(None, ge=0)
    base_model: str | None = None
    user_metadata: Metadata = None
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None


class CreateSampler(Body):
    """``create_sampling_session``."""

    session_id: str
    sampling_session_seq_id: int = Field(ge=0)
    base_model: str | None = None
    model_path: str | None = None


class JoinSampler(Body):
    """``join_sampling_session``."""

    sampling_session_id: str


class Chunk(BaseModel):
    """A piece of a model's input; only token ids are understood."""

    model_config = ConfigDict(extra="allow")

    type: str = "encoded_text"
    tokens: list[int] | None = None


class ModelInput(Body):
    """A model's input."""

    chunks: list[Chunk]


class Tensor(Body):
    """Numbers with a shape."""

    data: list[float]
    dtype: Literal["float32", "int64"]
    shape: list[int] | None = None
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None


class JsonDatum(Body):
    """One sequence to train on."""

    model_input: ModelInput
    loss_fn_inputs: dict[str, Tensor]
    model_input_spans: list[dict[str, Any]] | None = None
    loss_fn_input_spans: list[dict[str, Any]] | None = None


class LossInput(Body):
    """The data of a pass, and its loss."""

    data: list[JsonDatum]
    loss_fn: str
    loss_fn_config: dict[str, float | str] | None = None


class Forward(Sequenced):
    """``forward``."""

    forward_input: LossInput


class ForwardBackward(Sequenced):
    """``forward_backward``, where it is JSON."""

    forward_backward_input: LossInput
    forward_only: bool = False


class SamplingParams(BaseModel):
    """How to sample."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: (
        str
        | Annotated[list[int], Field(max_length=MOST_STOPS)]
        | Annotated[list[str], Field(max_length=MOST_STOPS)]
        | None
    ) = None
    temperature: float = Field(1.0, ge=0, le=100)
    top_k: int = Field(-1, ge=-1)
    top_p: float = Field(1.0, gt=0, le=1)


class Sample(Body):
    """``asample``."""

    prompt: ModelInput
    sampling_params: SamplingParams
    num_samples: int = Field(1, ge=1, le=MOST_SAMPLES)
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = Field(None, ge=0)
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(0, ge=0, le=MOST_TOP)
    prompt_logprobs_last_n: int | None = Field(None, ge=1)
    topk_sample_logprobs: Literal[0] = 0
    target_prompt_logprobs: None = None
    prompt_alt_tokens_k: Literal[0] = 0
    record_stability_info: Literal[False] | None = None


class Retrieve(Body):
    """``retrieve_future`` and ``cancel_future``."""

    request_id: str
    allow_metadata_only: bool = False


class Expiry(Body):
    """``checkpoints/.../ttl``."""

    ttl_seconds: Seconds | None = None


class WeightsInfo(Body):
    """``weights_info``."""

    tinker_path: str
