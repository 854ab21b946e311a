"""What a config asks for and every process that runs rollouts has: environment and renderer."""

from __future__ import annotations

from vf.environments.environment import Environment
from vf.environments.registry import make
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError, VfError
from vf.trainer.settings.config import Config


def make_environment(config: Config) -> Environment:
    """Return the environment that a config asks for.

    Raises:
        ConfigError: There is none of this name, or its arguments are wrong.
    """
    try:
        return make(config.env.id, **config.env.args)
    except VfError:
        raise
    except Exception as error:
        raise ConfigError(
            f"environment {config.env.id!r} cannot be made with env.args = {config.env.args}: "
            f"{type(error).__name__}: {error}"
        ) from error


def make_renderer(config: Config) -> Renderer:
    """Return the renderer of a config's model.

    Raises:
        ConfigError: Its tokenizer or its chat template cannot be used.
    """
    settings = config.inference
    return Renderer.from_pretrained(
        resolve_model(config.model),
        settings.template_args,
        settings.chat_template,
        settings.tool_style,
    )
