"""Makes the tiny chat model that ships with the library: `python -m vf.trainer.tiny_model OUT`.

A Llama-shaped transformer of about a million parameters with a byte-level BPE tokenizer and a
chat template with tools, warm-started on conversations in the `calculator` environment. It first
learns from faultless ones how to call the tool and copy numbers, and then from deliberately
imperfect ones, most of which guess, stop early or slip. So it is able to do the right thing, but
does it less than half the time, which leaves reinforcement learning something to do.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from vf.environments.bundled.calculator import Calculator
from vf.environments.runner import rollout
from vf.inference.renderer import Renderer
from vf.inference.scripted import Line, ScriptedModel
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace
from vf.trainer.sft.render import render

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

# How often each way of working appears in the conversations of the two phases.
FAULTLESS = {"good": 1.0}
IMPERFECT = {"good": 0.30, "guesses": 0.30, "stops_early": 0.30, "slips": 0.10}

_ATOM = re.compile(r"\d+|[-+*()]")


def plan(expression: str) -> list[tuple[str, int | None, int | None]]:
    """Return the calls an expression needs, innermost first; None stands for the last result."""
    tokens: list[str] = _ATOM.findall(expression)
    calls: list[tuple[str, int | None, int | None]] = []

    def operand() -> int | None:
        token = tokens.pop(0)
        if token != "(":
            return int(token)
        operation()
        tokens.pop(0)  # the closing bracket
        return None

    def operation() -> None:
        left = operand()
        op = tokens.pop(0)
        calls.append((op, left, operand()))

    operation()
    return calls


def behave(behaviour: str, task: Task, rng: random.Random) -> Callable[[list[Message]], Line]:
    """Return a scripted agent that works on the task in the given way."""
    calls = plan(task.id)
    slip = rng.randrange(len(calls)) if behaviour == "slips" else -1

    def answer(messages: list[Message]) -> Line:
        results = [int(message.content) for message in messages if message.role == "tool"]
        if behaviour == "guesses":
            return f"Answer: {rng.randint(-99, 2500)}"
        done = len(results)
        if done == len(calls) or (behaviour == "stops_early" and done == 1):
            return f"Answer: {results[-1]}"
        op, a, b = calls[done]
        left = results[-1] if a is None else a
        right = results[-1] if b is None else b
        if done == slip:
            left = rng.randint(1, 50)
        return {"calculate": {"op": op, "a": left, "b": right}}

    return answer


async def demonstrate(count: int, behaviours: dict[str, float], seed: int) -> list[Trace]:
    """Run scripted agents on train tasks, and return their traces."""
    rng = random.Random(seed)
    environment = Calculator(num_train=min(count, 20_000), max_operations=2)
    tasks = list(environment.tasks("train"))
    names, weights = list(behaviours), list(behaviours.values())

    async def one(task: Task) -> Trace:
        behaviour = rng.choices(names, weights)[0]
        model = ScriptedModel(behave(behaviour, task, rng))
        trace = await rollout(environment, task, model)
        assert trace.error is None, trace.error
        return trace

    return [await one(tasks[index % len(tasks)]) for index in range(count)]


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


def encode(renderer: Renderer, trace: Trace) -> tuple[list[int], list[int]]:
    """Return a conversation's token ids, and which of them the model is to learn (0 or 1)."""
    [branch] = render(renderer, trace)
    return branch.token_ids, branch.loss_mask


Encoded = list[tuple[list[int], list[int]]]


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


def train(
    model: LlamaForCausalLM,
    conversations: Encoded,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> None:
    """Train on the conversations by next-token cross-entropy on the masked tokens."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.05
    )
    order, started = random.Random(seed), time.perf_counter()
    for step in range(steps):
        rate = min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * max(rate, 0.02)
        rows = order.sample(conversations, batch_size)
        shape = (batch_size, max(len(ids) for ids, _ in rows))
        ids = torch.zeros(shape, dtype=torch.long)  # padding is to the right, and never learned
        mask = torch.zeros(shape, dtype=torch.bool)
        for index, (row, learn) in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            mask[index, : len(row)] = torch.tensor(learn, dtype=torch.bool)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits[mask[:, 1:]], ids[:, 1:][mask[:, 1:]])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            seconds = time.perf_counter() - started
            print(f"step {step:5d}  loss {loss.item():.4f}  {seconds:6.0f} s", flush=True)


def main() -> None:
    """Make the model and save it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--steps", type=int, default=2000, help="steps on faultless conversations")
    parser.add_argument("--spoil-steps", type=int, default=300, help="steps on imperfect ones")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--conversations", type=int, default=8_000)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    faultless, imperfect = (
        asyncio.run(demonstrate(args.conversations, behaviours, args.seed))
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
    renderer = Renderer(tokenizer)
    torch.manual_seed(args.seed)
    model = build(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    for conversations, steps, learning_rate in (
        (faultless, args.steps, args.learning_rate),
        (imperfect, args.spoil_steps, args.learning_rate / 3),
    ):
        encoded = [encode(renderer, trace) for trace in conversations]
        tokens = sum(len(ids) for ids, _ in encoded)
        print(f"{len(encoded)} conversations of {tokens / len(encoded):.0f} tokens on average")
        train(
            model,
            encoded,
            steps=steps,
            batch_size=args.batch_size,
            learning_rate=learning_rate,
            seed=args.seed,
        )
    model.to(torch.bfloat16).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
