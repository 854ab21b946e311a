"""The contenders of `trainer_step.py`: one optimizer step each time they are told to."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

GROUPS, ROLLOUTS = 4, 16
VOCABULARY = 8192
PROMPT = {"A": 256, "B": 1000}
LORA_RANK, LORA_ALPHA = 16, 32
LEARNING_RATE = 1e-12  # weights stay as they are, so that every step is the same work
TRL_ROWS = 8  # in one forward and backward pass: TRL's own default
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SMALL: dict[str, Any] = {
    **SIZES,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
WINDOWS = {"sliding_window": 128, "layer_types": 2 * ["sliding_attention", "full_attention"]}
STATES = {
    "layer_types": [*(3 * ["linear_attention"]), "full_attention"],
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 256, "num_experts": 8}
# Configs of transformers' by name. The first is compared with TRL, and the others with themselves,
# padded: windows, states and sinks are what packing has to keep apart.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "LlamaConfig",
        {
            **SIZES,
            "hidden_size": 384,
            "intermediate_size": 1024,
            "num_hidden_layers": 8,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
        },
    ),
    "gemma3": ("Gemma3TextConfig", {**SMALL, **WINDOWS}),
    "qwen3_5": ("Qwen3_5TextConfig", {**SMALL, **STATES}),
    "qwen3_next": (
        "Qwen3NextConfig",
        {**SMALL, **STATES, **EXPERTS, "shared_expert_intermediate_size": 256},
    ),
    "gpt_oss": (
        "GptOssConfig",
        {
            **SMALL,
            **WINDOWS,
            "intermediate_size": 256,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
}


NARROW = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True)
class Work:
    """Four groups of sixteen rollouts.

    Attributes:
        prompts: Token ids, one prompt per group.
        completions: Token ids by group and rollout.
        rewards: By group and rollout.
    """

    prompts: list[list[int]]
    completions: list[list[list[int]]]
    rewards: list[list[float]]

    @property
    def trained(self) -> int:
        """Tokens that carry loss."""
        return sum(len(ids) for group in self.completions for ids in group)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        pairs = zip(self.prompts, self.completions, strict=True)
        return max(len(prompt) + max(map(len, group)) for prompt, group in pairs)

    def advantage(self, group: int, rollout: int) -> float:
        """The reward over the group's mean."""
        return self.rewards[group][rollout] - sum(self.rewards[group]) / ROLLOUTS


def make_work(kind: str, scale: float) -> Work:
    """Return workload A or B, or one that is ``scale`` times as long."""
    rng = random.Random(0)

    def ids(count: float) -> list[int]:
        return [rng.randrange(16, VOCABULARY) for _ in range(max(2, round(scale * count)))]

    if kind == "A":  # evenly from 32 to 224, so that the mean is 128
        lengths = [32 + 192 * place / (ROLLOUTS - 1) for place in range(ROLLOUTS)]
    else:
        lengths = [200.0] * ROLLOUTS
    return Work(
        prompts=[ids(PROMPT[kind]) for _ in range(GROUPS)],
        completions=[
            [ids(length) for length in rng.sample(lengths, ROLLOUTS)] for _ in range(GROUPS)
        ],
        rewards=[[float(rng.random() < 0.5) for _ in range(ROLLOUTS)] for _ in range(GROUPS)],
    )


def make_model(folder: str, name: str = "llama", *, narrow: bool = False) -> None:
    """Save a random model of :data:`MODELS`, with the tiny model's tokenizer.

    The Llama has 20 M parameters, or 1.5 M if it is narrow, for a smoke run.
    """
    import torch
    import transformers

    from vf.inference.model_files import resolve_model

    torch.manual_seed(0)
    config_class, settings = MODELS[name]
    config = getattr(transformers, config_class)(**settings | (NARROW if narrow else {}))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve_model("tiny"))
    tokenizer.save_pretrained(folder)


def set_adapter(model: nn.Module) -> None:
    """Give a model's adapter the same weights wherever it was made; without one, do nothing."""
    import torch

    generator = torch.Generator().manual_seed(1)
    named = sorted((name, p) for name, p in model.named_parameters() if "lora_" in name)
    with torch.no_grad():
        for _, parameter in named:
            parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))


class Clock:
    """Tells the wall's seconds, and all threads' CPU seconds, since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return both."""
        return {
            "seconds": time.perf_counter() - self._wall,
            "cpu_seconds": time.process_time() - self._cpu,
        }


def peak_mib() -> float:
    """The most memory that this process has had."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def ours(
    pipe: Connection, folder: str, work: Work, use_lora: bool, settings: dict[str, Any]
) -> None:
    """`Policy.update`, as the trainer calls it."""
    from vf.traces.trace import Branch
    from vf.trainer.learning.batches.batch import Sample
    from vf.trainer.learning.policy import Policy
    from vf.trainer.settings.config import TrainerArgs

    adapter: dict[str, Any] = {"lora_rank": LORA_RANK, "lora_alpha": LORA_ALPHA} if use_lora else {}
    args = TrainerArgs(
        use_lora=use_lora,
        learning_rate=LEARNING_RATE,
        max_seq_len=work.longest,
        max_prompt_len=work.longest - 1,
        loss_normalisation="token",
        **adapter,
        **settings,
    )
    policy = Policy(folder, args)
    set_adapter(policy.model)
    samples = []
    for group, prompt in enumerate(work.prompts):
        for rollout, completion in enumerate(work.completions[group]):
            branch = Branch()
            branch.add_context(prompt, 0)
            logprobs = policy.logprobs(prompt, completion)  # on-policy, as TRL takes it to be
            branch.add_sampled(completion, logprobs, [0] * len(completion), 0)
            samples.append(Sample(branch, work.advantage(group, rollout)))
    pipe.send("ready")
    while pipe.recv() == "step":
        clock = Clock()
        stats = policy.update(samples)
        found = {**clock.read(), "grad_norm": stats.grad_norm, "peak_mib": peak_mib()}
        pipe.send({**found, "padded": float(policy.forward.how == "padded")})


def trl(pipe: Connection, folder: str, work: Work, use_lora: bool, compact: bool) -> None:
    """TRL's GRPOTrainer, fed the same rollouts; with ``compact``, its head on completions only."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    import trl.trainer.utils
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        PrinterCallback,
        TrainerCallback,
    )
    from trl import GRPOConfig, GRPOTrainer

    if compact:
        # What it does on Triton devices: leave out the positions that no loss is computed for.
        vars(trl.trainer.utils)["_use_triton"] = lambda device: True

    def rollouts(prompts: list[str], trainer: object) -> dict[str, Any]:
        seen = [0] * GROUPS
        out: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "logprobs": None, "paid": []}
        for prompt in prompts:
            group = int(prompt)
            rollout = seen[group]
            seen[group] += 1
            out["prompt_ids"].append(work.prompts[group])
            out["completion_ids"].append(work.completions[group][rollout])
            out["paid"].append(work.rewards[group][rollout])
        return out

    def reward(paid: list[float], **_: Any) -> list[float]:
        return paid

    class Steps(TrainerCallback):  # type: ignore[misc]
        """Hold the trainer before each step until it may continue."""

        clock: Clock
        took: dict[str, float]

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if pipe.recv() != "step":
                raise SystemExit
            self.clock = Clock()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.took = self.clock.read()

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            if "grad_norm" in logs:
                norm = float(logs["grad_norm"])
                pipe.send({**self.took, "grad_norm": norm, "peak_mib": peak_mib()})

    lora = LoraConfig(
        r=LORA_RANK,
        lora_alpha=LORA_ALPHA,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=reward,
        rollout_func=rollouts,
        train_dataset=Dataset.from_dict({"prompt": [str(group) for group in range(GROUPS)]}),
        peft_config=lora if use_lora else None,
        callbacks=[Steps()],
        args=GRPOConfig(
            output_dir=f"{folder}/trl",
            per_device_train_batch_size=TRL_ROWS,
            gradient_accumulation_steps=GROUPS * ROLLOUTS // TRL_ROWS,
            num_generations=ROLLOUTS,
            max_completion_length=4096,
            max_steps=10_000,
            learning_rate=LEARNING_RATE,
            max_grad_norm=1.0,
            loss_type="dapo",
            scale_rewards="none",
            beta=0.0,
            temperature=1.0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    set_adapter(trainer.model)
    pipe.send("ready")
    trainer.train()
