"""TRL's own trainer on our environments, with the tiny model, on the CPU."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.late import needs
from vf.bridges.trl.as_trace import as_trace
from vf.environments.bundled.calculator import Calculator, final_answer
from vf.inference.model_files import resolve_model

needs("trl")
pytestmark = [pytest.mark.slow, pytest.mark.trl, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tiny model's, with what TRL needs to parse its tool calls."""
    from transformers import AutoTokenizer
    from trl.chat_template_utils import qwen3_template

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"), padding_side="left")
    tokenizer.response_template = qwen3_template
    return tokenizer


def train(kwargs: dict[str, Any], tokenizer: Any, folder: Path, **settings: Any) -> Any:
    """Take two steps; return the trainer and by how much the weights have moved."""
    import torch
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(resolve_model("tiny"), dtype=torch.float32)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    common = {
        "output_dir": str(folder),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 160,
        "learning_rate": 1e-4,
        "beta": 0.0,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 3,
    }
    config = GRPOConfig(**(common | settings))
    kept: list[dict[str, Any]] = []

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
            rewards = super()._calculate_rewards(inputs, prompts, completions, ids)
            kept.append(
                {"inputs": inputs, "completions": completions, "ids": ids, "rewards": rewards}
            )
            return rewards

    trainer = Trainer(model=model, args=config, processing_class=tokenizer, **kwargs)
    trainer.train()
    moved = max(
        float((value.detach() - before[name]).abs().max())
        for name, value in trainer.model.named_parameters()
    )
    return trainer, kept, moved


def history(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_two_steps_in_trls_own_loop(tokenizer: Any, tmp_path: Path) -> None:
    environment = vf.make("calculator", max_operations=1, num_train=16, num_eval=2)
    # The tiny model has learned the tools as we show them, to the letter.
    schemas = json.dumps(environment.episode(0).toolbox.schemas())
    ours = f"{{%- if tools %}}{{%- set tools = {schemas} %}}{{%- endif %}}"
    tokenizer.chat_template = ours + tokenizer.chat_template
    trainer, kept, moved = train(
        vf.to_trl(environment), tokenizer, tmp_path, max_tool_calling_iterations=5
    )
    assert moved > 0
    assert all(norm > 0 for norm in history(trainer, "grad_norm"))
    assert sum(history(trainer, "tools/call_frequency")) > 0
    tasks = {f"train/{task.id}": task for task in environment.tasks("train")}
    seen: set[float] = set()
    for batch, logged in zip(kept, history(trainer, "rewards/calculator/mean"), strict=True):
        rewards = [float(value) for value in batch["rewards"][:, 0]]
        for row, completion, reward in zip(
            batch["inputs"], batch["completions"], rewards, strict=True
        ):
            # Recomputed from what TRL logs alone: nothing that the episode's tools recorded.
            episode = environment.episode(0)
            trace = as_trace("", episode, tasks[row["task"]], row["prompt"], completion, 0)
            score = asyncio.run(environment.rubric.score(trace))
            assert reward == pytest.approx(score.reward)
        seen |= set(rewards)
        assert logged == pytest.approx(sum(rewards) / len(rewards))
    assert len(seen) > 1


def first_answer(trace: vf.Trace) -> float:
    """1 if the first message that answers is right."""
    answers = [final_answer(m.content) for m in trace.messages if m.role == "assistant"]
    found = [answer for answer in answers if answer is not None]
    return float(bool(found) and found[0] == trace.task.answer)


class Doubtful(Calculator):
    """The calculator, who asks once whether an answer is right: a step of its own."""

    def __init__(self) -> None:
        super().__init__(max_operations=1, num_train=16, num_eval=2)
        self.rubric = vf.Rubric(outcome=first_answer)

    async def step(self, reply: vf.Message) -> vf.Step:
        """Ask back."""
        if reply.tool_calls or self.turn > 2:
            return await self.run_tools(reply)
        return vf.Step([vf.Message("user", "Say it again, please.")])


def test_two_steps_in_our_loop(tokenizer: Any, tmp_path: Path) -> None:
    environment = Doubtful()
    kwargs = vf.to_trl(environment)
    assert set(kwargs) == {"train_dataset", "eval_dataset", "rollout_func", "reward_funcs"}
    trainer, kept, moved = train(kwargs, tokenizer, tmp_path)
    assert moved > 0
    # Which rollouts are sampled together hangs on time: a group's rewards may be all alike.
    assert any(norm > 0 for norm in history(trainer, "grad_norm"))
    assert len(kept) == 2
    seen: set[float] = set()
    for batch in kept:
        rewards = [float(value) for value in batch["rewards"][:, 0]]
        for row, ids, reward in zip(batch["inputs"], batch["ids"], rewards, strict=True):
            trace = row["trace"]
            assert trace.error is None
            assert row["task"] == f"train/{trace.task.id}"
            assert reward == pytest.approx(trace.reward)
            assert any(message.role == "user" for message in trace.messages[2:])
            # What TRL trains on is what was sampled and shown, id by id.
            branch = trace.branches[0]
            assert ids == branch.token_ids[branch.loss_mask.index(1) :]
        seen |= set(rewards)
    assert len(seen) > 1


class Told(vf.Environment):
    """What the model reads is what ``reset`` says, and not the task's prompt."""

    rubric = vf.Rubric(outcome=lambda trace: 0.0)

    def tasks(self, split: Any) -> list[vf.Task]:
        return [vf.Task(name, name) for name in ("short", "long")] if split == "train" else []

    def reset(self, task: vf.Task) -> str:
        return "These are the rules. " * (1 if task.id == "short" else 40)

    def step(self, reply: vf.Message) -> vf.Step:
        return vf.Step("Go on.")


def test_the_room_for_a_completion_is_counted_from_what_reset_returned(
    tokenizer: Any, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=24,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    model = AutoModelForCausalLM.from_pretrained(resolve_model("tiny"), dtype=torch.float32)
    kwargs = vf.to_trl(Told())
    trainer = GRPOTrainer(model=model, args=config, processing_class=tokenizer, **kwargs)
    found = kwargs["rollout_func"]([row["prompt"] for row in kwargs["train_dataset"]], trainer)
    for trace, ids in zip(found["trace"], found["completion_ids"], strict=True):
        assert trace.error is None
        assert trace.turns[0].completion_tokens > 0
        assert len(ids) <= 24
