"""Which settings help where a run spends its time, by their names in its TOML."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from vf.inference.settings import VllmSettings
from vf.traces.branching import OFTEN
from vf.trainer.run.metrics import Metrics
from vf.trainer.settings.config import Config, TrainerArgs
from vf.trainer.settings.overlap import steps_ahead

MOST = 3  # sentences

_NOTABLE = 0.2  # a share above which something is worth a sentence


@dataclass(frozen=True, slots=True)
class _Case:
    shares: Mapping[str, float]
    seconds: float
    means: Metrics
    config: Config

    @property
    def args(self) -> TrainerArgs:
        return self.config.args

    def share(self, part: str) -> float:
        return self.shares.get(part, 0.0)

    def metric(self, name: str) -> float:
        return self.means.get(name, 0.0)


def advise(
    bottleneck: str, shares: Mapping[str, float], seconds: float, means: Metrics, config: Config
) -> list[str]:
    """Return what may help, in sentences, the likeliest first; at most :data:`MOST`.

    Args:
        bottleneck: The part of a step that takes longest.
        shares: The part of a step's wall time that went to each, in [0, 1].
        seconds: Mean wall time of a step.
        means: The mean of every metric of the steps.
        config: The run's settings. What they rule out is not advised.
    """
    case = _Case(shares, seconds, means, config)
    return [f"{sentence}." for sentence in islice(_ADVISERS[bottleneck](case), MOST)]


def _generate(case: _Case) -> Iterator[str]:
    args, settings = case.args, case.config.inference
    yield from _rewritten(case)
    if settings.in_process:
        at_once, in_flight = settings.in_process_requests, _in_flight(args)
        # Of rollouts with several turns, some are always elsewhere: with their tools, say.
        if in_flight > 2 * at_once:
            yield (
                f"The engine decodes inference.args.max_requests = {at_once} of up to "
                f"{in_flight} concurrent rollouts: raise it if there is memory for their contexts"
            )
        yield from _few_at_once(case, "the engine decodes what is in flight together")
    else:
        yield from _few_at_once(case, "the server batches what is in flight")
        if not settings.urls:
            yield (
                "Give the server more memory for contexts with "
                "inference.args.gpu_memory_utilization, or more devices with inference.gpus and "
                "inference.args.tensor_parallel_size or inference.replicas"
            )
        else:
            yield (
                "The server at inference.base_url sets the pace: more devices, more memory for "
                "contexts, or more servers (inference.base_urls) make it faster"
            )
    yield from _wasted(case)
    yield from _overlap(case)
    if settings.in_process:
        yield 'On a GPU, inference.engine = "vllm" generates faster'
    yield from _stragglers(case)


def _environment(case: _Case) -> Iterator[str]:
    waited = case.metric("sandbox/wait_s_mean")
    if waited > max(0.5, 0.1 * case.seconds):
        yield (
            f"A rollout waits {waited:.3g} s for its sandbox: raise "
            f"env.args.sandbox.pool{_sandbox_pool(case.config)}, the number kept ready, if the "
            "machine has room, or name more machines in env.args.sandbox.hosts"
        )
    yield from _few_at_once(case, "while one waits for a tool, others generate")
    if case.metric("tool_calls/mean") and case.metric("tool_calls/error_rate") > _NOTABLE:
        yield (
            f"{case.metric('tool_calls/error_rate'):.0%} of the tool calls fail; read some traces "
            "with vf-rl view, whose timeline shows which tool is slow"
        )
    else:
        yield "vf-rl view shows on each trace's timeline which tool call is slow"
    yield from _overlap(case)
    yield from _stragglers(case)


def _reward(case: _Case) -> Iterator[str]:
    yield (
        "If a judge scores, let it ask less: fewer votes, a smaller max_tokens, and a cache. "
        "A scorer that computes belongs in a process of its own: vf.cpu_bound"
    )
    yield from _few_at_once(case, "a rollout is scored while others generate")
    yield from _overlap(case)


def _train(case: _Case) -> Iterator[str]:
    args = case.args
    yield from _rewritten(case)
    if args.gradient_checkpointing is True:
        yield (
            "trainer.args.gradient_checkpointing = true computes every activation twice: turn it "
            "off if memory allows"
        )
    held = case.metric("tokens/trained")
    if args.micro_batch_tokens != "auto" and held > args.micro_batch_tokens:
        yield (
            f"Raise trainer.args.micro_batch_tokens = {args.micro_batch_tokens} if memory allows: "
            "fewer and larger forward passes use a GPU better"
        )
    if case.args.num_iterations > 1:
        yield (
            f"trainer.args.num_iterations = {case.args.num_iterations} trains on every batch "
            "that often"
        )
    if args.kl_penalty_coef:
        yield (
            f"trainer.args.kl_penalty_coef = {args.kl_penalty_coef:g} costs a forward pass of the "
            "reference; 0 needs none"
        )
    if args.teacher_model is not None and args.teacher_base_url is None:
        yield (
            "The teacher's forward pass is part of a step's training: behind teacher_base_url it "
            "has a machine of its own"
        )
    if not args.use_lora:
        yield "trainer.args.use_lora = true trains far fewer weights"
    if args.bf16 is not True:
        yield "trainer.args.bf16 = true computes in bfloat16, which is faster on a GPU"
    if args.optim == "adamw_offload":
        yield (
            'trainer.args.optim = "adamw_offload" moves all gradients to the host and steps there: '
            'take "adamw_8bit", or "adamw" on more devices, if memory allows'
        )
    yield "trainer.gpus shares the work among devices"
    yield from _overlap(case)


def _publish(case: _Case) -> Iterator[str]:
    args, settings = case.args, case.config.inference
    if isinstance(settings, VllmSettings):
        if settings.sleep:
            yield (
                "inference.sleep = true wakes the server at every step: turn it off if memory "
                "holds trainer and server, or give each its own with inference.gpus and "
                "trainer.gpus"
            )
        if not args.use_lora and settings.publish != "nccl":
            yield (
                "With trainer.args.use_lora = true only an adapter is sent; all weights go "
                'fastest with inference.publish = "nccl", which needs GPUs of their own'
            )
        elif args.use_lora and settings.publish == "disk":
            yield 'inference.publish = "lora" sends the adapter alone'
    yield (
        f"Publish less often: a larger trainer.args.batch_size = {args.batch_size} takes more "
        "rollouts for each version of the weights"
    )


def _evaluate(case: _Case) -> Iterator[str]:
    args = case.args
    often = (
        f" or trainer.args.eval_rollouts_per_example = {args.eval_rollouts_per_example}"
        if args.eval_rollouts_per_example > 1
        else ""
    )
    between = args.eval_steps < args.max_steps  # beside before the first step and after the last
    rarer = f"raise trainer.args.eval_steps = {args.eval_steps}, or " if between else ""
    yield (f"Evaluate less: {rarer}lower trainer.args.eval_examples = {args.eval_examples}{often}")


def _save(case: _Case) -> Iterator[str]:
    yield f"Save less often: raise trainer.args.save_steps = {case.args.save_steps}"
    if not case.args.use_lora:
        yield "With trainer.args.use_lora = true a checkpoint is far smaller"


def _outage(case: _Case) -> Iterator[str]:
    yield (
        "logs/inference.log says why the server went down; where memory ran out, a lower "
        "trainer.args.max_concurrent needs less of it"
    )


def _wait(case: _Case) -> Iterator[str]:
    yield from _few_at_once(case, "rollouts wait for a place")
    if failed := case.metric("rollouts/failed"):
        yield (
            f"{failed:.3g} rollouts of a step fail on average and are retried: "
            "logs/environment.log says why"
        )
    yield (
        "What is left is the trainer's own work, such as writing traces and metrics: it weighs in "
        "short steps, and on a machine that is busy with other work"
    )


def _in_flight(args: TrainerArgs) -> int:
    """Return how many rollouts of a step there are at once, at most."""
    started = math.ceil(args.rollouts_per_example * args.oversample) * args.groups_per_step
    return min(args.max_concurrent, started)


def _few_at_once(case: _Case, reason: str) -> Iterator[str]:
    args = case.args
    if args.max_concurrent < args.batch_size:
        yield (
            f"Raise trainer.args.max_concurrent = {args.max_concurrent} towards batch_size = "
            f"{args.batch_size}: {reason}"
        )


def _wasted(case: _Case) -> Iterator[str]:
    """Say what is generated for nothing."""
    uniform = case.metric("groups/uniform_fraction")
    if uniform > 0.5 and case.args.teacher_model is None:
        yield (
            f"{uniform:.0%} of the groups had no learning signal, all their rewards being equal: "
            "tasks that are neither too easy nor too hard, or a larger "
            f"trainer.args.rollouts_per_example = {case.args.rollouts_per_example}, waste less"
        )
        if case.args.rest_easy == 0 or case.args.rest_hard == 0:
            yield (
                "trainer.args.rest_easy and trainer.args.rest_hard let tasks rest that were all "
                "solved or all failed"
            )
    cut = max(case.metric("truncated_fraction"), case.metric("cut_turns_fraction"))
    if cut > _NOTABLE:
        yield (
            f"{cut:.0%} of the rollouts or turns run into a limit: if what they say so late is of "
            f"no use, lower trainer.args.max_tokens = {case.args.max_tokens}, or teach brevity "
            "with trainer.args.overlong_buffer"
        )


def _rewritten(case: _Case) -> Iterator[str]:
    """Say what contexts cost that do not grow."""
    forks = case.metric("forks_per_rollout") - case.metric("forks/parallel")
    calls = case.metric("turns/mean") - 1.0
    if calls > 0 and forks / calls >= OFTEN:
        yield (
            f"{min(1.0, forks / calls):.0%} of the agent's calls begin a new context, which is "
            f"computed from its beginning ({case.metric('tokens/context_mean'):,.0f} tokens a "
            "rollout): the note of alarm/rewrites says what differs"
        )


def _overlap(case: _Case) -> Iterator[str]:
    """Advise to do both at once where rollouts and training take turns."""
    rollouts = sum(case.share(part) for part in ("generate", "environment", "reward"))
    if min(rollouts, case.share("train")) < _NOTABLE:
        return
    if case.config.inference.generates_while_training and not steps_ahead(case.config):
        yield (
            "Rollouts and training take turns: trainer.args.max_steps_off_policy = 1 lets the "
            "next step's rollouts run during training, one version of the weights behind"
        )


def _stragglers(case: _Case) -> Iterator[str]:
    if case.args.oversample == 1.0 and not steps_ahead(case.config):
        yield (
            "If a step waits for its slowest rollouts, trainer.args.oversample = 1.25 starts more "
            "of each task than are needed and stops the last; it prefers short ones"
        )


def _sandbox_pool(config: Config) -> str:
    sandboxes = [env.args.get("sandbox") for env in config.env]
    sizes = [
        sandbox["pool"] for sandbox in sandboxes if isinstance(sandbox, dict) and "pool" in sandbox
    ]
    size = sizes[0] if len(config.env) == 1 and sizes else None
    return f" = {size}" if size is not None else ""


_ADVISERS: dict[str, Callable[[_Case], Iterator[str]]] = {
    "generate": _generate,
    "environment": _environment,
    "reward": _reward,
    "train": _train,
    "publish": _publish,
    "evaluate": _evaluate,
    "save": _save,
    "outage": _outage,
    "wait": _wait,
}
