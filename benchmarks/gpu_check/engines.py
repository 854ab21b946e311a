"""Inference: the embedded engine against `generate`, and runs through a vLLM server."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from gpu_check.models import QWEN3_06B, TINY, make_samples, save_random
from gpu_check.row import Row

from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.model import Sampling
from vf.inference.model_files import load_module
from vf.trainer.settings.load_config import load_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROOT = Path(__file__).parents[2]
CUDA = torch.cuda.is_available()
# Nats by which float32 log-probabilities may differ, and by which a token may miss the likeliest.
# On CUDA products may be TF32.
TOLERANCE = 2e-2 if CUDA else 1e-4
TIMEOUT = 900  # seconds, of a run through vLLM
STEPS = 3
# Settings of three steps through vLLM, by what is checked.
VLLM: dict[str, list[str]] = {
    "lora": ["inference.publish=lora"],
    "disk": ["inference.publish=disk", "use_lora=false"],
    "nccl": ["inference.publish=nccl", "use_lora=false", "inference.gpus=[0]", "trainer.gpus=[1]"],
    "sleep": ["inference.publish=lora", "inference.sleep=true"],
}


def embedded() -> Row:
    """Compare greedy answers and their log-probabilities with `generate` and a plain forward."""
    requests, length, tokens = (16, 64, 128) if CUDA else (4, 16, 24)
    with tempfile.TemporaryDirectory() as folder:
        save_random("Qwen3", TINY, Path(folder), sharpen=2.0)
        model = load_module(folder, torch.float32).to("cuda" if CUDA else "cpu").eval()
    prompts = _prompts(requests, length, TINY["vocab_size"])
    theirs, _ = _plain(model, prompts, tokens)
    answers, _ = _embedded(model, prompts, tokens)
    gap = regret = 0.0
    for prompt, (ids, logprobs) in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids], device=model.device)).logits[0]
        expected = logits[len(prompt) - 1 : -1].float().log_softmax(-1).cpu()
        mine = expected.gather(1, torch.tensor(ids)[:, None])[:, 0]
        gap = max(gap, float((mine - torch.tensor(logprobs)).abs().max()))
        regret = max(regret, float((expected.max(-1).values - mine).max()))
    same = sum(ids == their for (ids, _), their in zip(answers, theirs, strict=True))
    figures = {"log-probabilities off by": gap, "likeliest missed by": regret}
    note = f"{same} of {requests} answers are generate's; {TOLERANCE:g} nats allowed"
    return Row("embedded: float32", max(gap, regret) <= TOLERANCE, figures, note)


def embedded_speed() -> Row:
    """Compare its tokens a second with `generate` on one padded batch."""
    requests, length, tokens = (64, 256, 256) if CUDA else (8, 16, 32)
    settings = QWEN3_06B if CUDA else TINY
    with tempfile.TemporaryDirectory() as folder:
        save_random("Qwen3", settings, Path(folder))
        dtype = torch.bfloat16 if CUDA else torch.float32
        model = load_module(folder, dtype).to("cuda" if CUDA else "cpu").eval()
    prompts = _prompts(requests, length, settings["vocab_size"])
    _, plain = _plain(model, prompts, tokens)
    _, ours = _embedded(model, prompts, tokens)
    figures = {
        "tokens/s": requests * tokens / ours,
        "generate's": requests * tokens / plain,
        "requests": requests,
    }
    return Row("embedded: speed", None, figures, "Qwen3-0.6B, bf16" if CUDA else "a tiny model")


def vllm(way: str) -> Row:
    """Take three steps through a vLLM server that gets new weights in one way, or sleeps."""
    check = f"vllm: {way}"
    changes = ["inference.engine=vllm", f"max_steps={STEPS}", "eval_examples=8", *VLLM[way]]
    quickstart = ROOT / "configs" / "quickstart.toml"
    load_config(quickstart, changes)  # refuses what is no setting, on every machine
    if not CUDA:
        return Row(check, None, note="needs a CUDA device; its settings are accepted")
    if importlib.util.find_spec("vllm") is None:
        return Row(check, None, note="vLLM is not installed here; its settings are accepted")
    if way == "nccl" and torch.cuda.device_count() < 2:
        return Row(check, None, note="needs two GPUs; its settings are accepted")
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--set={change}" for change in [*changes, f"output_dir={folder}"]]
        command = [sys.executable, "-m", "vf.trainer.commands.main", str(quickstart), *words]
        started = time.perf_counter()
        done = subprocess.run(command, text=True, capture_output=True, timeout=TIMEOUT, cwd=ROOT)
        seconds = time.perf_counter() - started
        lines = [
            json.loads(line)
            for path in Path(folder).glob("*/metrics.jsonl")
            for line in path.read_text().splitlines()
        ]
    gaps = [line["logprob_gap"] for line in lines if "logprob_gap" in line]
    figures = {"s": seconds, "logprob gap": max(gaps, default=float("nan"))}
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        return Row(check, False, figures, f"exit code {done.returncode}: {said[-1]}"[:200])
    steps = sum("grad_norm" in line for line in lines)
    return Row(check, steps == STEPS, figures, f"{steps} of {STEPS} steps")


def _prompts(count: int, length: int, vocabulary: int) -> list[list[int]]:
    samples = make_samples(count, 1, length, 1, vocabulary)
    return [sample.branch.token_ids[:length] for sample in samples]


def _plain(
    model: PreTrainedModel, prompts: list[list[int]], tokens: int
) -> tuple[list[list[int]], float]:
    """Return the greedy answers of transformers' `generate`, and the seconds of a warm call."""
    from transformers import GenerationConfig

    generation = GenerationConfig(do_sample=False, max_new_tokens=tokens, pad_token_id=0)
    ids = torch.tensor(prompts, device=next(model.parameters()).device)
    mask = torch.ones_like(ids)
    model.generation_config.eos_token_id = None  # every answer has its full length
    model.generate(ids, attention_mask=mask, generation_config=generation)
    started = time.perf_counter()
    found = model.generate(ids, attention_mask=mask, generation_config=generation)
    answers: list[list[int]] = found[:, ids.shape[1] :].tolist()
    return answers, time.perf_counter() - started


def _embedded(
    model: PreTrainedModel, prompts: list[list[int]], tokens: int
) -> tuple[list[tuple[list[int], list[float]]], float]:
    """Return the engine's greedy answers with log-probabilities, and the seconds of a warm round.

    It forgets the prompts in between, as after a training step.
    """
    engine = EmbeddedEngine(model, max_seq_len=len(prompts[0]) + tokens, max_requests=len(prompts))
    engine.start()
    sampling = Sampling(max_tokens=tokens, temperature=0.0)

    async def round_of() -> list[tuple[list[int], list[float]]]:
        asked = (engine.generate(prompt, sampling, []) for prompt in prompts)
        return [(each.token_ids, each.logprobs) for each in await asyncio.gather(*asked)]

    try:
        asyncio.run(round_of())
        engine.publish(1)
        started = time.perf_counter()
        answers = asyncio.run(round_of())
        return answers, time.perf_counter() - started
    finally:
        engine.stop()
