"""A language model as a judge of what cannot be computed."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vf.inference.model import ContextFull, Conversation, Reply, Sampling
from vf.rubrics.judge_cache import VerdictCache, Vote
from vf.rubrics.judge_prompt import (
    RULES,
    Criterion,
    Malformed,
    build_messages,
    draw_nonce,
    read_verdict,
)
from vf.rubrics.scorers import NoVerdict
from vf.runtime.api_keys import URL, check_variable, hide_urls, read_key
from vf.runtime.errors import ConfigError, ModelError, RubricError
from vf.traces.images import Image
from vf.traces.messages import Message, as_messages
from vf.traces.trace import Trace

if TYPE_CHECKING:
    from vf.inference.models.chat_model import ChatModel

HARMLESS = "I do not know."  # an answer on which any judge has a verdict
# What is said of a verdict that cannot be read, by how the reply ended.
_ENDS = {
    "length": " (cut off at max_tokens={})",
    "content_filter": " (the API's content filter stopped it)",
    "refusal": " (the API says that the model refused)",
}
REFUSALS = (400, 413, 422)  # statuses that are about what was sent: too long, or not wanted
CORRECT = Criterion(
    "Is the ANSWER to the QUESTION right? It must agree with the REFERENCE where there is one, "
    "and commit to one answer.",
    {"wrong": 0.0, "partly right": 0.5, "right": 1.0},
)


class _Unusable(RubricError):
    """The judge answered, but not with a verdict, or refused what it was sent."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a judge is shown of a trace."""

    material: Mapping[str, str]
    images: Sequence[Image]


@dataclass(slots=True)
class JudgeUsage:
    """What a judge has cost so far: requests that were sent, and their tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    from_cache: int = 0  # votes that cost nothing


class Judge:
    """A scorer that asks a model behind an OpenAI-compatible API.

    An object to be used as an outcome, a metric, or in a ``Penalty`` (with choices whose value 1
    is the worst). Each criterion has a few ordered choices, for models choose more reliably than
    they grade on a scale, and the reason comes before the verdict.

    Its replies are recorded in ``trace.info["judge"][name]``: the choices and the reply of every
    vote, requests and tokens. The cost is never part of the reward.

    Example::

        judge = vf.Judge("some-model", base_url="http://localhost:8000/v1", api_key_env=None)
        rubric = vf.Rubric(outcome=judge)

    Range: [0, 1].

    Formula: the mean over the votes (or each criterion's most frequent choice, the one of less
    value in a tie) of Σ wᵢ·vᵢ / Σ wᵢ, with vᵢ the value of the choice on criterion i.

    Source: LLM-as-a-judge (Zheng et al., arXiv:2306.05685); several votes as in self-consistency
    (Wang et al., arXiv:2203.11171).

    Known ways to game it: length, confidence and flattery influence judges more than they should; a
    policy trained on one judge finds what it overlooks. Texts that imitate a verdict, close the
    fence or instruct the judge are fenced off by a nonce, but a weak judge may still be influenced.
    Prefer outcomes that can be computed, keep a holdout judged by another model, and read the
    recorded replies.

    Args:
        model: The judge's name at the API. There is no default.
        criteria: One or several :class:`Criterion` to judge by.
        base_url: The API, up to and including ``/v1``; OpenAI's own by default.
        api_key_env: The environment variable that holds the key; it must be set when the judge
            is made. None for a server that needs none.
        votes: Number of verdicts; 1 at temperature 0 by default.
        combine: Whether votes are averaged, or the most frequent choice counts.
        answer: Returns the part of a trace to judge; the last message by default.
        reference: Returns the text to compare with, or None for none; ``task.answer`` by default.
        images: Returns which images of a trace a judge that sees is shown, before the texts, such
            as ``lambda trace: list(trace.images)``; None for text alone.
        cache: A folder for verdicts, ``"memory"``, or None to ask every time.
        retries: Most repetitions of a request whose reply has no usable verdict.
        temperature: 0 for one vote and 1 for several by default.
        max_tokens: Most tokens of a reply.
        timeout: Seconds that may pass without an answer to any request, as for
            :class:`~vf.inference.models.chat_model.ChatModel`.
        max_retries: Attempts after the first, on errors that may pass.
        extra_body: Parameters beyond OpenAI's, sent along.
        request_fields: By a field's name, the name by which the API takes it, or False to leave it
            out.
        name: The name in records; give two judges of one rubric different names.

    Raises:
        ConfigError: If no model is named, the key is not set, several votes are requested at
            temperature 0 (they would all be the same), or a setting is out of range.
    """

    def __init__(
        self,
        model: str,
        criteria: Criterion | Sequence[Criterion] = CORRECT,
        *,
        base_url: str | None = None,
        api_key_env: str | None = "OPENAI_API_KEY",
        votes: int = 1,
        combine: Literal["mean", "majority"] = "mean",
        answer: Callable[[Trace], str] | None = None,
        reference: Callable[[Trace], str | None] | None = None,
        images: Callable[[Trace], Sequence[Image]] | None = None,
        cache: str | Path | None = "memory",
        retries: int = 2,
        temperature: float | None = None,
        max_tokens: int = 1024,
        timeout: float = 120.0,
        max_retries: int = 4,
        extra_body: Mapping[str, Any] | None = None,
        request_fields: Mapping[str, str | Literal[False]] | None = None,
        name: str = "judge",
    ) -> None:
        self.__name__ = name
        self.model = model
        self.criteria = [criteria] if isinstance(criteria, Criterion) else list(criteria)
        self.votes, self.combine, self.retries = votes, combine, retries
        self.temperature = (0.0 if votes == 1 else 1.0) if temperature is None else temperature
        self.max_tokens, self.base_url = max_tokens, base_url
        self.usage = JudgeUsage()
        self._answer = answer or (lambda trace: trace.reply)
        self._reference = reference or _golden
        self._images = images
        self._key_env = api_key_env
        self._extra_body = dict(extra_body or {})
        self._check()
        if timeout <= 0:
            raise self._wrong(f"timeout must be positive, got {timeout}")
        if max_retries < 0:
            raise self._wrong(f"max_retries must be at least 0, got {max_retries}")
        self._cache = None
        if cache is not None:
            self._cache = VerdictCache(None if cache == "memory" else Path(cache))
        self._settings: dict[str, Any] = {
            "base_url": hide_urls(base_url),
            "api_key": self._key(api_key_env),
            "timeout": timeout,
            "max_retries": max_retries,
            "extra_body": self._extra_body,
            "request_fields": request_fields,
        }
        self._chat: ChatModel | None = None

    async def __call__(self, trace: Trace) -> float:
        """Judge a trace.

        Raises:
            RubricError: If the API fails, or gives no usable verdict in any of the attempts.
            NoVerdict: If it gives none on this answer, but one on a harmless answer to the same
                question. A rubric then takes the worst value, so that no answer can choose to go
                unscored.
        """
        shown = _Shown(self._material(trace), self._images(trace) if self._images else ())
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._vote(shown, n)) for n in range(self.votes)]
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None
        votes = [task.result() for task in tasks]
        chosen = [vote.choices for vote, _ in votes]
        if self.combine == "majority":
            chosen = [{c.name: _most_frequent(c, chosen) for c in self.criteria}]
        paid = [vote for vote, cached in votes if not cached]
        trace.info.setdefault("judge", {})[self.__name__] = {
            "model": self.model,
            "votes": [{"choices": v.choices, "reason": v.reason, "cached": c} for v, c in votes],
            "requests": sum(vote.requests for vote in paid),
            "prompt_tokens": sum(vote.prompt_tokens for vote in paid),
            "completion_tokens": sum(vote.completion_tokens for vote in paid),
        }
        return sum(map(self._value, chosen)) / len(chosen)

    async def close(self) -> None:
        """Close the connections of the running loop."""
        if self._chat is not None:
            await self._chat.close()

    async def _vote(self, shown: _Shown, number: int) -> tuple[Vote, bool]:
        """Return one vote, and whether it was in the cache."""
        if self._cache is None:
            return await self._ask(shown, number), False
        seen = {"images": [image.name for image in shown.images]} if shown.images else {}
        key = self._cache.key(
            rules=RULES,
            model=self.model,
            base_url=self.base_url,
            criteria=[[c.name, c.question, list(c.choices)] for c in self.criteria],
            material=dict(shown.material),
            **seen,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            extra_body=self._extra_body,
            number=number,
        )
        vote = self._cache.get(key)
        if vote is not None:
            self.usage.from_cache += 1
            return vote, True
        vote = await self._ask(shown, number)
        self._cache.put(key, vote)
        return vote, False

    async def _ask(self, shown: _Shown, number: int) -> Vote:
        try:
            return await self._attempts(shown, number)
        except _Unusable as error:
            try:
                harmless = replace(shown, material={**shown.material, "ANSWER": HARMLESS})
                await self._attempts(harmless, number)
            except _Unusable:
                raise error from None
            raise NoVerdict(f"{error}. On the answer {HARMLESS!r} it gives one") from error

    async def _attempts(self, shown: _Shown, number: int) -> Vote:
        """Ask until there is a verdict.

        Raises:
            _Unusable: If there is none.
            RubricError: If the API fails.
        """
        prompt_tokens = completion_tokens = 0
        for attempt in range(self.retries + 1):
            nonce = draw_nonce(list(shown.material.values()))
            messages = as_messages(build_messages(self.criteria, shown.material, nonce))
            messages[-1].images = [replace(image, at=0) for image in shown.images]
            reply = await self._request(messages, number)
            prompt_tokens += reply.prompt_tokens
            completion_tokens += reply.completion_tokens
            self.usage.prompt_tokens += reply.prompt_tokens
            self.usage.completion_tokens += reply.completion_tokens
            text, reasoned = reply.message.content, bool(reply.message.reasoning)
            try:
                choices = read_verdict(text, self.criteria, nonce, reasoned=reasoned)
                return Vote(choices, text, prompt_tokens, completion_tokens, attempt + 1)
            except Malformed as error:
                end = _ENDS.get(reply.finish_reason, "")
                problem = f"{error}{end.format(self.max_tokens)}"
        begin = text if len(text) <= 200 else f"{text[:200]}..."
        raise _Unusable(
            f"{self.__name__!r}: {self.model} gave no usable verdict in {self.retries + 1} "
            f"attempts; the last reply is malformed: {problem}. It begins with {begin!r}. Take a "
            "stronger judge, raise max_tokens, or ask simpler questions"
        )

    async def _request(self, messages: list[Message], number: int) -> Reply:
        """Ask once, as patiently as any model is asked.

        Raises:
            _Unusable: If the API refuses the request.
            RubricError: If the API fails.
        """
        if self._chat is None:
            from vf.inference.models.chat_model import ChatModel  # loads a network client

            self._chat = ChatModel(self.model, **self._settings)
        self.usage.requests += 1
        sampling = Sampling(self.max_tokens, self.temperature, seed=number)
        try:
            return await self._chat.respond(Conversation(messages), sampling)
        except ContextFull as error:
            raise _Unusable(f"{self._named}: the context is full") from error
        except ModelError as error:
            refused = getattr(error, "status", None) in REFUSALS
            raise (_Unusable if refused else RubricError)(
                f"{self._named}: {error}{self._hint(error)}"
            ) from (error.__cause__ or error)

    @property
    def _named(self) -> str:
        return f"{self.__name__!r}: {self.model} at {hide_urls(self.base_url) or 'OpenAI'}"

    def _hint(self, error: ModelError) -> str:
        """Return what to do about a request that failed, if that is known."""
        status = getattr(error, "status", None)
        if status in (401, 403):
            held = "no key was sent" if self._key_env is None else f"{self._key_env} holds the key"
            return f". The server does not take the key ({held}): see api_key_env"
        if status == 404:
            return ". Is that the model's name there, and does base_url end in /v1?"
        if type(error.__cause__).__name__ == "APIConnectionError":
            return ". Is a server running there?"
        return ""

    def _material(self, trace: Trace) -> dict[str, str]:
        prompt = _prompt(trace)
        texts = [f"{m.role}: {m.content}" if len(prompt) > 1 else m.content for m in prompt]
        material = {"QUESTION": "\n\n".join(texts)}
        reference = self._reference(trace)
        if reference is not None:
            material["REFERENCE"] = reference
        material["ANSWER"] = self._answer(trace)
        for name, text in material.items():
            if not isinstance(text, str):
                raise RubricError(
                    f"{self.__name__!r}: the {name.lower()} to show is a {type(text).__name__}; "
                    f"let the function passed as {name.lower()}= return text"
                )
        return material

    def _value(self, choices: Mapping[str, str]) -> float:
        total = sum(c.weight for c in self.criteria)
        return sum(c.weight * c.choices[choices[c.name]] for c in self.criteria) / total

    def _check(self) -> None:
        if not isinstance(self.model, str) or not self.model.strip():
            raise self._wrong("name the model that judges, such as Judge('some-model', ...)")
        if not self.criteria or not all(isinstance(c, Criterion) for c in self.criteria):
            raise self._wrong("criteria must be one or several vf.Criterion")
        if len({c.name.casefold() for c in self.criteria}) < len(self.criteria):
            raise self._wrong("two criteria share a name; give each its own `name`")
        if self.votes < 1 or self.retries < 0 or self.max_tokens < 1:
            raise self._wrong("votes and max_tokens must be at least 1, retries at least 0")
        if self.combine not in ("mean", "majority"):
            raise self._wrong(f"combine must be 'mean' or 'majority', got {self.combine!r}")
        if not 0.0 <= self.temperature <= 2.0:
            raise self._wrong(f"temperature must be in [0, 2], got {self.temperature}")
        if self.votes > 1 and self.temperature == 0.0:
            raise self._wrong(
                f"{self.votes} votes at temperature 0 are all the same; ask for one, or raise it"
            )

    def _key(self, variable: str | None) -> str:
        if variable is None:
            if self.base_url is None and not os.environ.get(URL):
                raise self._wrong("OpenAI's API needs a key: name its variable in api_key_env")
            return "none"
        try:
            key = read_key(check_variable(variable))
        except (ConfigError, ValueError) as error:
            raise self._wrong(f"api_key_env: {error}") from None
        if key is None:
            raise self._wrong(
                f"the environment variable {variable} holds no key; set it, or pass "
                "api_key_env=None and the base_url of a server that needs none"
            )
        return key

    def _wrong(self, problem: str) -> ConfigError:
        return ConfigError(f"judge {self.__name__!r}: {problem}")


def _prompt(trace: Trace) -> list[Message]:
    """Return the question, in which no word is the judged model's.

    An agent's later conversations may begin with what its model said in earlier ones.
    """
    if trace.lineages and trace.task.prompt:
        return as_messages(trace.task.prompt)
    first = trace.conversations[0]
    return first.messages[: first.prompt_messages]


def _golden(trace: Trace) -> str | None:
    answer = trace.task.answer
    return None if answer is None else str(answer)


def _most_frequent(criterion: Criterion, chosen: Sequence[Mapping[str, str]]) -> str:
    counts = Counter(choices[criterion.name] for choices in chosen)
    most = max(counts.values())
    tied = [choice for choice, count in counts.items() if count == most]
    return min(tied, key=lambda choice: criterion.choices[choice])
