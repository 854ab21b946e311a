"""A run's plan, as text."""

from __future__ import annotations

from vf.environments.sandboxes import backend_of
from vf.inference.settings import EmbeddedSettings, TinkerSettings, VllmSettings
from vf.inference.vllm.publish_methods import METHODS, choose_method
from vf.inference.vllm.server_args import each_server, parallel_args
from vf.runtime.api_keys import hide_urls
from vf.trainer.learning.learning_rate import advice, peak_learning_rate
from vf.trainer.processes.launch import is_sharded, world, zero_stage
from vf.trainer.run.plan import Memory, Plan, size_text
from vf.trainer.run.run_environment import RunEnvironment
from vf.trainer.settings.config import Config
from vf.trainer.settings.overlap import steps_ahead, streams

OPTIMIZERS = {
    "adamw_8bit": "moments in 8 bits",
    "adamw_offload": "stepped in the host's memory",
}
SHARED = {1: "Adam's moments", 2: "gradients and moments", 3: "the weights"}


def describe(plan: Plan) -> list[tuple[str, str]]:
    """Return a plan as pairs of name and text."""
    args, config = plan.config.args, plan.config
    groups = args.groups_per_step
    weights = f"LoRA rank {args.lora_rank}" if args.use_lora else "all weights"
    if args.load_in_4bit:
        weights += " on a base of 4 bits"
    if args.bf16 is True:
        weights += " in bfloat16"
    if args.optim != "adamw":
        weights += f", {OPTIMIZERS[args.optim]}"
    if args.gradient_checkpointing is True:
        weights += " with gradient checkpointing"
    how = (
        weights
        + f", {args.loss_fn}, learning rate {peak_learning_rate(args, plan.hidden_size):.3g}"
    )
    if world().size > 1:
        how += f", in {world().size} processes"
    if stage := zero_stage():
        how += f" that share {SHARED[stage]} (ZeRO stage {stage})"
    elif is_sharded():
        how += " that share the weights (FSDP)"
    ahead = steps_ahead(config)
    order = (
        f"rollouts run up to {ahead} step{'s' * (ahead > 1)} ahead of training"
        if ahead
        else "exactly on-policy: a step's rollouts begin with its weights"
    ) + (", which takes groups as they finish" if streams(config) else "")
    if (mode := args.importance_sampling_mode) not in (None, "off"):
        order += f"; importance weights: {mode} at {args.importance_sampling_clip_max:g}"
    hint = advice(args, plan.hidden_size)
    budget = [("micro-batch", plan.budget)] if plan.budget else []
    return [
        ("model", f"{config.model}: {plan.parameters / 1e6:,.2f} M parameters"),
        ("training", how),
        *([("adapted", plan.adapted)] if plan.adapted else []),
        *([("advice", hint)] if hint else []),
        ("engine", _engine(config)),
        *(("environment", _environment(member, plan)) for member in plan.environments),
        *([("mixture", _mixture(plan))] if len(plan.environments) > 1 else []),
        (
            "step",
            f"{args.batch_size} rollouts = {groups} tasks × {args.rollouts_per_example}; "
            f"at most {args.batch_size * args.max_seq_len:,} tokens",
        ),
        ("loop", order),
        ("rollouts", _rollouts(plan)),
        ("template", plan.template),
        *(("prompts", _of(m, plan) + m.prompts.how) for m in plan.environments if m.prompts),
        *(("left out", _of(m, plan) + m.left_out) for m in plan.environments if m.left_out),
        *describe_memory(plan.memory, args.max_seq_len),
        *budget,
    ]


def describe_memory(memory: Memory, max_seq_len: int) -> list[tuple[str, str]]:
    """Return what trainer and server are predicted to need, as pairs of name and text."""

    if not memory.trainer:
        return []

    def parts(items: dict[str, int]) -> str:
        return ", ".join(f"{name} {size_text(max(0, size))}" for name, size in items.items())

    whole = f", of {size_text(memory.free)} that are free" if memory.free else ""
    trainer = size_text(sum(memory.trainer.values()))
    rows = [("memory", f"about {trainer} at the peak{whole}: {parts(memory.trainer)}")]
    if memory.server:
        server = size_text(sum(memory.server.values()))
        where = "beside it" if memory.shared else "on each of its GPUs"
        if memory.awake is not None:
            where = "while the trainer waits"
        count = max(0, int(memory.contexts))
        holds = f"{count:,} context{'s' * (count != 1)} of {max_seq_len:,} tokens"
        text = f"about {server} {where}: {parts(memory.server)}; the cache holds {holds}"
        rows.append(("server", text))
    return rows


def _of(member: RunEnvironment, plan: Plan) -> str:
    return f"{member.name}: " if len(plan.environments) > 1 else ""


def _environment(member: RunEnvironment, plan: Plan) -> str:
    """Say how much there is in an environment, and what differs there."""
    settings = member.settings
    name = member.name if len(plan.environments) > 1 else settings.id
    tools = len(member.environment.episode(0).toolbox.tools)
    few, args = "", member.args  # left_out names tasks that were too long; else there are no more
    if args.eval_strategy == "steps" and len(member.eval_tasks) < args.eval_examples:
        few = f" (of eval_examples = {args.eval_examples})" if not member.left_out else ""
    text = (
        f"{name}: {len(member.tasks)} train tasks, "
        f"{len(member.eval_tasks)} held out{few}, {tools} tools"
    )
    if backend := backend_of(member.environment):
        text += f", sandboxes of {backend}"
    own = [f"{key} = {value}" for key, value in settings.own_args.items()]
    if settings.curriculum != "uniform":
        own.append(f"curriculum = {settings.curriculum}")
    return f"{text}; {', '.join(own)}" if own else text


def _mixture(plan: Plan) -> str:
    """Say what share each environment has."""
    settings, args = [member.settings for member in plan.environments], plan.config.args
    by_tokens = [env.token_ratio for env in settings if env.token_ratio is not None]
    weights = by_tokens or [env.ratio or 1.0 for env in settings]
    parts = []
    for member, weight in zip(plan.environments, weights, strict=True):
        share = weight / sum(weights)
        text = f"{member.name} {100 * share:.3g} %"
        if not by_tokens:
            text += f" ({share * args.groups_per_step:.3g} of {args.groups_per_step} tasks)"
        parts.append(text)
    of = "the tokens that carry loss, over time" if by_tokens else "a step's rollouts"
    return f"of {of}: {', '.join(parts)}"


def _rollouts(plan: Plan) -> str:
    """Say where rollouts run, and how many at once."""
    at_once = f"; at most {plan.config.args.max_concurrent} at once"
    if not plan.workers:
        return plan.worker_reason + at_once
    processes = f"{plan.workers} worker process{'es' * (plan.workers > 1)}"
    return f"in {processes}: {plan.worker_reason}{at_once}"


def _engine(config: Config) -> str:
    """Describe the engine, and how new weights reach it."""
    settings = config.inference
    if isinstance(settings, EmbeddedSettings):
        return f"embedded, {settings.args.max_requests} concurrent requests"
    if isinstance(settings, TinkerSettings):
        tinker = config.trainer.tinker
        where = hide_urls(tinker.base_url) if tinker.base_url else "the server at TINKER_BASE_URL"
        name = tinker.base_model or config.model
        return f"{where} trains an adapter of {name} and samples (Tinker API)"
    import torch

    assert isinstance(settings, VllmSettings)
    method = choose_method(
        settings,
        use_lora=config.args.use_lora,
        cpu=not torch.cuda.is_available(),
        trainer_gpus=config.trainer.devices or [0],
    )
    where = ", ".join(settings.urls) or "started by this run"
    servers = len(each_server(settings))
    if servers > 1:
        where = f"{servers} servers as one, {where}"
    replicas = parallel_args(each_server(settings)[0]).get("data_parallel_size", 1)
    copies = f", {replicas} copies of the model{' in each' * (servers > 1)}" if replicas > 1 else ""
    return f"vllm, {where}{copies}; {METHODS[method]}"
