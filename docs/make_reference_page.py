"""Write `docs/reference.md` from the config models: `python docs/make_reference_page.py`."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import docstring_parser
from pydantic import BaseModel

from vf import testing
from vf.evaluation.eval_config import (
    EnvironmentConfig,
    EvalConfig,
    Limits,
    ModelConfig,
    Price,
)
from vf.inference.settings import EmbeddedArgs, EmbeddedSettings, EngineSettings, VllmSettings
from vf.sandbox.bounds import Bounds
from vf.sandbox.container.hardening import Profile
from vf.sandbox.contract import Limits as SandboxLimits
from vf.sandbox.hosting.settings import BOUNDS, PROFILE, SPEC
from vf.sandbox.hosting.values import LIMITS
from vf.sandbox.spec import SandboxSpec
from vf.trainer.settings.cluster import ClusterConfig, RoleResources
from vf.trainer.settings.config import Config, TrainerArgs, TrainerConfig
from vf.trainer.settings.environments import OWN, EnvConfig
from vf.trainer.settings.load_config import SYNONYMS, VALUES
from vf.trainer.settings.rollouts import RolloutsConfig
from vf.trainer.settings.tinker import TinkerConfig
from vf.trainer.sft.settings import SftArgs, SftConfig, SftData

PAGE = Path(__file__).with_name("reference.md")
ROOT = PAGE.parent.parent
NO_BREAK = "\u00a0"  # a space that keeps "whole number ≥ 1" on one line of a narrow column
# The settings of [trainer.args], in the order in which somebody new asks for them.
GROUPS = {
    "The run": ["run_name", "output_dir", "seed", "max_steps", "report_to"],
    "Batches": [
        *("batch_size", "rollouts_per_example", "num_substeps", "num_iterations"),
        *("micro_batch_tokens", "micro_batch_size", "packing", "share_prefixes"),
        *("long_sequences", "min_group_size", "images", "train_vision"),
    ],
    "Lengths and sampling": [
        *("max_tokens", "max_prompt_len", "overlong_prompts", "max_seq_len", "temperature"),
        *("top_p", "top_k", "min_p", "repetition_penalty", "generation_timeout"),
    ],
    "Optimizer": [
        *("learning_rate", "lr_scheduler_type", "warmup_steps", "max_grad_norm"),
        *("betas", "eps", "weight_decay", "optim", "bf16", "gradient_checkpointing"),
        "disable_dropout",
    ],
    "Adapter": [
        *("use_lora", "lora_rank", "lora_alpha", "lora_dropout"),
        *("lora_target_modules", "lora_target_parameters"),
        *("train_attn", "train_mlp", "train_unembed", "load_in_4bit"),
    ],
    "Loss": [
        *("loss_fn", "loss_normalisation", "fixed_length", "clip_low", "clip_high", "dual_clip"),
        *("sequence_clip_low", "sequence_clip_high", "dro_beta"),
        *("drop_low", "drop_high", "dppo_tau", "import_path", "entropy_coef"),
        *("observation_loss_coef", "router_aux_loss_coef", "router_replay"),
        *("importance_sampling_mode", "importance_sampling_clip_max"),
        "importance_sampling_clip_min",
    ],
    "Advantages and credit": [
        *("advantage", "credit", "credit_discount", "mask_truncated"),
        *("overlong_buffer", "overlong_penalty"),
    ],
    "KL against a reference": [
        *("kl_penalty_coef", "kl_penalty_type", "kl_discount_factor"),
        *("reference_model", "reference_update_steps", "reference_update_rate"),
    ],
    "A teacher": [
        *("teacher_model", "teacher_base_url", "teacher_loss", "teacher_top_k"),
        *("teacher_coef", "teacher_reward_coef", "teacher_privileged"),
    ],
    "Rollouts and training at once": [
        *("max_concurrent", "max_steps_off_policy", "stream_minibatches", "oversample"),
        "deterministic",
        *("max_error_rate", "stall_timeout"),
    ],
    "Tasks without signal": [
        *("max_refill", "rest_easy", "rest_hard", "easy_outcome", "hard_outcome"),
    ],
    "Evaluation, checkpoints, display": [
        *("eval_strategy", "eval_steps", "eval_examples", "eval_rollouts_per_example"),
        *("eval_temperature", "eval_top_p", "eval_top_k", "eval_min_p", "eval_max_tokens"),
        "eval_share",
        *("save_steps", "save_minutes", "save_total_limit", "sample_steps", "learned_groups"),
    ],
}

_HEAD = """\
# Every setting

All keys of the three TOML files: for a training run (`vf-rl run.toml`), a [warm start](sft.md)
(`vf-rl sft warm.toml`) and an evaluation (`vf-rl eval evals.toml`). This page is generated from the
models that check them: `python docs/make_reference_page.py`. For the effects of settings, see [the
guide](guide-training.md); for how they work together, [the loop](loop.md); for formulas,
[losses](losses.md). At the end are the arguments of [`vf.testing`](testing.md).

An unknown key is an error, and so is a value out of range or a setting that has no effect because
of another one. "–" means unset by default. On the command line, `--set max_steps=50` sets
`trainer.args`; name other tables, as in `--set env.args.high=10`. With several `[[env]]` tables,
`--set env.0.args.high=10` sets the first.
"""
_SYNONYMS = """\
### Names from other trainers

Accepted in `[trainer.args]`, and reported once:

| name | vf-rl |
|---|---|
"""
_PRODUCTS = """\
| `groups_per_batch` | `batch_size`, times `rollouts_per_example` |
| `vllm_importance_sampling_correction` | `importance_sampling_mode`; `false` is `off` |
| `gradient_accumulation_steps` | `batch_size` = `micro_batch_size` × this × devices, unless set |
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *_run(), *_warm_start(), *_evaluation(), *_testing()]).rstrip() + "\n"


def _run() -> Iterator[str]:
    yield from _section("A training run", Config, ["model"], "")
    own = [name for name in EnvConfig.model_fields if name in OWN]
    yield from _section(
        "`[env]`, or several `[[env]]`",
        EnvConfig,
        [name for name in EnvConfig.model_fields if name not in own],
        "env.",
    )
    yield "What differs there from `[trainer.args]`; its value is the default ([more](mixing.md)):"
    yield ""
    yield from _table(EnvConfig, own, "env.")
    yield from _environments()
    common = [name for name in EngineSettings.model_fields if name != "engine"]
    embedded, vllm = set(EmbeddedSettings.model_fields), set(VllmSettings.model_fields)
    yield from _section("`[inference]`", EmbeddedSettings, ["engine", *common], "inference.")
    assert embedded == {"engine", "args", *common}, "the embedded engine has a new setting"
    yield 'With `engine = "embedded"`:'
    yield ""
    yield from _table(EmbeddedArgs, None, "inference.args.")
    yield 'With `engine = "vllm"` ([more](vllm.md)):'
    yield ""
    own = [name for name in VllmSettings.model_fields if name in vllm - embedded or name == "args"]
    yield from _table(VllmSettings, own, "inference.")
    yield from _section("`[rollouts]`", RolloutsConfig, None, "rollouts.")
    yield from _cluster()
    own = [name for name in TrainerConfig.model_fields if name not in ("tinker", "args")]
    yield from _section("`[trainer]`", TrainerConfig, own, "trainer.")
    yield from _section("`[trainer.tinker]`", TinkerConfig, None, "trainer.tinker.")
    yield "## `[trainer.args]`"
    yield ""
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(TrainerArgs.model_fields), (
        f"not in exactly one group: {set(grouped) ^ set(TrainerArgs.model_fields)}"
    )
    for title, names in GROUPS.items():
        yield from _section(title, TrainerArgs, names, "trainer.args.", level=3)
    yield (
        _SYNONYMS
        + "".join(f"| `{a}` | `{b}` |\n" for a, b in SYNONYMS.items())
        + _PRODUCTS
        + (
            "".join(
                f'| `{key} = "{theirs}"` | `{key} = "{ours}"` |\n'
                for key, values in VALUES.items()
                for theirs, ours in values.items()
            )
        )
    )


def _warm_start() -> Iterator[str]:
    yield from _section("A warm start", SftConfig, ["model"], "sft.")
    yield from _section("`[data]` of a warm start", SftData, None, "sft.data.")
    yield from _section("`[trainer.args]` of a warm start", SftArgs, None, "sft.trainer.args.")


def _evaluation() -> Iterator[str]:
    tables = ("environments", "models", "limits", "prices")
    top = [name for name in EvalConfig.model_fields if name not in tables]
    yield from _section("An evaluation", EvalConfig, top, "eval.")
    yield from _section(
        "`[[environments]]` of an evaluation", EnvironmentConfig, None, "eval.environments."
    )
    yield from _section("`[[models]]` of an evaluation", ModelConfig, None, "eval.models.")
    yield from _section("`[limits]` of an evaluation", Limits, None, "eval.limits.")
    yield from _section('`[prices."MODEL"]` of an evaluation', Price, None, "eval.prices.")


def _testing() -> Iterator[str]:
    """Describe what `vf.testing` offers beside settings."""
    yield "## `vf.testing`"
    yield ""
    for name in testing.__all__:
        offered = getattr(testing, name)
        if name in ("Request", "CheckResult"):  # which tests read, and do not make
            continue
        yield f"**`{name}`**: {_flat((inspect.getdoc(offered) or '').partition('.')[0])}."
        yield ""
        yield from _arguments(offered, _parameters(offered))


def _parameters(of: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a call, each with its default."""
    for each in inspect.signature(of).parameters.values():
        rest = each.kind is each.VAR_KEYWORD
        yield (f"**{each.name}", "") if rest else (each.name, each.default)


def _environments() -> Iterator[str]:
    """Describe the arguments of the environments that come with the library."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield "### `[env.args]` of the bundled environments"
    yield ""
    for name, target in project["entry-points"]["vf.environments"].items():
        cls = EntryPoint(name, target, "vf.environments").load()
        yield f"**`{name}`**: {_flat((inspect.getdoc(cls) or '').partition('.')[0])}."
        yield ""
        yield from _arguments(cls, _parameters(cls))
    yield "### `[env.args.sandbox]`"
    yield ""
    yield 'Where code runs ([more](sandbox.md)). `sandbox = "auto"` is all defaults.'
    yield ""
    homes: list[tuple[type, Sequence[str]]] = [
        *((Profile, PROFILE), (SandboxSpec, SPEC)),
        *((Bounds, BOUNDS), (SandboxLimits, LIMITS)),
    ]
    hosts = "Where the engines are. None: where `DOCKER_HOST` says, or on this machine."
    rows = [f"| `hosts` | – | {hosts} |"]
    for home, names in homes:
        defaults = {field.name: field.default for field in fields(home)}
        rows += _rows(home, [(name, defaults[name]) for name in names])
    yield from ["| key | default | |", "|---|---|---|", *rows, ""]


def _arguments(cls: Callable[..., Any], arguments: Iterable[tuple[str, Any]]) -> Iterator[str]:
    yield from ["| key | default | |", "|---|---|---|", *_rows(cls, arguments), ""]


def _rows(cls: Callable[..., Any], arguments: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Describe arguments as the class's docstring does."""
    said = docstring_parser.parse(inspect.getdoc(cls) or "")
    described = {entry.arg_name: entry.description for entry in reversed(said.params)}
    for name, default in arguments:
        shown = "needed" if default is inspect.Parameter.empty else _value(default)
        if name.startswith("**"):
            shown = ""
        assert described.get(name), f"{cls.__name__}: {name} is not described"
        about = re.sub("; see `(sandbox_source|with_packages)`", "", _flat(described[name] or ""))
        yield f"| `{name}` | {shown} | {about} |"


def _cluster() -> Iterator[str]:
    yield from _section("`[cluster]`", ClusterConfig, None, "cluster.")
    yield "In `[cluster.rank]`, `[cluster.server]` and `[cluster.worker]`:"
    yield ""
    yield from _table(RoleResources, None, "cluster.role.")


def _section(
    title: str, model: type[BaseModel], names: Sequence[str] | None, path: str, *, level: int = 2
) -> Iterator[str]:
    yield f"{'#' * level} {title}"
    yield ""
    yield from _table(model, names, path)


def _table(model: type[BaseModel], names: Sequence[str] | None, path: str) -> Iterator[str]:
    schema = model.model_json_schema()
    yield "| key | value | default | |"
    yield "|---|---|---|---|"
    for name in names or list(model.model_fields):
        entry, field = schema["properties"][name], model.model_fields[name]
        needed = name in schema.get("required", [])
        default = "needed" if needed else _value(field.get_default(call_default_factory=True))
        if model is EmbeddedSettings and name == "engine":  # the other model says `vllm`
            values, default = '`"embedded"` or `"vllm"`', '`"embedded"`'
        else:
            values = _values(entry)
        about = _flat(entry.get("description") or _about(entry, schema))
        yield f'| <a id="{path}{name}"></a>`{name}` | {values} | {default} | {about} |'
    yield ""


def _about(entry: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return what the table says that a key stands for."""
    target = str(entry["$ref"]).rpartition("/")[2]
    return str(schema["$defs"][target]["description"])


def _values(entry: Mapping[str, Any]) -> str:
    """Say in words what a JSON schema allows."""
    if "anyOf" in entry:
        kinds = [_values(kind) for kind in entry["anyOf"] if kind.get("type") != "null"]
        return " or ".join(kinds)
    if "enum" in entry:
        return ", ".join(_value(value) for value in entry["enum"])
    if "const" in entry:
        return _value(entry["const"])
    kind = entry.get("type", "object")
    if kind == "array":
        of = _values(entry["items"])
        same = entry.get("minItems") if entry.get("minItems") == entry.get("maxItems") else None
        return f"list of {f'{same} ' if same else ''}{of}".replace("number", "numbers")
    words = {
        "integer": "whole number",
        "number": "number",
        "boolean": "`true` or `false`",
        "string": "text",
        "object": "table",
    }
    return f"{words[kind]}{_range(entry)}".replace(" ", NO_BREAK)


def _bound(value: float) -> str:
    return f"{int(value):,}" if value >= 10_000 else f"{value:g}"


def _range(entry: Mapping[str, Any]) -> str:
    """Return the bounds of a number."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {_bound(entry[name])}" for name, sign in signs.items() if name in entry]
    return f" {', '.join(bounds)}" if bounds else ""


def _value(value: Any) -> str:
    """Return a value as TOML has it."""
    if value is None or value == "" or value == {} or value == ():
        return "–"
    if isinstance(value, BaseModel):
        return "all defaults"
    if isinstance(value, float):
        mantissa, _, exponent = f"{value:e}".partition("e")
        small = 0.0 < abs(value) < 0.01
        short = f"{float(mantissa):g}e{int(exponent)}" if small else f"{value:g}"
        return f"`{short}`"
    if isinstance(value, Mapping):
        return f"`{{ {', '.join(f'{key} = {_bare(each)}' for key, each in value.items())} }}`"
    return f"`{_bare(value)}`"


def _bare(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _flat(text: str) -> str:
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r"docs/(\w+)\.md", r"[\1](\1.md)", text)
    return " ".join(text.replace("``", "`").split()).replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
