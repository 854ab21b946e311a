"""Episodes that vf-rl's loop runs, sampling through TRL's trainer.

TRL's `rollout_func` is given prompts and returns token ids. Ours plays a whole episode for each,
through the same loop as everywhere here: so the environment's own `reset` and `step` are called,
and what was sampled is trained on id by id.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from vf.bridges.trl.episodes import Home
from vf.environments.runner import rollout
from vf.inference.completions import Completion
from vf.inference.model import Conversation, Reply, Sampling
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.runtime.batching import Batcher
from vf.runtime.calling import call, carry_out
from vf.runtime.errors import ConfigError, ModelError
from vf.traces.messages import as_messages
from vf.traces.trace import Failure, Trace


def rollout_function(home: Home) -> Callable[[list[Any], Any], dict[str, Any]]:
    """Return the function that TRL calls with prompts and its trainer.

    It gives back ``prompt_ids``, ``completion_ids``, ``logprobs``, ``env_mask`` (1 where a token
    was sampled) and ``trace``: a list each, with an entry for each prompt.
    """
    numbers = count()

    def rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        if trainer.accelerator.num_processes > 1:
            raise ConfigError(
                f"to_trl: the rollouts of {home.name} take different numbers of turns, so TRL's "
                "processes would wait for each other forever; train in one process"
            )
        renderer = Renderer(
            trainer.processing_class, trainer.eos_token_ids, dict(trainer.chat_template_kwargs)
        )
        return carry_out(_play(home, prompts, trainer, renderer, numbers))

    return rollouts


async def _play(
    home: Home, prompts: list[Any], trainer: Any, renderer: Renderer, numbers: Iterator[int]
) -> dict[str, Any]:
    schemas = home.environment.episode(0).toolbox.schemas()
    rendered = [renderer.prompt(_messages(prompt), schemas) for prompt in prompts]
    sampler = _Sampler(trainer)
    longest = trainer.max_completion_length
    await call(home.environment.start)
    traces = await asyncio.gather(
        *(
            rollout(
                home.environment,
                home.task(_key(prompt)),
                _Within(trainer, sampler, renderer),
                sampling=Sampling(max_tokens=longest),
                seed=home.rollout_seed(_key(prompt), next(numbers)),
            )
            for prompt in prompts
        )
    )
    parts = [
        _sequence(trace, ids, renderer.closer_id)
        for trace, ids in zip(traces, rendered, strict=True)
    ]
    return {
        "prompt_ids": [part[0] for part in parts],
        "completion_ids": [part[1] for part in parts],
        "env_mask": [part[2] for part in parts],
        "logprobs": [part[3] for part in parts] if sampler.logprobs else None,
        "trace": traces,
    }


def _key(prompt: Sequence[Any]) -> object:
    return next((raw["task"] for raw in reversed(prompt) if raw.get("task")), None)


def _messages(prompt: Sequence[Any]) -> Any:
    return as_messages([{k: v for k, v in raw.items() if v and k != "task"} for raw in prompt])


def _sequence(
    trace: Trace, prompt: list[int], closer: int
) -> tuple[list[int], list[int], list[int], list[float]]:
    """Return a rollout as TRL has it: prompt, completion, mask and logprobs.

    TRL holds one sequence for a rollout, and one that is not empty. A rollout that sampled nothing
    becomes a token that is not trained on.
    """
    if len(trace.branches) > 1:
        reason = trace.forks[0].reason if trace.forks else "the context broke"
        trace.error = trace.error or Failure.of(
            ModelError(
                "TRL trains on one sequence of tokens a rollout, and this one has "
                f"{len(trace.branches)} branches: {reason}"
            )
        )
        trace.score = None
    branch = trace.branches[0] if trace.branches else None
    if branch is None or 1 not in branch.loss_mask:
        return prompt, [closer], [0], [0.0]
    start = branch.loss_mask.index(1)
    ids, mask = branch.token_ids, branch.loss_mask
    return ids[:start], ids[start:], mask[start:], branch.logprobs[start:]


class _Within:
    """The model of one rollout: its context ends TRL's ``max_completion_length`` behind the prompt.

    The prompt is what ``reset`` returned, which may be another than the dataset's.
    """

    def __init__(self, trainer: Any, sampler: _Sampler, renderer: Renderer) -> None:
        config = trainer.model.config.get_text_config()
        self._context = getattr(config, "max_position_embeddings", None) or math.inf
        self._longest = trainer.max_completion_length
        self._sampler, self._renderer = sampler, renderer
        self._model: TokenModel | None = None

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Sample an answer."""
        if self._model is None:
            prompt = self._renderer.opening(conversation.messages, conversation.tools)
            room = int(min(len(prompt) + self._longest, self._context))
            self._model = TokenModel(self._sampler, self._renderer, max_seq_len=room)
        return await self._model.respond(conversation, sampling)


class _Sampler:
    """Continues token ids with the trainer's own model, all rollouts that wait at a time.

    Attributes:
        logprobs: Whether TRL's generation gives logprobs: vLLM's does.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._batches: Batcher[list[int], Completion] = Batcher(
            self._generate, size=1_000_000, concurrency=1
        )
        self.logprobs = False

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        """Sample one completion, with the settings of TRL's config."""
        completion = await self._batches.ask(prompt_ids)
        ends = [i for i, token in enumerate(completion.token_ids) if token in stop_token_ids]
        length = min(ends[0] + 1 if ends else len(completion.token_ids), sampling.max_tokens)
        stopped = bool(ends) and ends[0] < length
        return Completion(
            completion.token_ids[:length],
            completion.logprobs[:length],
            completion.versions[:length],
            "stop" if stopped else "length",
        )

    async def _generate(self, prompts: list[list[int]]) -> list[Completion]:
        # In a thread: tools run meanwhile, and their deadlines too.
        ids, logprobs = await asyncio.to_thread(
            self._trainer._generate_single_turn, prompts, None, {}, 1
        )
        self.logprobs = logprobs is not None
        version = self._trainer.state.global_step
        return [
            Completion(
                list(tokens),
                list(logprobs[index]) if logprobs is not None else [0.0] * len(tokens),
                [version] * len(tokens),
                None,
            )
            for index, tokens in enumerate(ids)
        ]
