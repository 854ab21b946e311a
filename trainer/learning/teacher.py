"""On-policy distillation: a teacher's log-probabilities of the tokens that the policy sampled.

The policy's own rollouts are trained, and each token's advantage is how much likelier it is to the
teacher than it was to the sampler (:class:`~vf.trainer.learning.objective.Objective`). Its mean is
minus the reverse KL divergence, KL(policy ‖ teacher), of which this is the policy gradient: GKD
with λ = 1 (Agarwal et al. 2024, arXiv:2306.13649, section 3) with the reverse KL of MiniLLM (Gu et
al. 2024, arXiv:2306.08543, eq. 1), per token and without later tokens' terms.

The teacher is a frozen model beside the policy (:mod:`vf.trainer.learning.frozen`), or a server
that scores prompts (:class:`TeacherServer`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from vf.inference.vllm.admin import Admin
from vf.inference.wire import JsonClient
from vf.runtime.errors import ConfigError, EngineError, ModelError, TrainingError
from vf.trainer.learning.batch import Sample
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

T = TypeVar("T")

AT_ONCE = 32  # requests of one server
# Text in which tokenizers differ: letters, digits, spaces, other scripts, an emoji.
PROBE = (
    "The quick brown fox, 12345 + 6789 = ?\n\tnaïve Größe, Привет, 你好, 🙂 def f(x): return x**2"
)


class Loop(Protocol):
    """An event loop in another thread."""

    def call(self, work: Coroutine[Any, Any, T], watch: Callable[[], None]) -> T:
        """Run a coroutine to completion and return its result, calling ``watch`` while it waits."""
        ...


class Teacher:
    """Gives samples a teacher's log-probabilities, from wherever the settings have it.

    Args:
        policy: Holds the teacher beside itself, unless a server has it.
        loop: Where a server is asked.
        watch: Is called while a server is waited for; what it raises ends the wait.
        training: Makes room for computing in this process.
    """

    def __init__(
        self,
        policy: Policy,
        loop: Loop,
        watch: Callable[[], None],
        training: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._policy, self._loop, self._watch = policy, loop, watch
        self._training = training
        args = policy.args
        self._server = TeacherServer(args) if args.teacher_base_url is not None else None

    def check(self, tokenizer: Any) -> None:
        """Check that a server has the teacher; see :meth:`TeacherServer.check`."""
        if self._server is not None:
            self._server.check(tokenizer)

    def ask(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples with the teacher's log-probabilities; without a teacher, as they are.

        Raises:
            TrainingError: The teacher's server fails, memory ran out twice, or another trainer
                process is gone.
        """
        if self._server is not None:
            return self._loop.call(self._server.ask(samples), self._watch)
        if self._policy.args.teacher_model is None:
            return list(samples)
        with self._training():
            return self._policy.with_teacher_logprobs(samples)

    def close(self) -> None:
        """Close the connections to a server."""
        if self._server is not None:
            self._loop.call(self._server.close(), lambda: None)


class TeacherServer:
    """A teacher behind a vLLM server, which scores prompts (``prompt_logprobs``).

    Its log-probabilities are those of temperature 1.

    Args:
        args: ``[trainer.args]``, with a ``teacher_base_url``.
    """

    def __init__(self, args: TrainerArgs) -> None:
        assert args.teacher_model is not None
        assert args.teacher_base_url is not None
        self._model, self._longest = args.teacher_model, args.max_seq_len
        self._client = JsonClient(args.teacher_base_url, timeout=args.generation_timeout)
        self._room = asyncio.Semaphore(AT_ONCE)

    def check(self, tokenizer: Any) -> None:
        """Check that the server has the model, with a context that is long enough, and our tokens.

        Args:
            tokenizer: The policy's.

        Raises:
            ConfigError: It has not, or does not answer; names the fix.
        """
        root = self._client.base_url
        setting = f"trainer.args.teacher_base_url = {root!r}"
        with closing(Admin(root)) as admin:
            try:
                cards = {card["id"]: card for card in admin.get("/v1/models")["data"]}
            except (EngineError, KeyError, TypeError) as error:
                raise ConfigError(f"{setting}: {error}") from error
            self._check_context(cards)
            theirs = self._tokens(admin, setting)
        if theirs != (ours := tokenizer.encode(PROBE, add_special_tokens=False)):
            raise ConfigError(
                f"trainer.args.teacher_model = {self._model!r} has another tokenizer than model: "
                f"of a text of {len(ours)} tokens it makes {len(theirs)}, and not the same ones; "
                "a teacher must share the policy's tokenizer"
            )

    def _check_context(self, cards: Mapping[str, Any]) -> None:
        root = self._client.base_url
        if (card := cards.get(self._model)) is None:
            raise ConfigError(
                f"trainer.args.teacher_model = {self._model!r}: the server at {root} has no such "
                f"model; it serves {', '.join(map(repr, cards)) or 'none'}"
            )
        context = card.get("max_model_len")
        if isinstance(context, int) and context <= self._longest:
            raise ConfigError(
                f"the teacher's server has a context of {context} tokens, and max_seq_len = "
                f"{self._longest} needs one more than that: start it with --max-model-len "
                f"{self._longest + 1} or more, or lower max_seq_len"
            )

    def _tokens(self, admin: Admin, setting: str) -> list[int]:
        body = {"model": self._model, "prompt": PROBE, "add_special_tokens": False}
        try:
            return list(admin.post("/tokenize", body)["tokens"])
        except (EngineError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{setting}: /tokenize does not answer, so it is not known whether the teacher "
                f"shares the policy's tokenizer. vLLM's server has it: {error}"
            ) from error

    async def ask(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples with the teacher's log-probabilities of their trained tokens.

        Raises:
            TrainingError: The server does not answer, or not with what was asked for.
        """
        tasks: list[asyncio.Task[tuple[float, ...]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(sample)) for sample in samples]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [
            replace(sample, teacher_logprobs=task.result())
            for sample, task in zip(samples, tasks, strict=True)
        ]

    async def _ask(self, sample: Sample) -> tuple[float, ...]:
        ids, mask = sample.branch.token_ids, sample.branch.loss_mask
        if len(ids) > self._longest:  # is dropped or cut before it is trained
            ids, mask = ids[: self._longest], mask[: self._longest]
        body = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        async with self._room:
            try:
                answer = await self._client.post("/completions", body)
            except ModelError as error:
                raise TrainingError(f"the teacher's server failed: {error}") from error
        try:
            found = answer["choices"][0]["prompt_logprobs"]
            return tuple(
                float(each[str(token)]["logprob"]) if trained and place else 0.0
                for place, (token, trained, each) in enumerate(zip(ids, mask, found, strict=True))
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise TrainingError(
                f"the teacher's server at {self._client.base_url} answered without the "
                f"prompt_logprobs that it was asked for ({type(error).__name__}: {error}); vLLM's "
                "/v1/completions returns them"
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
