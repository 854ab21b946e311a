"""A run's plan, as text."""

from __future__ import annotations

from vf.inference.settings import EmbeddedSettings
from vf.inference.vllm.vllm_engine import RUNGS, choose_rung
from vf.trainer.learning.learning_rate import advice, peak_learning_rate
from vf.trainer.processes.launch import is_sharded, world, zero_stage
from vf.trainer.run.plan import Plan
from vf.trainer.settings.config import Config
from vf.trainer.settings.overlap import steps_ahead, streams

SHARED = {1: "Adam's moments", 2: "gradients and moments", 3: "the weights"}


def describe(plan: Plan) -> list[tuple[str, str]]:
    """Return a plan as pairs of name and text."""
    args, config = plan.config.args, plan.config
    groups = args.groups_per_step
    tools = len(plan.environment.episode(0).toolbox.tools)
    total = sum(plan.memory.values())
    weights = f"LoRA rank {args.lora_rank}" if args.use_lora else "all weights"
    if args.bf16 is True:
        weights += " on bfloat16"
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
    hint = advice(args, plan.hidden_size)
    parts = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in plan.memory.items())
    budget = [("micro-batch", plan.budget)] if plan.budget else []
    return [
        ("model", f"{config.model}: {plan.parameters / 1e6:,.2f} M parameters"),
        ("training", how),
        *([("advice", hint)] if hint else []),
        ("engine", _engine(config)),
        (
            "environment",
            f"{config.env.id}: {len(plan.tasks)} train tasks, "
            f"{len(plan.eval_tasks)} held out, {tools} tools",
        ),
        (
            "step",
            f"{args.batch_size} rollouts = {groups} tasks × {args.rollouts_per_example}; "
            f"at most {args.batch_size * args.max_seq_len:,} tokens",
        ),
        ("loop", order),
        ("template", plan.template),
        ("prompts", plan.prompts.how),
        *([("left out", plan.left_out)] if plan.left_out else []),
        ("memory", f"about {total / 2**20:,.0f} MiB at the peak ({parts})"),
        *budget,
    ]


def _engine(config: Config) -> str:
    """Describe the engine, and how new weights reach it."""
    settings = config.inference
    if isinstance(settings, EmbeddedSettings):
        return f"embedded, {settings.args.max_requests} concurrent requests"
    import torch

    rung = choose_rung(settings, use_lora=config.args.use_lora, cpu=not torch.cuda.is_available())
    where = settings.base_url or "started by this run"
    return f"vllm, {where}; {RUNGS[rung]}"
