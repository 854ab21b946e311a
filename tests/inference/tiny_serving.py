"""The shipped model, the embedded engine on it, and a naive reference for its logprobs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from vf.inference.completions import Completion
from vf.inference.embedded.app import build_app
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.server_thread import ServerThread
from vf.inference.model import Sampling
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer

TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Calculate.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    },
}


def load_model() -> Any:
    """Load the shipped model in float32."""
    loaded = AutoModelForCausalLM.from_pretrained(
        resolve_model("tiny"), dtype=torch.float32, attn_implementation="sdpa"
    )
    return loaded.eval()


@contextmanager
def running_engine(model: Any, **settings: Any) -> Iterator[EmbeddedEngine]:
    """Run an engine, and stop it in the end."""
    engine = EmbeddedEngine(model, **{"max_seq_len": 512, "max_requests": 8} | settings)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@contextmanager
def running_server(engine: EmbeddedEngine, renderer: Renderer | None = None) -> Iterator[str]:
    """Serve an engine as ``tiny``, and give the base URL."""
    renderer = renderer or Renderer.from_pretrained(resolve_model("tiny"))
    server = ServerThread(build_app(engine, renderer, "tiny"))
    server.start()
    try:
        yield server.base_url
    finally:
        server.stop()


@contextmanager
def counted_passes(engine: EmbeddedEngine) -> Iterator[list[int]]:
    """Yield a list that gets longer with every forward pass."""
    passes: list[int] = []
    hook = engine.model.register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        yield passes
    finally:
        hook.remove()


def generate_all(
    engine: EmbeddedEngine, requests: list[tuple[list[int], Sampling]], stops: list[int]
) -> list[Completion]:
    """Send all requests at once."""

    async def run() -> list[Completion]:
        return await asyncio.gather(
            *(engine.generate(prompt, sampling, stops) for prompt, sampling in requests)
        )

    return asyncio.run(run())


def logits(engine: EmbeddedEngine, ids: list[int], model: Any = None) -> torch.Tensor:
    """Return the logits of a plain forward pass, float32 ``[tokens, vocabulary]``."""
    with engine.paused(), torch.no_grad():
        output: torch.Tensor = (model or engine.model)(torch.tensor([ids]), use_cache=False).logits
    return output[0].float()


def plain_logprobs(
    engine: EmbeddedEngine,
    prompt: list[int],
    sampled: list[int],
    temperature: float = 1.0,
    model: Any = None,
) -> list[float]:
    """Return the logprobs of the sampled ids by a plain forward pass over the whole sequence."""
    scores = logits(engine, prompt + sampled, model)[len(prompt) - 1 : -1] / temperature
    chosen = torch.log_softmax(scores, -1)[torch.arange(len(sampled)), torch.tensor(sampled)]
    return [float(value) for value in chosen]


def naive_distribution(row: list[float], seen: set[int], sampling: Sampling) -> dict[int, float]:
    """Return the probabilities of the tokens that survive all filters, in plain floats."""
    scores = list(row)
    for token in seen:
        value, penalty = scores[token], sampling.repetition_penalty
        scores[token] = value / penalty if value > 0 else value * penalty
    scores = [score / (sampling.temperature or 1.0) for score in scores]
    top = max(scores)
    weights = {token: math.exp(score - top) for token, score in enumerate(scores)}
    weights = {t: w for t, w in weights.items() if w >= sampling.min_p}
    order = sorted(weights, key=lambda token: (-weights[token], token))
    order = order[: sampling.top_k or None]
    total = sum(weights[token] for token in order)
    kept: dict[int, float] = {}
    for token in order:
        if kept and sum(kept.values()) >= sampling.top_p * total:
            break
        kept[token] = weights[token]
    return {token: weight / sum(kept.values()) for token, weight in kept.items()}
