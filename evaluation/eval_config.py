"""The settings of an evaluation: the pydantic models behind its TOML and its command line.

Importing this module loads neither torch nor a network client.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, Field, PrivateAttr, TypeAdapter, model_validator

from vf.environments.locate import absolute
from vf.environments.registry import label
from vf.inference.model import NEUTRAL, Sampling, ToolStyle
from vf.inference.model_files import TINY
from vf.inference.settings import (
    MinP,
    Positive,
    RepetitionPenalty,
    Seconds,
    Strict,
    Temperature,
    TopK,
    TopP,
)
from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.toml import KeyVariable, checked

Amount = Annotated[float, Field(ge=0)]
# What changes how an evaluation runs, but not what it measures: an evaluation can be resumed with
# other values.
NOT_MEASURED = ("max_concurrent", "retry_errors", "generation_timeout", "prices", "output")
# Of an engine that is started here: where it runs, not what it answers.
NOT_ANSWERED = ("python", "executable", "host", "port", "startup_timeout")
SCRIPTED = ("oracle", "nop")  # what the engine "script" can be
# How much is measured: it can be resumed with higher values.
SIZE = ("tasks", "rollouts_per_example")
SYNONYMS = {
    "num_tasks": "tasks",
    "rollouts": "rollouts_per_example",
    "concurrency": "max_concurrent",
}


def slug(name: str) -> str:
    """Return a name as it can be part of a path."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "-"


def looks_local(model: str) -> bool:
    """Return whether a model's name is a folder's, or that of the model that ships with vf-rl."""
    return model == TINY or model.startswith((".", "/", "~")) or Path(model).is_dir()


class Price(Strict):
    """``[prices."MODEL"]``: what a model costs, in any one currency."""

    input: Amount
    """Price of a million prompt tokens."""
    output: Amount
    """Price of a million sampled tokens."""

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return what an answer costs; NaN if its tokens have a price and were not counted."""
        if not prompt_tokens and (self.input or self.output):  # no prompt is without tokens
            return math.nan
        return (self.input * prompt_tokens + self.output * completion_tokens) / 1e6


class Prices(Strict):
    """The file of ``--prices``."""

    prices: dict[str, Price] = Field(min_length=1)
    """Tables `[prices."MODEL"]` with `input` and `output`, per million tokens."""


class ModelConfig(Strict):
    """``[[models]]``: the models to measure."""

    _sends_every_field: bool = PrivateAttr(default=False)

    model: str
    """Name at the API; for an engine started here, a folder, `tiny` or a hub name."""
    name: str = ""
    """Name in the results; by default the same."""
    engine: Literal["api", "embedded", "vllm", "script"] | None = None
    """`api`: an OpenAI-compatible chat API; `embedded` and `vllm` are started here; `script`: no
    model, but `oracle`, which solves each task, or `nop`, which does nothing. By default `embedded`
    for `tiny`, a folder and, where no API is named, a hub name (OWNER/NAME); otherwise `api`."""
    base_url: str | None = None
    """URL of the API, up to and including /v1; OpenAI's by default."""
    api_key_env: KeyVariable | None = None
    """Environment variable with the API's key; OPENAI_API_KEY by default."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Extra parameters of every request to an API."""
    request_fields: dict[str, str | Literal[False]] = Field(default_factory=dict)
    """By a request field's name, the name by which the API takes it, or false to leave it out, as
    in { max_tokens = "max_completion_tokens", seed = false }. What an API refuses is noticed
    without it where leaving it out changes no answer."""
    send_reasoning: bool = True
    """Send the reasoning of earlier answers back to the API, as it came."""
    max_seq_len: Positive = 4096
    """Maximum tokens in a context of an engine started here; at most the model's."""
    tokenizer: str | None = None
    """Model whose tokenizer and chat template to use if the model has none, as a trained checkpoint
    of all weights."""
    chat_template: str | None = None
    """Chat template of an engine started here, in place of the model's own: `chatml`, `plain` or a
    file."""
    tool_style: ToolStyle | None = None
    """`template`: the chat template or the API tells the model of its tools (default); `text`: the
    system prompt lists them, and calls are read from the answers' text."""
    inference: dict[str, Any] = Field(default_factory=dict)
    """The engine's settings, as in [inference] of a training run."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse settings that the engine would ignore."""
        if self.engine is None:
            hub = "/" in self.model and not self._names_api()
            ours = self.base_url is None and (looks_local(self.model) or hub)
            self.engine = "embedded" if ours else "api"
        only = {
            "base_url": "api",
            "api_key_env": "api",
            "extra_body": "api",
            "request_fields": "api",
            "send_reasoning": "api",
            "max_seq_len": "engine",
            "inference": "engine",
            "tokenizer": "engine",
            "chat_template": "engine",
        }
        kind = self.engine if self.engine in ("api", "script") else "engine"
        wrong = [name for name in self.model_fields_set if only.get(name, kind) != kind]
        if kind == "script" and self.model not in SCRIPTED:
            hint = did_you_mean(self.model, SCRIPTED)
            raise ValueError(f"there is no script {self.model!r}.{hint} It is oracle or nop")
        if wrong:
            where = {"api": "an API", "script": "a script"}.get(kind, f"the {self.engine} engine")
            raise ValueError(f"{', '.join(sorted(wrong))} has no effect with {where}")
        self.name = self.name or self.model
        return self

    @property
    def sends_every_field(self) -> bool:
        """Whether the API gets neutral sampling fields too: vLLM has other defaults for some."""
        return self._sends_every_field

    @sends_every_field.setter
    def sends_every_field(self, value: bool) -> None:
        self._sends_every_field = value

    def _names_api(self) -> bool:
        """Return whether a name with a slash is one at an API: OpenAI's own has none."""
        return bool(self.api_key_env or self.extra_body or os.environ.get("OPENAI_BASE_URL"))


class EnvironmentConfig(Strict):
    """``[[environments]]``: the environments to measure in."""

    id: str
    """Name of a registered or installed environment, a file (`my_env.py`, or `my_env.py:MyEnv`), or
    `package.module:MyEnv`. A relative path begins at the TOML's folder."""
    name: str = ""
    """Name in the results; by default the id, or a file's name without its folder."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its constructor."""
    tasks: Positive | None = None
    """Number of tasks of its eval split; by default `tasks` of the file."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        self.name = self.name or label(self.id)
        return self


class Limits(Strict):
    """``[limits]``: of one rollout. One that reaches a limit is scored, and marked truncated."""

    max_turns: Positive | None = None
    """Replies of the model."""
    max_tokens: Positive | None = None
    """Tokens sampled in all turns."""
    max_seconds: Seconds | None = None
    """Wall time."""
    max_cost: Annotated[float, Field(gt=0)] | None = None
    """Cost, by [prices]; a turn that has started is paid in full."""


class EvalConfig(Strict):
    """A whole evaluation: every model in every environment."""

    environments: list[EnvironmentConfig] = Field(min_length=1)
    """The environments to measure in."""
    models: list[ModelConfig] = Field(min_length=1)
    """The models to measure."""
    tasks: Positive | None = None
    """Number of tasks from the start of each eval split; by default all."""
    rollouts_per_example: Positive = 1
    """Rollouts of each task."""
    max_concurrent: Positive = 32
    """Rollouts in flight."""
    max_tokens: Positive = 1024
    """Maximum tokens sampled in one turn."""
    temperature: Temperature = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: TopP = 1.0
    top_k: TopK = 0
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    seed: int = 0
    """Seed of all randomness."""
    generation_timeout: Seconds = 120.0
    """Seconds in which an engine started here samples no token, for any request, after which
    answers under way are given up. Of an API: seconds without an answer, for `max_tokens` up to
    1,024, and more in proportion."""
    retry_errors: Annotated[int, Field(ge=0)] = 0
    """Times that a failed rollout is retried, with another seed, before it counts as failed."""
    limits: Limits = Field(default_factory=Limits)
    """Limits of one rollout."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Prices by the model's name, per million tokens."""
    output: str | None = None
    """The results folder."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse names that would share a folder, and a cost limit without prices."""
        for kind, entries in (("environments", self.environments), ("models", self.models)):
            for name, count in Counter(slug(entry.name) for entry in entries).items():
                if count > 1:
                    raise ValueError(f"two of the {kind} are called {name}; give them a name each")
        if self.limits.max_cost is not None:
            missing = [model.model for model in self.models if model.model not in self.prices]
            if missing:
                raise ValueError(
                    f"limits.max_cost needs a price for {', '.join(missing)}: "
                    f'[prices."{missing[0]}"] with input and output, per million tokens'
                )
        return self

    @property
    def sampling(self) -> Sampling:
        """How every answer is sampled."""
        names = ("max_tokens", "temperature", *NEUTRAL)
        return Sampling(**{name: getattr(self, name) for name in names})

    def measured(self) -> dict[str, Any]:
        """Return what the results depend on, except for how many there are, as JSON."""
        left_out = {*NOT_MEASURED, *SIZE}
        if self.limits.max_cost is not None:
            left_out.remove("prices")
        names: Any = dict.fromkeys(left_out, True)
        inner: dict[str, Any] = {
            "models": {
                "__all__": {"api_key_env": True, "inference": dict.fromkeys(NOT_ANSWERED, True)}
            },
            "environments": {"__all__": {"tasks": True}},
        }
        settings = self.model_dump(mode="json", exclude={**names, **inner})
        for entry in settings["environments"]:
            entry["id"] = label(entry["id"])  # where a file lies changes no result
        return settings


def with_defaults(settings: Any, table: type[BaseModel] = EvalConfig) -> Any:
    """Return measured settings, each that is missing at its default: it is newer than they are.

    Args:
        settings: The result of :meth:`EvalConfig.measured`, perhaps of an earlier version.
        table: The settings class.
    """
    if not isinstance(settings, Mapping):
        return settings
    complete = dict(settings)
    for name, field in table.model_fields.items():
        if name not in complete:
            if not field.is_required():
                default = field.get_default(call_default_factory=True)
                complete[name] = TypeAdapter(Any).dump_python(default, mode="json")
            continue
        kinds = (field.annotation, *get_args(field.annotation))
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        value = complete[name]
        if inner and isinstance(value, list):
            complete[name] = [with_defaults(entry, inner[0]) for entry in value]
        elif inner and kinds[0] is inner[0]:
            complete[name] = with_defaults(value, inner[0])
        elif inner and isinstance(value, Mapping):
            complete[name] = {key: with_defaults(entry, inner[0]) for key, entry in value.items()}
    return complete


def parse_config(
    raw: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> EvalConfig:
    """Check an evaluation's settings.

    Args:
        raw: The settings as nested dicts.
        folder: The start of environments' relative paths; the working directory by default.
        overrides: Settings from the command line. They replace those of the same name; tables are
            merged.

    Raises:
        ConfigError: If a key or value is wrong. The message lists all problems.
    """
    if {"env", "trainer"} & raw.keys() and not {"environments", "models"} & raw.keys():
        raise ConfigError(
            "it has the settings of a training run, which `vf-rl FILE.toml` starts. To evaluate in "
            "its environment, name that and a model: `vf-rl eval ENVIRONMENT --model MODEL`"
        )
    merged = dict(raw)
    for theirs, ours in SYNONYMS.items():
        if theirs in merged:
            if ours in merged:
                raise ConfigError(f"{theirs} and {ours} are the same setting; keep {ours}")
            merged[ours] = merged.pop(theirs)
    for key, value in (overrides or {}).items():
        before = merged.get(key)
        both = isinstance(value, dict) and isinstance(before, dict)
        merged[key] = {**before, **value} if both else value  # type: ignore[dict-item]
    config = checked(EvalConfig, merged)
    for entry in config.environments:
        entry.id = absolute(entry.id, folder or Path.cwd())
    return config
