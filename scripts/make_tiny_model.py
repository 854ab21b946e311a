"""Makes the tiny chat model that ships with the library: `python scripts/make_tiny_model.py OUT`.

A Llama-shaped transformer of about a million parameters with a byte-level BPE tokenizer and a
chat template with tools, warm-started twice by `vf-rl sft` on traces of scripted agents in the
`calculator` environment. It first learns from faultless ones how to call the tool and copy numbers,
and then from deliberately imperfect ones, most of which guess, stop early or slip. So it is able to
do the right thing, but does it less than half the time, which leaves reinforcement learning
something to do.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from vf.environments.bundled.calculator import Calculator
from vf.environments.runner import rollout
from vf.inference.models.scripted_model import Script, ScriptedModel
from vf.traces.store import TraceStore
from vf.traces.task import Task
from vf.traces.trace import Trace
from vf.trainer.commands import sft as vf_sft

CHAT_TEMPLATE = (Path(__file__).parent / "tiny_chat_template.jinja").read_text()
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKUP = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
VOCABULARY = 512

# How often each way of working appears in the traces of the two warm starts.
FAULTLESS = {"good": 1.0}
IMPERFECT = {"good": 0.30, "guesses": 0.30, "stops_early": 0.30, "slips": 0.10}

WARM_START = """\
model = "{model}"

[data]
traces = ["{traces}"]
min_reward = 0  # mistakes are to be learned, too
deduplicate = false
held_out = 0.02

[trainer.args]
run_name = "{name}"
output_dir = "{out}"
seed = {seed}
max_steps = {steps}
batch_size = {batch_size}
max_seq_len = 512
learning_rate = {learning_rate}
lr_scheduler_type = "cosine"
warmup_steps = {warmup_steps}
betas = [0.9, 0.98]
weight_decay = 0.05
use_lora = false
bf16 = true
eval_steps = 100
save_steps = {steps}
"""


def script(behaviour: str, environment: Calculator, task: Task, rng: random.Random) -> Script:
    """Return what an agent says that works on the task in the given way."""
    if behaviour == "guesses":
        return [f"Answer: {rng.randint(-99, 2500)}"]
    calls = environment.plan(task)
    if behaviour == "stops_early":
        calls = calls[:1]
    if behaviour == "slips":
        calls[-1]["a"] = rng.randint(1, 50)
    answer = environment.calculate(**calls[-1])
    return [*({"calculate": call} for call in calls), f"Answer: {answer}"]


async def demonstrate(count: int, behaviours: dict[str, float], seed: int) -> list[Trace]:
    """Let scripted agents work on tasks of the train split, and return their traces."""
    rng = random.Random(seed)
    environment = Calculator(num_train=count)
    traces = []
    for task in environment.tasks("train"):
        [behaviour] = rng.choices(list(behaviours), list(behaviours.values()))
        model = ScriptedModel(script(behaviour, environment, task, rng))
        traces.append(await rollout(environment, task, model))
    return traces


def train_tokenizer(texts: Iterator[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer that takes numbers in chunks of up to two digits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(r"\p{N}{1,2}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"), behavior="isolated"
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKUP),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return the model, untrained."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=144,
        intermediate_size=432,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=32,  # the smallest that vLLM serves on a CPU
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def warm_start(
    model: Path, name: str, traces: Sequence[Trace], out: Path, **settings: float
) -> Path:
    """Fine-tune a model on traces with `vf-rl sft`; returns the folder of the model it makes.

    Args:
        model: The folder of the model.
        name: What the traces, the TOML and the run are called.
        traces: What is learned.
        out: Where all of them go.
        settings: What :data:`WARM_START` leaves open.

    Raises:
        SystemExit: The warm start failed, and has said why.
    """
    file, config = out / f"{name}.jsonl", out / f"{name}.toml"
    with TraceStore(file) as store:
        for trace in traces:
            store.append(trace)
    config.write_text(WARM_START.format(model=model, traces=file, name=name, out=out, **settings))
    if failed := vf_sft.main([str(config)]):
        raise SystemExit(failed)
    return out / name / "model"


def main(argv: Sequence[str] | None = None) -> int:
    """Make the model and save it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, help="new folder; the model will be in OUT/model")
    parser.add_argument("--steps", type=int, default=3000, help="steps on faultless traces")
    parser.add_argument("--spoil-steps", type=int, default=300, help="steps on imperfect ones")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--traces", type=int, default=32_000, help="traces of either kind")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    out = args.out.resolve()
    if out.exists():
        parser.error(f"{out} exists; name a new folder")
    out.mkdir(parents=True)

    faultless, imperfect = (
        asyncio.run(demonstrate(args.traces, behaviours, args.seed))
        for behaviours in (FAULTLESS, IMPERFECT)
    )
    blank = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    blank.chat_template = CHAT_TEMPLATE
    tokenizer = train_tokenizer(
        blank.apply_chat_template(
            [message.to_openai() for message in trace.messages], tools=trace.tools, tokenize=False
        )
        for trace in imperfect[:3000]
    )
    torch.manual_seed(args.seed)
    model = build(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    folder = out / "untrained"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name, traces, steps, learning_rate in (
        ("faultless", faultless, args.steps, args.learning_rate),
        # A higher rate makes it forget how to copy.
        ("imperfect", imperfect, args.spoil_steps, args.learning_rate / 10),
    ):
        folder = warm_start(
            folder,
            name,
            traces,
            out,
            seed=args.seed,
            steps=steps,
            warmup_steps=min(100, steps // 3),
            batch_size=args.batch_size,
            learning_rate=learning_rate,
        )
    made = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    made.save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    print(f"the model is in {out / 'model'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
