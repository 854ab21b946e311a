"""What a config asks for and every process that runs rollouts has: environments and renderer."""

from __future__ import annotations

from vf.environments.environment import Environment
from vf.environments.registry import make
from vf.inference.completions import TokenSampler
from vf.inference.model_files import resolve_model
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.vision import Vision
from vf.inference.settings import VllmSettings
from vf.runtime.errors import ConfigError, VfError
from vf.trainer.settings.config import Config


def make_environments(config: Config) -> dict[str, Environment]:
    """Return the environments that a config asks for, by their names in the run.

    Raises:
        ConfigError: If no environment has an id, or its arguments are wrong.
    """
    several = len(config.env) > 1
    made: dict[str, Environment] = {}
    for where, name, env in zip(config.tables, config.names, config.env, strict=True):
        try:
            made[name] = make(env.id, **env.args)
        except VfError as error:
            if several and isinstance(error, ConfigError):
                raise ConfigError(f"{where}: {error}") from error
            raise
        except Exception as error:
            raise ConfigError(
                f"environment {env.id!r} cannot be made with {where}.args = {env.args}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if several:  # in traces and messages, two of one id are to be told apart
            made[name].id = name
    return made


def token_models(config: Config, client: TokenSampler, renderer: Renderer) -> dict[str, TokenModel]:
    """Return the model as it acts in each environment, within the limits there, by its name.

    Args:
        config: The settings.
        client: The client through which the engine is reached.
        renderer: Chat template and parser.
    """
    models = {}
    for name, env in zip(config.names, config.env, strict=True):
        args = config.args_of(env)
        models[name] = TokenModel(
            client,
            renderer,
            max_seq_len=args.max_seq_len,
            max_prompt_len=args.max_prompt_len,
            thinking_history=config.inference.thinking_history,
            record_experts=args.router_replay != "off",
        )
    return models


def make_renderer(config: Config) -> Renderer:
    """Return the renderer of a config's model.

    Raises:
        ConfigError: If its tokenizer or its chat template cannot be used.
    """
    settings = config.inference
    vision = None
    if config.args.images:
        served = isinstance(settings, VllmSettings)
        vision = Vision.from_pretrained(config.model, served=served)
    return Renderer.from_pretrained(
        resolve_model(config.model),
        settings.template_args,
        settings.chat_template,
        settings.tool_style,
        vision,
    )
