"""On-policy distillation: a teacher's log-probabilities of the tokens that the policy sampled.

The policy's own rollouts are trained: GKD with λ = 1 (Agarwal et al. 2024, arXiv:2306.13649,
section 3). With ``teacher_loss = "reverse_kl"`` each token's advantage is how much likelier it is
to the teacher than it was to the sampler (:class:`~vf.trainer.learning.objective.Objective`). Its
mean is minus the reverse KL, KL(policy ‖ teacher), of which this is the policy gradient: that
of MiniLLM (Gu et al. 2024, arXiv:2306.08543, eq. 1), per token and without later tokens' terms.
With ``"forward_kl"`` the teacher's likeliest tokens at each position are asked for, too, and the
forward KL to them is the loss (:mod:`vf.trainer.learning.batches.top_tokens`).

The teacher is a frozen model beside the policy (:mod:`vf.trainer.learning.model.frozen_models`), or
a server that scores prompts (:class:`TeacherServer`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from vf.inference.wire import JsonClient
from vf.runtime.api_keys import hide_urls
from vf.runtime.errors import ConfigError, EngineError, ModelError, TrainingError
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.batches.overlong import longest_taught
from vf.trainer.learning.batches.privileged_prompts import attach_told
from vf.trainer.learning.batches.top_tokens import Likeliest, likeliest_asked
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

if TYPE_CHECKING:
    from vf.inference.vllm.admin import Admin

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


class HasArgs(Protocol):
    """A policy on a server, which has no teacher."""

    args: TrainerArgs


class Teacher:
    """Gives samples a teacher's log-probabilities, from wherever the settings have it.

    Args:
        policy: The policy, which holds the teacher beside itself unless a server has it; a policy
            on a server has none.
        loop: The event loop of requests to a server.
        watch: A check while a server is waited for; what it raises ends the wait.
        training: Makes room for computing in this process.
    """

    def __init__(
        self,
        policy: Policy | HasArgs,
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

    def ask(self, samples: Sequence[Sample], seen: Sequence[Sample] | None = None) -> list[Sample]:
        """Return samples with what the teacher says of them; without a teacher, as they are.

        Args:
            samples: To be trained on.
            seen: The same as the teacher is to read them, with the same sampled tokens in other
                contexts (:class:`~vf.trainer.learning.batches.privileged_prompts.Privileged`).

        Raises:
            TrainingError: If the teacher's server fails, memory ran out twice, or another trainer
                process is gone.
        """
        if seen is not None:
            return attach_told(samples, self.ask(seen))
        if self._policy.args.teacher_model is None:
            return list(samples)
        assert isinstance(self._policy, Policy)
        if self._server is not None:
            answers = self._loop.call(self._server.ask(samples), self._watch)
            check_ids(answers, self._policy.model.config.get_text_config().vocab_size)
            return answers
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
        self._model, self._longest = args.teacher_model, longest_taught(args)
        self._limit = f"max_seq_len = {args.max_seq_len}"
        if args.teacher_privileged:
            self._limit += f" and max_prompt_len = {args.max_prompt_len} (teacher_privileged)"
        self._top_k = likeliest_asked(args)
        self._client = JsonClient(args.teacher_base_url, timeout=args.generation_timeout)
        self._room = asyncio.Semaphore(AT_ONCE)

    def check(self, tokenizer: Any) -> None:
        """Check that the server has the model, with a context that is long enough, and our tokens.

        Args:
            tokenizer: The policy's.

        Raises:
            ConfigError: If the server lacks one of these, or does not answer; names the fix.
        """
        from vf.inference.vllm.admin import Admin

        root = self._client.base_url
        setting = f"trainer.args.teacher_base_url = {root!r}"
        with closing(Admin(root)) as admin:
            try:
                cards = {card["id"]: card for card in admin.get("/v1/models")["data"]}
            except (EngineError, KeyError, TypeError) as error:
                raise ConfigError(f"{setting}: {error}") from error
            self._check_context(cards)
            theirs = self._tokens(admin, setting)
            self._check_top_k(admin, theirs)
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
                f"the teacher's server has a context of {context} tokens, and {self._limit} "
                f"needs one more than that: start it with --max-model-len {self._longest + 1} or "
                "more, or lower max_seq_len"
            )

    def _check_top_k(self, admin: Admin, ids: list[int]) -> None:
        if not self._top_k:
            return
        try:
            admin.post("/v1/completions", self._request(ids[: self._longest]))
        except EngineError as error:
            raise ConfigError(
                f"trainer.args.teacher_top_k = {self._top_k}: the teacher's server does not give "
                f"so many log-probabilities of a token; start vLLM's with --max-logprobs "
                f"{self._top_k} or more, or lower teacher_top_k. {error}"
            ) from error

    def _request(self, ids: Sequence[int]) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": self._top_k,
        }

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
        """Return samples with what the teacher says of their trained tokens.

        Raises:
            TrainingError: If the server does not answer, or not with what was asked for.
        """
        tasks: list[asyncio.Task[tuple[tuple[float, ...], Likeliest | None]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(sample)) for sample in samples]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        answers = [task.result() for task in tasks]
        return [
            replace(sample, teacher_logprobs=logprobs, likeliest=likeliest)
            for sample, (logprobs, likeliest) in zip(samples, answers, strict=True)
        ]

    async def _ask(self, sample: Sample) -> tuple[tuple[float, ...], Likeliest | None]:
        ids, mask = sample.branch.token_ids, sample.branch.loss_mask
        if len(ids) > self._longest:  # is dropped or cut before it is trained
            ids, mask = ids[: self._longest], mask[: self._longest]
        async with self._room:
            try:
                answer = await self._client.post("/completions", self._request(ids))
            except ModelError as error:
                raise TrainingError(f"the teacher's server failed: {error}") from error
        try:
            entries = answer["choices"][0]["prompt_logprobs"]
            logprobs = tuple(
                float(entry[str(token)]["logprob"]) if trained and index else 0.0
                for index, (token, trained, entry) in enumerate(
                    zip(ids, mask, entries, strict=True)
                )
            )
            candidates = [*compress(entries[1:], mask[1:])] if self._top_k else []
            return logprobs, likeliest(candidates, self._top_k) if candidates else None
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise TrainingError(
                f"the teacher's server at {hide_urls(self._client.base_url)} answered without the "
                f"prompt_logprobs that it was asked for ({type(error).__name__}: {error}); vLLM's "
                "/v1/completions returns them"
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def likeliest(answers: Sequence[Mapping[str, Any]], k: int) -> Likeliest:
    """Read the k likeliest tokens at each position from vLLM's ``prompt_logprobs`` there.

    Raises:
        KeyError: If an answer is of another form.
        ValueError: If there are fewer.
    """
    # The token of the prompt is there too, and is behind the k if it is none of them.
    top = [sorted(answer.items(), key=lambda item: item[1]["rank"])[:k] for answer in answers]
    if any(len(ranked) < k for ranked in top):
        raise ValueError(f"fewer than teacher_top_k = {k} tokens")
    return Likeliest(
        torch.tensor([[int(token) for token, _ in ranked] for ranked in top]),
        torch.tensor([[float(entry["logprob"]) for _, entry in ranked] for ranked in top]),
    )


def check_ids(samples: Sequence[Sample], vocabulary: int) -> None:
    """Check that a policy knows all tokens that a server has named.

    Raises:
        TrainingError: If the server names a token that the policy does not know.
    """
    ids_named = [sample.likeliest.ids for sample in samples if sample.likeliest is not None]
    largest = max((int(ids.max()) for ids in ids_named), default=0)
    if largest >= vocabulary:
        raise TrainingError(
            f"to the teacher the token {largest} is among the teacher_top_k likeliest, and the "
            f"model has a vocabulary of {vocabulary}: lower teacher_top_k, or take another teacher"
        )
