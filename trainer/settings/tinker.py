"""``[trainer.tinker]``, and the settings that a server of the Tinker API cannot honour.

Importing this module loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from vf.inference.model import FILTERS
from vf.inference.settings import Strict
from vf.runtime.toml import KeyVariable

ALPHA = 32.0  # the scale of the API's adapters of rank r is ALPHA / r
MOST_AWAY = 300.0  # seconds after which the SDK itself gives a request up

# Settings of the trainer's process, which has no model.
_LOCAL = (
    *("micro_batch_tokens", "micro_batch_size", "packing", "share_prefixes", "bf16"),
    *("gradient_checkpointing", "disable_dropout", "load_in_4bit", "optim", "deterministic"),
    *("lora_dropout", "lora_target_modules", "lora_target_parameters", "images", "train_vision"),
)
# What is added to the loss, and would need more of the model than log-probabilities of the tokens.
_TERMS = (
    *("entropy_coef", "observation_loss_coef", "router_aux_loss_coef", "kl_penalty_coef"),
    *("teacher_model", "router_replay"),
)


class TinkerConfig(Strict):
    """``[trainer.tinker]``: the server of ``backend = "tinker"``."""

    base_url: str | None = None
    """URL of the server; by default what the environment variable TINKER_BASE_URL holds."""
    base_model: str | None = None
    """The model's name on the server; by default `model`, from which the tokenizer is loaded."""
    api_key_env: KeyVariable = "TINKER_API_KEY"
    """Environment variable that holds the API key; a server on this machine needs none."""
    away_timeout: Annotated[float, Field(gt=0, le=MOST_AWAY)] = MOST_AWAY
    """Seconds that the server may be unreachable before the run ends."""


def check_backend(config: Any) -> None:
    """Refuse settings that ``backend`` does not read, or that its server cannot honour.

    Args:
        config: The run's settings.

    Raises:
        ValueError: If there are some; all are named.
    """
    trainer, inference = config.trainer, config.inference
    if trainer.backend == "local":
        if trainer.tinker != TinkerConfig():
            raise ValueError('trainer.tinker is set, but only backend = "tinker" reads it')
        if inference.engine == "tinker":
            raise ValueError('inference.engine = "tinker" needs trainer.backend = "tinker"')
        return
    problems = [*_problems(trainer)]
    if inference.engine != "tinker":
        problems.append("inference.engine: the server samples, too; remove it")
    if config.cluster.backend != "local":
        problems.append('cluster.backend: it must be "local"')
    tables = {"trainer.args": config.args}
    for table, env in zip(config.tables, config.env, strict=True):
        if env.own_args:
            tables[table] = config.args_of(env)
    problems += [f"{table}.{name}" for table, args in tables.items() for name in _sampled(args)]
    if problems:
        raise ValueError(
            'trainer.backend = "tinker": the Tinker API cannot honour these settings: '
            + "; ".join(problems)
        )


def _problems(trainer: Any) -> Iterator[str]:
    args = trainer.args
    changed = args.changed()
    for name in ("gpus", "accelerate_config"):
        if getattr(trainer, name) is not None:
            yield f"trainer.{name}: no device of this machine trains; remove it"
    for name in _LOCAL:
        if name in changed:
            yield f"trainer.args.{name}: it is the server's own; remove it"
    for name in _TERMS:
        if name in changed:
            yield f"trainer.args.{name}: its losses have no such term; remove it"
    if not args.use_lora:
        yield "trainer.args.use_lora: it trains adapters only; set it to true"
    if args.lora_alpha != ALPHA:
        yield f"trainer.args.lora_alpha: it must be {ALPHA:g}"
    if args.stream_minibatches:
        yield "trainer.args.stream_minibatches: a step's data are sent together; remove it"


def _sampled(args: Any) -> Iterator[str]:
    """Yield what differs between what is sampled and what the server trains."""
    if args.temperature != 1.0:
        yield "temperature: it trains the distribution of temperature 1; set it to 1"
    for name, neutral in FILTERS.items():
        if getattr(args, name) != neutral:
            yield f"{name}: it trains the whole distribution; remove it"
    if args.eval_min_p:
        yield "eval_min_p: it samples with no such filter; remove it"
