"""Everything that can be found wrong before a model is loaded, and the plan of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from vf.environments.environment import Environment
from vf.environments.offered import offered_tools
from vf.environments.registry import make
from vf.evaluation.evaluate import take_tasks
from vf.inference.model_files import find_model, resolve_model
from vf.inference.ports import choose_port
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.template_probe import (
    HIDES_TOOLS,
    check_kind,
    probe,
    shows_tools,
    summary,
)
from vf.inference.settings import EmbeddedSettings, VllmSettings
from vf.inference.vllm.vllm_engine import check_settings
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, VfError
from vf.traces.task import Task
from vf.trainer.learning.custom_loss import load_loss
from vf.trainer.learning.memory import (
    SHARE,
    SHARE_BESIDE_SERVER,
    Shape,
    free_memory,
    largest_budget,
    predict,
)
from vf.trainer.processes.launch import (
    check_devices,
    check_server_devices,
    is_sharded,
    outer_environ,
    processes_to_launch,
    world,
)
from vf.trainer.run.first_prompts import FirstPrompts, measure
from vf.trainer.run.plan import Plan
from vf.trainer.settings.config import Config, TrainerArgs
from vf.trainer.watching.trackers import check_trackers

SHARDED_ENGINE = (
    'inference.engine = "embedded" samples from the trainer\'s own weights, but the Accelerate '
    'config spreads them over processes (FSDP, or ZeRO\'s stage 3); set engine = "vllm", or have '
    "each process keep them whole (ZeRO's stage 1 or 2, or no accelerate_config)"
)


def _silent(text: str) -> None:
    """Say nothing."""


def preflight(config: Config, say: Callable[[str], None] = _silent) -> Plan:
    """Check a config against the world, without loading any weights.

    Args:
        config: The settings.
        say: Called with what is being done, where that takes a while.

    Raises:
        ConfigError: The environment, model, tokenizer, tasks or limits do not fit together, or
            something that the environment needs is missing, such as a container engine.
    """
    args = config.args
    check_devices(config)
    check_trackers(args.report_to)
    if args.import_path is not None:
        load_loss(args.import_path)
    settings = config.inference
    if not isinstance(settings, EmbeddedSettings):
        check_settings(settings, outer_environ())
        check_server_devices(config)
    elif is_sharded():
        raise ConfigError(SHARDED_ENGINE)
    else:
        choose_port(settings.host, settings.port)
    model_config = _model_config(config.model)
    if args.reference_model is not None:
        named = f"trainer.args.reference_model = {args.reference_model!r}"
        find_model(args.reference_model, named)
    environment = _environment(config)
    asyncio.run(call(environment.check))
    renderer = Renderer.from_pretrained(
        resolve_model(config.model),
        settings.template_args,
        settings.chat_template,
        settings.tool_style,
    )
    verdicts = probe(renderer)
    context = getattr(model_config.get_text_config(), "max_position_embeddings", None)
    if context is not None and args.max_seq_len > context:
        raise ConfigError(
            f"trainer.args.max_seq_len = {args.max_seq_len} is more than the model's context of "
            f"{context} tokens; lower it"
        )
    tasks = take_tasks(environment, "train")
    tools = asyncio.run(offered_tools(environment, tasks[0]))
    check_kind(verdicts, "tools" if tools else "plain")
    if tools and not shows_tools(renderer):
        raise ConfigError(f"environment {environment.id!r} has tools, but {HIDES_TOOLS}")
    eval_tasks = (
        take_tasks(environment, "eval", args.eval_examples) if args.eval_strategy == "steps" else []
    )
    prompts = asyncio.run(measure(environment, renderer, [*tasks, *eval_tasks], say))
    overlong, held_out, left_out = _check_prompts(prompts, tasks, eval_tasks, args)
    parameters = _count_parameters(model_config)
    shape = Shape.of(model_config, parameters)
    budget = ""
    # A process that only launches others leaves the devices alone: they find it.
    if not processes_to_launch(config):
        config, budget = _settled(config, shape)
    return Plan(
        config,
        environment,
        renderer,
        tasks,
        held_out,
        prompts.first[: args.max_prompt_len],
        prompts,
        parameters,
        model_config.get_text_config().hidden_size,
        _memory(config, shape),
        summary(verdicts),
        overlong,
        left_out,
        budget,
    )


def _check_prompts(
    prompts: FirstPrompts, tasks: Sequence[Task], eval_tasks: Sequence[Task], args: TrainerArgs
) -> tuple[list[str], list[Task], str]:
    """Look for tasks whose first prompts are too long.

    Returns:
        Ids of those in the train split, the other held-out tasks, and how many are left out, in
        one line.

    Raises:
        ConfigError: There are some and they are an error, or no task of a split seems to be left.
    """
    over = {index for index, size in prompts.lengths.items() if size > args.max_prompt_len}
    known = [tasks[index].id for index in sorted(over) if index < len(tasks)]
    held_out = [task for index, task in enumerate(eval_tasks, len(tasks)) if index not in over]
    if not over:
        return [], held_out, ""
    nothing_left = over == prompts.lengths.keys() or (eval_tasks and not held_out)
    if args.overlong_prompts == "error" or nothing_left:
        raise ConfigError(
            f"trainer.args.max_prompt_len = {args.max_prompt_len}, but the first prompt of task "
            f"{prompts.task.id!r} has {prompts.longest} tokens, and those of {len(over)} of "
            f"{len(prompts.lengths)} measured tasks are too long; raise it (and max_seq_len), "
            "shorten the prompts, or leave a few such tasks out with overlong_prompts = 'skip'"
        )
    gone = len(eval_tasks) - len(held_out)
    which = f"{len(known)} of {len(tasks)} train tasks" if known else ""
    which += " and " * bool(known and gone)
    which += f"{gone} of {len(eval_tasks)} held-out tasks" if gone else ""
    why = f"first prompts of more than max_prompt_len = {args.max_prompt_len} tokens"
    return known, held_out, f"{which}, for {why} ({prompts.longest} in {prompts.task.id!r})"


def _environment(config: Config) -> Environment:
    try:
        return make(config.env.id, **config.env.args)
    except VfError:
        raise
    except Exception as error:
        raise ConfigError(
            f"environment {config.env.id!r} cannot be made with env.args = {config.env.args}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _model_config(name: str) -> Any:
    from transformers import AutoConfig

    path = find_model(name)
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model = {name!r} cannot be read as a model: {str(error).splitlines()[0]}"
        ) from error


def _count_parameters(model_config: Any) -> int:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
    return sum(parameter.numel() for parameter in model.parameters())


def _memory(config: Config, shape: Shape) -> dict[str, int]:
    """Predict the bytes of a trainer process at its peak, by purpose."""
    args = config.args
    budget = args.max_seq_len if args.micro_batch_tokens == "auto" else args.micro_batch_tokens
    return predict(
        shape,
        args,
        min(budget, args.batch_size * args.max_seq_len),
        requests=_requests(config),
        max_seq_len=args.max_seq_len,
        parts=_parts(),
    )


def _settled(config: Config, shape: Shape) -> tuple[Config, str]:
    """Return the config with what "auto" means here, and how a budget was found, if it was."""
    import torch

    settings, cuda = config.inference, torch.cuda.is_available()
    said = ""
    if config.args.bf16 == "auto":
        bf16 = config.args.use_lora and cuda and torch.cuda.is_bf16_supported()
        config = _with(config, bf16=bf16)
    served = isinstance(settings, VllmSettings) and settings.base_url is None
    share = SHARE_BESIDE_SERVER if served and cuda else SHARE
    free = free_memory()
    room = int(share * free)
    if config.args.gradient_checkpointing == "auto":
        tight = sum(_memory(config, shape).values()) > room
        config = _with(config, gradient_checkpointing=tight)
    if config.args.micro_batch_tokens == "auto":
        requests = _requests(config)
        tokens = largest_budget(shape, config.args, room, requests=requests, parts=_parts())
        config = _with(config, micro_batch_tokens=tokens)
        free_mib = free / 2**20
        said = f"{tokens:,} tokens, found for {share:.0%} of the {free_mib:,.0f} MiB that are free"
    return config, said


def _with(config: Config, **found: Any) -> Config:
    """Return a config with other ``[trainer.args]``."""
    args = config.args.model_copy(update=found)
    return config.model_copy(update={"trainer": config.trainer.model_copy(update={"args": args})})


def _parts() -> int:
    """Return how many processes the model is spread over."""
    return world().size if is_sharded() else 1


def _requests(config: Config) -> int:
    settings = config.inference
    return settings.args.max_requests if isinstance(settings, EmbeddedSettings) else 0
