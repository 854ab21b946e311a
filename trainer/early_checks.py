"""Checks of a run's settings that need no torch, so that a wrong name is an error at once."""

from __future__ import annotations

from typing import Any

from vf.environments.environment import Environment
from vf.inference.model_files import check_weights, find_model
from vf.inference.ports import choose_port
from vf.inference.rendering.shipped import find_template
from vf.inference.settings import EmbeddedSettings, TinkerSettings
from vf.inference.tinker_wire import load_sdk
from vf.inference.vllm.check_settings import check_sampling, check_settings
from vf.runtime.errors import ConfigError
from vf.trainer.collecting.curriculum import find_curriculum
from vf.trainer.learning.losses.custom_loss import load_loss
from vf.trainer.processes.launch import is_sharded, outer_environ
from vf.trainer.run.components import make_environments
from vf.trainer.settings.config import Config
from vf.trainer.watching.trackers import check_trackers

SHARDED_ENGINE = (
    'inference.engine = "embedded" samples from the trainer\'s own weights, but the Accelerate '
    'config spreads them over processes (FSDP, or ZeRO\'s stage 3); set engine = "vllm", or have '
    "each process keep them whole (ZeRO's stage 1 or 2, or no accelerate_config)"
)


def check_early(config: Config) -> dict[str, Environment]:
    """Check all that needs no torch, and make the environments.

    Args:
        config: The settings.

    Returns:
        The environments, by their names in the run.

    Raises:
        ConfigError: If a setting names nothing that there is, or a port is taken.
    """
    check_trackers(config.args.report_to)
    for table, env in zip(config.tables, config.env, strict=True):
        find_curriculum(env.curriculum, table)
    check_names(config)
    return make_environments(config)


def check_names(config: Config) -> None:
    """Check that models, chat template, loss and engine are there, as far as that needs no torch.

    Raises:
        ConfigError: If one of them is not, or a port is taken.
    """
    args, settings = config.args, config.inference
    check_weights(find_model(config.model))
    if args.reference_model is not None:
        named = f"trainer.args.reference_model = {args.reference_model!r}"
        find_model(args.reference_model, named)
    if args.teacher_model is not None and args.teacher_base_url is None:
        find_model(args.teacher_model, f"trainer.args.teacher_model = {args.teacher_model!r}")
    if settings.chat_template is not None:
        find_template(settings.chat_template)
    if isinstance(settings, TinkerSettings):
        load_sdk()
    elif not isinstance(settings, EmbeddedSettings):
        check_settings(settings, outer_environ(), here=config.cluster.backend == "local")
        check_sampling(settings, _by_name(config, "temperature"), _by_name(config, "min_p"))
    elif is_sharded():
        raise ConfigError(SHARDED_ENGINE)
    else:
        choose_port(settings.host, settings.port)
    if args.import_path is not None:  # last, for the file may import torch
        load_loss(args.import_path)


def _by_name(config: Config, setting: str) -> dict[str, float | None]:
    """Return all values of a sampling setting, the held-out evaluation's too, by their names."""
    tables: dict[str, Any] = {"trainer.args": config.args}
    tables |= {f"env.{index}": env for index, env in enumerate(config.env)}
    names = (setting, f"eval_{setting}")
    return {
        f"{path}.{name}": getattr(table, name, None)
        for path, table in tables.items()
        for name in names
    }
