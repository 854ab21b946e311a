"""A v0 rubric of verifiers as vf-rl's: its own code scores, and an error stays an error."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from vf.bridges.verifiers.checks import is_rebuilt_from_messages, refuse
from vf.bridges.verifiers.conversion import to_theirs
from vf.bridges.verifiers.exchange import (
    MODEL,
    Exchange,
    client_type,
    row_of,
)
from vf.bridges.verifiers.rewards import RewardRange, reward_range
from vf.rubrics.group import AnyRubric, GroupReward
from vf.runtime.errors import ConfigError, RubricError
from vf.traces.trace import Score, Trace

_NOTED = "__vf_noted__"
_raised: ContextVar[list[tuple[str, Exception]]] = ContextVar("raised")


class TheirRubric:
    """Scores with verifiers' rubric. Has the interface of :class:`~vf.rubrics.rubric.Rubric`.

    verifiers logs what a reward function raises, and takes 0.0 for its value. Here it is an error
    that names the function.

    Args:
        name: The environment's name, for messages.
        theirs: The verifiers environment.
        scale: The range of its rewards; of a group of environments, by their names.

    Raises:
        ConfigError: If no reward function has a weight.
    """

    def __init__(
        self, name: str, theirs: Any, scale: RewardRange | Mapping[str, RewardRange]
    ) -> None:
        self.name = name
        self.theirs = theirs
        self.scale = scale
        self.group_rewards: dict[str, GroupReward] = {}
        self._can_rebuild = is_rebuilt_from_messages(theirs)
        if not any(any(weights) for weights in weights_of(theirs.rubric)):
            # verifiers adds metrics of its own, such as num_turns, without a weight.
            raise ConfigError(
                f"{name}: its rubric has no reward function that has a weight, so every reward "
                "would be 0"
            )

    async def score(self, trace: Trace) -> Score:
        """Score a saved trace.

        Raises:
            RubricError: If the trace cannot be scored again, or :meth:`score_state` raises it.
        """
        return await self.score_state(await self.rebuilt(trace), trace)

    async def score_state(self, state: Any, trace: Trace) -> Score:
        """Score a rollout of verifiers, given its state.

        Raises:
            RubricError: If a function raised (it is named), or the reward is not finite or outside
                of the range.
        """
        self._complete(state, trace)
        await self._scored(self.theirs.rubric.score_rollout, state)
        return self._score_of(state)

    async def score_group(self, traces: Sequence[Trace]) -> None:
        """Do nothing: each trace has its whole score."""

    async def rebuilt(self, trace: Trace) -> Any:
        """Return the state that a rollout with the trace's messages ends in.

        Raises:
            RubricError: If the state holds more than the messages of one conversation.
        """
        if not self._can_rebuild:
            raise RubricError(
                f"{self.name}: its rewards read the state of the live rollout, so a saved trace "
                "cannot be scored again"
            )
        if trace.lineages:
            raise RubricError(
                f"{self.name}: its rewards read one conversation, and the trace has "
                f"{len(trace.lineages)}, so it cannot be scored again"
            )
        import verifiers.legacy.types as types
        from verifiers.legacy.utils.message_utils import normalize_messages

        theirs = self.theirs
        state = await theirs.init_state(row_of(trace.task), client_type()(None), MODEL, {})
        messages = list(state["prompt"])
        for message in trace.messages[trace.prompt_messages :]:
            if message.role != "assistant":
                messages += normalize_messages([message.to_openai()])
                continue
            answer = to_theirs(
                message,
                types,
                tools=bool(state["tool_defs"]),
                finish_reason="stop",
                is_truncated=False,
            )
            response = types.Response(id="", created=0, model=MODEL, usage=None, message=answer)
            await theirs.add_model_response(state, list(messages), response)
            messages += state["trajectory"][-1]["completion"]
        await theirs.render_completion(state)
        state["is_completed"] = True
        state["stop_condition"] = trace.info.get("verifiers", {}).get("stop_condition")
        return state

    def _complete(self, state: Any, trace: Trace) -> None:
        """Fill in what only we know: the tokens, and which answers were cut."""
        for step, turn in zip(state["trajectory"], trace.turns, strict=False):
            if turn.finish_reason == "length":
                step["is_truncated"] = state["is_truncated"] = True
        self.theirs.increment_state_usage(
            state, sum(turn.prompt_tokens for turn in trace.turns), trace.completion_tokens
        )

    async def _scored(self, scorer: Callable[..., Any], states: Any) -> None:
        for rubric in rubrics(self.theirs.rubric):
            rubric.funcs[:] = [_noting(fn) for fn in rubric.funcs]
        raised: list[tuple[str, Exception]] = []
        token = _raised.set(raised)
        try:
            await scorer(states)
        except Exception as error:
            raise RubricError(f"{self.name}: {type(error).__name__}: {error}") from error
        finally:
            _raised.reset(token)
        if raised:
            name, cause = raised[0]
            raise RubricError(
                f"{self.name}: {name!r} raised {type(cause).__name__}: {cause}"
            ) from cause

    def _score_of(self, state: Any) -> Score:
        values = dict(state["metrics"] or {})
        weighted = {
            name_of(fn)
            for rubric in rubrics(self.theirs.rubric)
            for fn, weight in zip(rubric.funcs, rubric.weights, strict=False)
            if weight
        }
        parts = {name: value for name, value in values.items() if name in weighted}
        rest = {name: value for name, value in values.items() if name not in weighted}
        return self._scale_of(state).score(state["reward"], parts, rest)

    def _scale_of(self, state: Any) -> RewardRange:
        if isinstance(self.scale, RewardRange):
            return self.scale
        route = (state.get("info") or {}).get("env_id")
        return self.scale[str(route[0] if isinstance(route, list) else route)]


class GroupedRubric(TheirRubric):
    """One with functions of a whole group: nothing is scored before the group is.

    Raises:
        ConfigError: If the environment's states, which are gone by then, hold more than messages.
    """

    def __init__(
        self, name: str, theirs: Any, scale: RewardRange | Mapping[str, RewardRange]
    ) -> None:
        super().__init__(name, theirs, scale)
        if not self._can_rebuild:
            refuse(name, "its live states when a whole group is scored (group rewards)")
        names = [name_of(fn) for rubric in rubrics(theirs.rubric) for fn in rubric.funcs]
        self.group_rewards = {name: GroupReward(_of_theirs, name=name) for name in names}

    async def score_state(self, state: Any, trace: Trace) -> Score:
        """Return a score that is open yet."""
        return Score(reward=None, outcome=None)

    async def score_group(self, traces: Sequence[Trace]) -> None:
        """Score the traces of one task, in place.

        Raises:
            RubricError: If a function raised, or a reward is out of range. No score was changed.
        """
        states = [await self.rebuilt(trace) for trace in traces]
        for state, trace in zip(states, traces, strict=True):
            self._complete(state, trace)
        await self._scored(self.theirs.rubric.score_group, states)
        scores = [self._score_of(state) for state in states]
        for trace, score in zip(traces, scores, strict=True):
            trace.score = score


class EpisodeRubric:
    """The rubric of one episode: it has the live rollout's state.

    Args:
        rubric: The definition's.
        exchange: The rollout.
    """

    def __init__(self, rubric: AnyRubric, exchange: Exchange) -> None:
        assert isinstance(rubric, TheirRubric)
        self._rubric = rubric
        self._exchange = exchange
        self.group_rewards = rubric.group_rewards

    async def score(self, trace: Trace) -> Score:
        """Score the episode."""
        return await self._rubric.score_state(await self._exchange.finish(), trace)

    async def score_group(self, traces: Sequence[Trace]) -> None:
        """Score a group."""
        await self._rubric.score_group(traces)


def rubrics(rubric: Any) -> Iterator[Any]:
    """Yield the rubrics that hold functions: those of a group, or of a group of environments."""
    if hasattr(rubric, "env_map"):
        for environment in rubric.env_map.values():
            yield from rubrics(environment.rubric)
    elif hasattr(rubric, "rubrics"):
        for member in rubric.rubrics:
            yield from rubrics(member)
    else:
        yield rubric


def weights_of(rubric: Any) -> list[list[float]]:
    """Return the weights that sum up to a reward: of each environment, if it is a group."""
    if hasattr(rubric, "env_map"):
        members = rubric.env_map.values()
        return [weights for member in members for weights in weights_of(member.rubric)]
    return [[float(weight) for member in rubrics(rubric) for weight in member.weights]]


def ranges_of(
    name: str, given: Sequence[float] | None, rubric: Any
) -> RewardRange | dict[str, RewardRange]:
    """Return the range of an environment's rewards; of each member, by name, if it is a group.

    With one range for all, the weights of one member would change what another's answers are worth.

    Raises:
        ConfigError: If the given range is not ``lo < hi``, both finite.
    """
    if given is not None or not hasattr(rubric, "env_map"):
        return reward_range(name, given, weights_of(rubric))
    return {
        member: reward_range(f"{name}: {member}", None, weights_of(environment.rubric))
        for member, environment in rubric.env_map.items()
    }


def name_of(fn: Any) -> str:
    """Return the name that verifiers records a function by."""
    return getattr(fn, "__name__", repr(fn))


def _of_theirs(traces: Sequence[Trace]) -> Sequence[float]:
    raise NotImplementedError("verifiers' own rubric scores the group")


def _noting(fn: Any) -> Any:
    """Return a function that notes what it raises, for verifiers only logs it.

    verifiers looks at a function's parameters and name, and ``wraps`` keeps both.
    """
    if hasattr(fn, _NOTED):
        return fn

    def note(error: Exception) -> None:
        if (raised := _raised.get(None)) is not None:
            raised.append((name_of(fn), error))

    async def waited(result: Any) -> Any:
        try:
            return number(await result)
        except Exception as error:
            note(error)
            raise

    def number(result: Any) -> Any:
        if not isinstance(result, Sequence):  # as a function of a group returns
            float(result)
        return result

    @functools.wraps(fn)
    def noting(*args: Any, **kwargs: Any) -> Any:
        try:
            result = fn(*args, **kwargs)
            return waited(result) if inspect.isawaitable(result) else number(result)
        except Exception as error:
            note(error)
            raise

    noting.__name__ = name_of(fn)
    setattr(noting, _NOTED, True)
    return noting
