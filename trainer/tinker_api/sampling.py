"""Samples of one prompt from the engine, with one adapter."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import numpy as np

from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.lora_mixture import Lora
from vf.inference.model import Sampling
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError
from vf.runtime.seeding import derive_seed
from vf.trainer.learning.batches.top_tokens import Likeliest
from vf.trainer.tinker_api.datums import input_tokens
from vf.trainer.tinker_api.requests import Sample, SamplingParams
from vf.trainer.tinker_api.results import NOTHING, PromptLogprobs, Sampled

PER_CHARACTER = 4  # tokens at most: a byte each


def check_prompt(body: Sample, vocabulary: int, longest: int) -> np.ndarray:
    """Return the prompt of a request, int64 ``[N]``.

    Args:
        body: The request.
        vocabulary: Token ids are below it.
        longest: Tokens of the context.

    Raises:
        ConfigError: If it cannot be sampled from.
    """
    prompt = input_tokens(body.prompt, "prompt")
    if not len(prompt):
        raise ConfigError("prompt: it has no tokens")
    if not ((prompt >= 0) & (prompt < vocabulary)).all():
        raise ConfigError(f"prompt: token ids must be in [0, {vocabulary})")
    least = body.sampling_params.max_tokens or 1
    if len(prompt) + least > longest:
        raise ConfigError(
            f"prompt: {len(prompt):,} tokens and max_tokens = {least:,}, but the context here has "
            f"{longest:,}"
        )
    last = body.prompt_logprobs_last_n
    if last is not None and not (body.prompt_logprobs and last < len(prompt)):
        raise ConfigError(
            "prompt_logprobs_last_n: it needs prompt_logprobs, and must be below the prompt's "
            f"{len(prompt):,} tokens"
        )
    return prompt


class EngineSampler:
    """Samples from the engine.

    Args:
        engine: The engine.
        renderer: Its tokenizer tells what ends an answer by default.
    """

    def __init__(self, engine: EmbeddedEngine, renderer: Renderer) -> None:
        self._engine, self._renderer = engine, renderer

    async def sample(
        self, lora: Lora | None, prompt: list[int], params: SamplingParams, count: int
    ) -> list[Sampled]:
        """Return samples of one prompt, all of which run at once; if one fails, so do all.

        Raises:
            EngineError: If the engine died or refused the prompt.
        """
        seed = random.getrandbits(62) if params.seed is None else params.seed
        most = params.max_tokens or self._engine.max_seq_len - len(prompt)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._one(lora, prompt, params, most, derive_seed(seed, index)))
                for index in range(count)
            ]
        return [task.result() for task in tasks]

    async def _one(
        self, lora: Lora | None, prompt: list[int], params: SamplingParams, most: int, seed: int
    ) -> Sampled:
        sampling = Sampling(
            max_tokens=most,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=max(0, params.top_k),
            seed=seed,
        )
        ids, texts = self._stops(params)
        if not texts:
            last = await self._engine.generate(prompt, sampling, ids, lora)
            return Sampled(last.token_ids, last.logprobs, last.finish_reason == "stop")
        window = PER_CHARACTER * max(map(len, texts))
        async with aclosing(self._engine.stream(prompt, sampling, ids, lora)) as completions:
            async for last in completions:
                tail = self._renderer.decode(last.token_ids[-window:])
                if any(text in tail for text in texts):
                    return Sampled(last.token_ids, last.logprobs, True)
        return Sampled(last.token_ids, last.logprobs, last.finish_reason == "stop")

    def _stops(self, params: SamplingParams) -> tuple[list[int], list[str]]:
        """Return the token ids and the texts that end an answer; what is given replaces EOS."""
        if params.stop is None:
            return list(self._renderer.stop_token_ids), []
        stops = [params.stop] if isinstance(params.stop, str) else params.stop
        return (
            [stop for stop in stops if isinstance(stop, int)],
            [stop for stop in stops if isinstance(stop, str) and stop],
        )


def prompt_logprobs(
    body: Sample, prompt: np.ndarray, logprobs: np.ndarray, likeliest: Likeliest | None
) -> PromptLogprobs:
    """Return what a request asked for of its prompt's log-probabilities.

    Args:
        body: The request.
        prompt: Its prompt, int64 ``[N]``.
        logprobs: The log-probabilities of the tokens after the first, float32 ``[N - 1]``.
        likeliest: The likeliest tokens there; None if they were not asked for.
    """
    count, shown = len(prompt), body.prompt_logprobs_last_n or len(prompt)
    own = np.full(count, np.nan, np.float32)
    first = max(1, count - shown)
    own[first:] = logprobs[first - 1 :]
    values = own if body.prompt_logprobs else None
    if not body.topk_prompt_logprobs:
        return PromptLogprobs(values)
    k = body.topk_prompt_logprobs
    ids, top = np.zeros((count, k), np.int32), np.full((count, k), NOTHING, np.float32)
    if likeliest is not None:
        width = likeliest.ids.shape[1]
        ids[first:, :width] = likeliest.ids.numpy()[first - 1 :]
        top[first:, :width] = likeliest.logprobs.numpy()[first - 1 :]
    return PromptLogprobs(values, ids, top)
