"""All checks before a model is loaded, and the plan of the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vf.environments.agent import AgentEnvironment
from vf.environments.environment import Environment
from vf.environments.multi_agent import MultiAgentEnvironment
from vf.environments.sandboxes import check_sandboxes, most_containers
from vf.environments.text_only import check_text_only
from vf.environments.tool_schemas import tool_schemas
from vf.evaluation.evaluate import take_tasks
from vf.inference.model_files import find_model, model_class
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.template_probe import (
    HIDES_TOOLS,
    Verdict,
    check_kind,
    probe,
    shows_tools,
    summary,
)
from vf.inference.routers import check_routers
from vf.inference.vllm.adapter_formats import FORMATS, adapter_format
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError
from vf.runtime.garbage import no_collections
from vf.traces.task import Task
from vf.trainer.collecting.mixture import Mixture
from vf.trainer.early_checks import check_early
from vf.trainer.learning.batches.privileged_prompts import check_privileged
from vf.trainer.learning.losses.router_loss import find_routers
from vf.trainer.learning.memory.fit import UNKNOWN, Device, check_fit, plan_memory, settle
from vf.trainer.learning.memory.trainer_memory import Shape
from vf.trainer.learning.model.frozen_models import check_tokenizer
from vf.trainer.learning.model.lora_targets import LoraTargets, lora_targets
from vf.trainer.learning.model.quantized import check_quantized
from vf.trainer.processes.devices import check_devices, check_server_devices
from vf.trainer.processes.launch import processes_to_launch
from vf.trainer.run.components import make_renderer
from vf.trainer.run.first_prompts import FirstPrompts, measure
from vf.trainer.run.plan import NOTHING_HERE, Memory, Plan
from vf.trainer.run.run_environment import RunEnvironment
from vf.trainer.run.worker_count import cores, worker_count
from vf.trainer.settings.config import Config, TrainerArgs
from vf.trainer.settings.environments import EnvConfig
from vf.trainer.settings.overlap import bounded

MEASURE = "set trainer.args.images = true for a model that sees, or choose another environment"


def _silent(text: str) -> None:
    """Say nothing."""


def preflight(
    config: Config,
    say: Callable[[str], None] = _silent,
    environments: Mapping[str, Environment] | None = None,
) -> Plan:
    """Check a config against the world, without loading any weights.

    Args:
        config: The settings.
        say: Called with what is being done, where that takes a while.
        environments: The result of :func:`~vf.trainer.early_checks.check_early`, if it has been
            called.

    Raises:
        ConfigError: If the environment, model, tokenizer, tasks or limits do not fit together, or
            something that the environment needs is missing, such as a container engine.
    """
    config = bounded(config)
    args = config.args
    if environments is None:
        environments = check_early(config)
    with no_collections():  # it imports the model's part of transformers
        model_config = check_model(config)
    bounds = [most_containers(environment) for environment in environments.values()]
    containers = min((bound for bound in bounds if bound is not None), default=None)
    workers, reason = worker_count(config, cores(), containers)
    if not workers or config.cluster.backend == "local":  # else its workers, where they are
        for environment in environments.values():
            asyncio.run(call(environment.check))
    renderer = make_renderer(config)
    check_tokenizer(args, renderer.tokenizer)
    verdicts = probe(renderer)
    problems = [
        _member(name, environment, settings, config.args_of(settings), renderer, verdicts, say)
        for (name, environment), settings in zip(environments.items(), config.env, strict=True)
    ]
    members = [
        replace(member, table=table)
        for table, (member, _) in zip(config.tables, problems, strict=True)
    ]
    Mixture(members)  # its curricula can be made
    with no_collections():  # it imports peft
        fit = fitted(config, model_config)
    template = summary(verdicts)
    agents = any(isinstance(environment, AgentEnvironment) for environment in environments.values())
    if agents and not shows_tools(renderer):
        template += f". If the agent has tools: {HIDES_TOOLS}"  # known when it offers them
    return Plan(
        fit.config,
        [replace(member, args=fit.config.args_of(member.settings)) for member in members],
        renderer,
        problems[0][1][: problems[0][0].args.max_prompt_len],
        fit.shape.parameters,
        fit.shape.hidden,
        fit.memory,
        template,
        fit.budget,
        fit.adapted,
        workers,
        reason,
    )


def _member(
    name: str,
    environment: Environment,
    settings: EnvConfig,
    args: TrainerArgs,
    renderer: Renderer,
    verdicts: Sequence[Verdict],
    say: Callable[[str], None],
) -> tuple[RunEnvironment, list[int]]:
    """Return an environment with its tasks, and the token ids of its first prompt.

    Raises:
        ConfigError: If tasks, tools, template or limits do not fit together.
    """
    tasks = take_tasks(environment, "train")
    if isinstance(environment, MultiAgentEnvironment):
        _check_roles(environment, tasks, args)
    if args.teacher_privileged:
        check_privileged(environment, tasks[0], renderer)
    tools = asyncio.run(tool_schemas(environment, tasks[0]))
    check_kind(verdicts, "tools" if tools else "plain")
    if tools and not shows_tools(renderer):
        raise ConfigError(f"environment {environment.id!r} has tools, but {HIDES_TOOLS}")
    eval_tasks = (
        take_tasks(environment, "eval", args.eval_examples) if args.eval_strategy == "steps" else []
    )
    if not args.images:
        check_text_only(environment, [*tasks, *eval_tasks], "a model in training", MEASURE)
    check_sandboxes(environment, [*tasks, *eval_tasks])
    prompts = asyncio.run(measure(environment, renderer, [*tasks, *eval_tasks], say))
    overlong, held_out, left_out = _check_prompts(prompts, tasks, eval_tasks, args)
    member = RunEnvironment(
        name, settings, environment, args, tasks, held_out, overlong, prompts, left_out
    )
    return member, prompts.first


def _check_roles(
    environment: MultiAgentEnvironment, tasks: Sequence[Task], args: TrainerArgs
) -> None:
    """Check that there is a role to train, and that its advantage can be found.

    Raises:
        ConfigError: If there is no role to train, or a setting is not for roles.
    """
    environment.check_settings()
    idle = next((task.id for task in tasks if not environment.trained_roles(task)), None)
    if idle is not None:
        raise ConfigError(
            f"environment {environment.id!r}: task {idle!r} trains no role; have the policy play "
            "one (players), and name it in trained"
        )
    if args.credit == "turn" or args.overlong_buffer is not None:
        setting = 'credit = "turn"' if args.credit == "turn" else "overlong_buffer"
        raise ConfigError(
            f"trainer.args.{setting} is not for environment {environment.id!r}, whose rewards are "
            "those of roles; leave it out"
        )


def check_model(config: Config) -> Any:
    """Check model and devices, and return the model's config, transformers' own.

    Args:
        config: The settings, of which :func:`~vf.trainer.early_checks.check_names` found no fault.

    Raises:
        ConfigError: If one of them is missing, or they do not fit together.
    """
    args = config.args
    check_devices(config)
    check_quantized(args)
    check_server_devices(config)
    model_config = read_model_config(config.model)
    context = getattr(model_config.get_text_config(), "max_position_embeddings", None)
    if context is not None and args.max_seq_len > context:
        raise ConfigError(
            f"trainer.args.max_seq_len = {args.max_seq_len} is more than the model's context of "
            f"{context} tokens; lower it"
        )
    return model_config


@dataclass(frozen=True, slots=True)
class Fitted:
    """A config that fits the memory, and why.

    Attributes:
        config: With what "auto" means here.
        shape: The model's.
        memory: What trainer and server are predicted to need.
        adapted: What LoRA adapts, in one line; empty without it.
        budget: How a budget of tokens was found; empty where it was given.
    """

    config: Config
    shape: Shape
    memory: Memory
    adapted: str
    budget: str


def fitted(config: Config, model_config: Any) -> Fitted:
    """Find what "auto" means here, and check that trainer and server fit the memory.

    Raises:
        ConfigError: If memory is short, there is nothing that LoRA could adapt, or there
            are no routers that ``router_aux_loss_coef`` or ``router_replay`` can use.
    """
    empty = empty_model(model_config, sees=config.args.images)
    shape, budget = Shape.of(model_config, empty), ""
    if config.trainer.backend == "tinker":
        return Fitted(config, shape, NOTHING_HERE, "", "")
    if config.args.teacher_model is not None and config.args.teacher_base_url is None:
        teacher = read_model_config(config.args.teacher_model)
        parameters = Shape.of(teacher, empty_model(teacher)).parameters
        shape = replace(shape, teacher=parameters)
    adapted = check_adapter(config, empty) if config.args.use_lora else ""
    if config.args.router_aux_loss_coef:
        find_routers(empty)
    if config.args.router_replay != "off":
        try:
            check_routers(empty)
        except ValueError as error:
            raise ConfigError(
                f"trainer.args.router_replay = {config.args.router_replay!r}, but {error}; set it "
                'to "off"'
            ) from error
    # A process that only launches others leaves the devices alone: they find it.
    device = UNKNOWN if processes_to_launch(config) else Device.here()
    if device is not UNKNOWN:
        config, budget = settle(config, shape, device)
    memory = plan_memory(config, shape, device)
    check_fit(memory, config)
    return Fitted(config, shape, memory, adapted, budget)


def check_adapter(config: Config, model: Any) -> str:
    """Return what LoRA adapts, in one line.

    Raises:
        ConfigError: If the model has no such layers, or vLLM computes some without their adapter.
    """
    targets = lora_targets(model, config.args)
    if not config.inference.in_process:
        _check_served(config, targets, model)
    return targets.describe()


def _check_served(config: Config, targets: LoraTargets, model: Any) -> None:
    """Check that vLLM applies an adapter.

    Raises:
        ConfigError: If it ignores a part; says what to adapt.
    """
    whole = read_model_config(config.model)
    kind, form = whole.model_type, adapter_format(whole)
    if kind != model.config.model_type and kind not in FORMATS:
        raise ConfigError(
            f"model = {config.model!r} is a composite ({kind}) of which the text model alone is "
            "loaded, and the names that vLLM has for its layers are not known here; set "
            "trainer.args.use_lora = false"
        )
    if ignored := form.not_applied(targets.modules, targets.parameters):
        modules = [name for name in targets.modules if name not in ignored]
        parameters = [name for name in targets.parameters if name not in ignored]
        raise ConfigError(
            f"vLLM applies no adapter to {', '.join(ignored)} of {kind}, which would be trained "
            f"and never sampled with; set trainer.args.lora_target_modules = {json.dumps(modules)}"
            + f" and lora_target_parameters = {json.dumps(parameters)}" * bool(parameters)
            + " (and no train_attn, train_mlp or train_unembed), or use_lora = false"
        )


def _check_prompts(
    prompts: FirstPrompts, tasks: Sequence[Task], eval_tasks: Sequence[Task], args: TrainerArgs
) -> tuple[list[str], list[Task], str]:
    """Look for tasks whose first prompts are too long.

    Returns:
        Ids of those in the train split, the other held-out tasks, and how many are left out, in
        one line.

    Raises:
        ConfigError: If overlong prompts are an error, or no task of a split seems to be left.
    """
    over = {index for index, size in prompts.lengths.items() if size > args.max_prompt_len}
    ids = [tasks[index].id for index in sorted(over) if index < len(tasks)]
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
    which = f"{len(ids)} of {len(tasks)} train tasks" if ids else ""
    which += " and " * bool(ids and gone)
    which += f"{gone} of {len(eval_tasks)} held-out tasks" if gone else ""
    why = f"first prompts of more than max_prompt_len = {args.max_prompt_len} tokens"
    return ids, held_out, f"{which}, for {why} ({prompts.longest} in {prompts.task.id!r})"


def read_model_config(name: str) -> Any:
    """Return a model's config, one of transformers'.

    Args:
        name: A folder, ``tiny``, or a hub name.

    Raises:
        ConfigError: If there is no such model, or it cannot be read.
    """
    from transformers import AutoConfig

    path = find_model(name)
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model = {name!r} cannot be read as a model: {str(error).splitlines()[0]}"
        ) from error


def model_shape(model_config: Any) -> Shape:
    """Return what memory depends on in a model, without loading any weights."""
    return Shape.of(model_config, empty_model(model_config))


def empty_model(model_config: Any, *, sees: bool = False) -> Any:
    """Return a causal language model without any weights, on the device ``meta``."""
    import torch

    with torch.device("meta"):
        return model_class(sees=sees).from_config(model_config)
