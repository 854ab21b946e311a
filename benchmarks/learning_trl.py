"""The learning benchmark's peer: TRL's `GRPOTrainer` on the calculator, by `environment_factory`.

Same as ours: weights, adapter (its first values too), tasks and their order, prompts (token by
token), tool, rubric, sampling and optimizer. The loss is `dapo` without scaling, which on-policy
has the gradient of our default: each token's log-probability times its rollout's reward less the
group's mean, over the number of trained tokens. What differs, as TRL has no setting for it:

- a tool call that cannot be parsed is an answer to TRL and ends the episode; ours tells the model;
- TRL divides by the tokens of all groups, ours by those of groups with any spread;
- TRL takes its own log-probabilities for the sampler's, ours come from the engine.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import time
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vf.environments.bundled.calculator import Calculator
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message, ToolCall
from vf.traces.task import Task
from vf.traces.tools import ArgumentError, Tool
from vf.traces.trace import ToolEvent, Trace

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, TrainerState
    from trl import GRPOConfig

    from vf.trainer.run.plan import Plan
    from vf.trainer.settings.config import Config

TOOL = Tool.from_function(Calculator().calculate)


class TrlCalculator:
    """The calculator as TRL wants it: its public methods are the tools."""

    def reset(self, **row: Any) -> None:
        """Begin an episode: the calculator keeps no state."""

    @functools.wraps(Calculator.calculate)
    def calculate(self, **arguments: Any) -> int | str:
        """Answer the model as ours does, wrong arguments included."""
        try:
            answer: int | str = TOOL.fn(**TOOL.validate(json.dumps(arguments)))
            return answer
        except ArgumentError as error:
            return f"Error: {error}"


def as_trace(task: Task, completion: Sequence[dict[str, Any]]) -> Trace:
    """Return a finished episode of TRL's as our rubric reads it."""
    trace = Trace("calculator", task, 0)
    for raw in completion:
        message = Message(raw["role"], raw["content"] or "", name=raw.get("name"))
        for call in raw.get("tool_calls") or ():
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            request = ToolCall(f"{len(trace.tool_events)}", name, json.dumps(arguments))
            message.tool_calls.append(request)
            trace.tool_events.append(_event(request))
        trace.messages.append(message)
    return trace


def _event(call: ToolCall) -> ToolEvent:
    event = ToolEvent(0, call.id, call.name, "ok")
    if call.name != TOOL.name:
        event.kind = "unknown_tool"
        return event
    try:
        TOOL.validate(call.arguments)
    except ArgumentError as error:
        event.kind = error.fault
    return event


def train_trl(pipe: Connection, config: Config, folder: Path, slices: Sequence[int]) -> None:
    """Train; the protocol is :func:`learning.in_turns`'s.

    On the clock is all that TRL does between the beginning of training and the end of a step,
    without saving; it logs nothing.
    """
    started = time.perf_counter()
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    warnings.simplefilter("ignore", FutureWarning)
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOTrainer

    from vf.inference.model_files import load_module
    from vf.trainer.collecting.task_cursor import TaskCursor
    from vf.trainer.learning.model.lora_targets import lora_config, lora_targets
    from vf.trainer.preflight import preflight

    plan, args = preflight(config), config.args
    rubric = plan.environments[0].environment.rubric
    tokenizer = _tokenizer(plan)
    cursor = TaskCursor(plan.environments[0])
    tasks = [cursor.draw().task for _ in range(args.groups_per_step * args.max_steps)]
    rewards: list[float] = []

    def reward(completions: list[Any], task: list[int], **others: Any) -> list[float | None]:
        traces = [
            as_trace(tasks[index], done) for index, done in zip(task, completions, strict=True)
        ]

        async def score() -> list[float | None]:
            return [(await rubric.score(trace)).reward for trace in traces]

        found = asyncio.run(score())
        rewards.append(sum(value or 0.0 for value in found) / len(found))
        return found

    class InTurns(TrainerCallback):  # type: ignore[misc]
        """Waits for its turn before each slice, and tells how the slice went."""

        def __init__(self) -> None:
            self.left = list(slices)
            self.times: list[float] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            pipe.send(time.perf_counter() - started)
            self.begin()

        def begin(self) -> None:
            pipe.recv()
            self.times, self.mark = [], time.perf_counter()

        def on_step_end(self, _: object, state: TrainerState, __: object, **others: Any) -> None:
            now = time.perf_counter()
            self.times.append(now - self.mark)
            self.mark = now
            if len(self.times) == self.left[0]:
                self.left.pop(0)
                adapter = folder / f"step-{state.global_step}"
                others["model"].save_pretrained(adapter)
                pipe.send((self.times, rewards[-len(self.times) :], adapter))
                if self.left:
                    self.begin()

    model = load_module(config.model, "float32")
    adapter = lora_config(args, lora_targets(model, args))
    rows = [{"prompt": _prompt(plan, task), "task": index} for index, task in enumerate(tasks)]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=_grpo_config(plan, folder),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[InTurns()],
        peft_config=adapter,
        environment_factory=TrlCalculator,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def _prompt(plan: Plan, task: Task) -> list[dict[str, Any]]:
    [place] = plan.environments
    return [message.to_openai() for message in place.environment.first_messages(task)]


def _tokenizer(plan: Plan) -> PreTrainedTokenizerBase:
    """Return the tokenizer for TRL: it shows tools as ours does, and can parse the calls.

    TRL derives the tools' schemas itself, in another order of keys and with the return type; the
    tiny model has learned ours.
    """
    from transformers import AutoTokenizer
    from trl.chat_template_utils import qwen3_template

    from vf.inference.model_files import resolve_model

    tokenizer = AutoTokenizer.from_pretrained(resolve_model(plan.config.model), padding_side="left")
    schemas = plan.environments[0].environment.episode(0).toolbox.schemas()
    ours = f"{{%- if tools %}}{{%- set tools = {json.dumps(schemas)} %}}{{%- endif %}}"
    tokenizer.chat_template = ours + tokenizer.chat_template
    tokenizer.response_template = qwen3_template
    shown = tokenizer.apply_chat_template(
        _prompt(plan, plan.environments[0].tasks[0]),
        tools=[TrlCalculator().calculate],
        add_generation_prompt=True,
        return_dict=False,
    )
    if shown != plan.probe_ids:
        raise ConfigError("TRL's prompt is not ours, token by token")
    return tokenizer


def _grpo_config(plan: Plan, folder: Path) -> GRPOConfig:
    from trl import GRPOConfig

    args, prompts = plan.config.args, plan.environments[0].prompts
    assert prompts is not None
    return GRPOConfig(
        output_dir=str(folder),
        seed=args.seed,
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch_size,
        num_generations=args.rollouts_per_example,
        shuffle_dataset=False,
        # An episode may fill the context; an answer has the same limit as ours.
        max_completion_length=args.max_seq_len - prompts.longest,
        generation_kwargs={"max_new_tokens": args.max_tokens},
        max_tool_calling_iterations=plan.environments[0].environment.max_turns - 1,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        loss_type="dapo",
        scale_rewards="none",
        beta=0.0,
        learning_rate=args.learning_rate,
        lr_scheduler_type=args.lr_scheduler_type,
        warmup_steps=args.warmup_steps,
        adam_beta1=args.betas[0],
        adam_beta2=args.betas[1],
        adam_epsilon=args.eps,
        weight_decay=args.weight_decay,
        max_grad_norm=args.max_grad_norm,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
