"""A Gymnasium environment for models: observations as text, actions read from replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vf.bridges.gym.games import Render, Returns, default_render, known_game
from vf.bridges.gym.moves import Parse, check_space, default_parse
from vf.bridges.seeded_games import check_returns, game_seeds, share_of
from vf.environments.environment import Environment, Split, Step
from vf.environments.generated import split_sizes
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError
from vf.runtime.extras import load
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace

if TYPE_CHECKING:
    import gymnasium

DEFAULT_TURNS = 100  # where Gymnasium sets no limit either
_NOTHING: dict[str, Any] = {
    "return": 0.0,
    "steps": 0,
    "lost_turns": 0,
    "terminated": False,
    "truncated": False,
}
_UNREADABLE = "That is not one of the actions."


class GymEnvironment(Environment):
    """Play a Gymnasium environment with discrete or text actions.

    Each turn the model sees the observation and replies with an action. A reply without one is a
    lost turn: the model sees the possible actions, and the environment does not move.
    FrozenLake, Taxi, Blackjack and CartPole come with rules, names of actions and a text form of
    observations. For others these are arguments; by default a text observation is shown as it is,
    then the environment's ``ansi`` rendering, then its numbers.

    The outcome is the episode's return ``R``, the sum of Gymnasium's rewards, as a share of the
    way from the return worth 0 to the one worth 1::

        outcome = min(1, max(0, (R - worst) / (best - worst)))

    With a worst return below 0, an episode that vf-rl's own limits ended, and not Gymnasium, is
    worth 0. Otherwise, when every step costs, a model would do well by never taking one.

    ``Trace.info["gym"]`` holds ``return``, ``steps``, ``lost_turns``, ``terminated`` and
    ``truncated``; the score has the first three as metrics.

    A task is a seed: the environment is reset with ``task.info["seed"]``, the same one for every
    rollout of the task. No seed is in both splits.

    Args:
        gymnasium_id: Such as ``"FrozenLake-v1"``, or, for a wrapped environment, a function that
            returns a new one.
        args: Arguments of ``gymnasium.make``, such as ``{"is_slippery": False}``.
        render: Returns the text of an observation, given it and the Gymnasium environment.
        parse: Returns the action that a reply asks for. Where it raises ValueError (whose text the
            model sees) or LookupError, or returns no legal action, the turn is lost.
        actions: Names of a Discrete space's actions, in order.
        rules: The description of the game; placed at the start of the prompt.
        returns: The returns worth 0 and 1: ``(worst, best)``. Without it, those of a known game
            (:mod:`vf.bridges.gym.games`), or 0 and Gymnasium's ``reward_threshold``.
        max_turns: Maximum replies in one episode; by default Gymnasium's ``max_episode_steps``, or
            100 where that is not set. An episode that it ends is truncated.
        num_train: Tasks in the train split.
        num_eval: Tasks in the eval split.
        seed: The seed of the tasks' seeds.

    Raises:
        ConfigError: If there is no such environment, its actions are continuous, the worth of
            returns is unknown, an argument is out of range, or Gymnasium is not installed.
    """

    def __init__(
        self,
        gymnasium_id: str | Callable[[], gymnasium.Env[Any, Any]],
        args: Mapping[str, Any] | None = None,
        render: Render | None = None,
        parse: Parse | None = None,
        actions: Sequence[str] | None = None,
        rules: str | None = None,
        returns: Sequence[float] | None = None,
        max_turns: int | None = None,
        num_train: int = 2000,
        num_eval: int = 200,
        seed: int = 0,
    ) -> None:
        self.sizes = split_sizes("gym", num_train, num_eval)
        if max_turns is not None and max_turns < 1:
            raise ConfigError(f"gym: max_turns must be at least 1, got {max_turns}")
        if not isinstance(gymnasium_id, str) and args:
            raise ConfigError("gym: args go with an id; a function makes what it wants")
        self.gymnasium_id = gymnasium_id
        self.args = dict(args or {})
        self.seed = seed
        env = self._make()
        try:
            name = f"gym: {_name(env)}"
            check_space(name, env.action_space)
            game, spec = known_game(env), env.spec
            limit = None if spec is None else spec.max_episode_steps
            threshold = None if spec is None else spec.reward_threshold
            self.max_turns = max_turns or limit or DEFAULT_TURNS
            self.render = render or (game.render if game else default_render)
            names = actions or (game.actions if game else None)
            self.parse, instruction = default_parse(name, env.action_space, names)
            if parse is not None:
                self.parse, instruction = parse, f"Actions: {', '.join(names)}." if names else ""
            about = rules or (game.rules if game else f"You play {_name(env)}.")
            self.instructions = f"{about}\n\n{instruction}".strip()
            worst, best = _returns(name, returns, game.returns if game else None, threshold)
        finally:
            env.close()
        turns = float(min(self.max_turns, limit or self.max_turns))
        self.returns = check_returns(name, (worst, turns if best == "turns" else best))
        self.rubric = Rubric(
            outcome=self.outcome,
            metrics={name: _recorded(name) for name in ("return", "steps", "lost_turns")},
        )

    def outcome(self, trace: Trace) -> float:
        """The episode's return as a share of the way from the worst to the best, in [0, 1]."""
        record = _record(trace)
        if self.returns[0] < 0 and not (record["terminated"] or record["truncated"]):
            return 0.0
        return share_of(float(record["return"]), self.returns)

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield seeds; those of the train split are even, those of the eval split odd."""
        seeds = game_seeds("gym", self.seed, split, self.sizes[split])
        for index, number in enumerate(seeds):
            yield Task(f"{split}-{index}", self.instructions, info={"seed": number})

    def reset(self, task: Task) -> list[Message]:
        """Make the environment and reset it with the task's seed."""
        self._env = self._make()
        self._record = dict(_NOTHING)
        observation, _ = self._env.reset(seed=int(task.info["seed"]))
        messages = self.first_messages(task)
        shown = self.render(observation, self._env)
        messages[-1] = Message("user", f"{messages[-1].content}\n\n{shown}")
        return messages

    def step(self, reply: Message) -> Step:
        """Carry out the reply's action, and return the observation."""
        record = self._record
        try:
            action = self.parse(reply.content)
            legal = self._env.action_space.contains(action)
            message = _UNREADABLE
        except (ValueError, LookupError) as error:
            legal, message = False, str(error) if isinstance(error, ValueError) else _UNREADABLE
        if not legal:
            record["lost_turns"] += 1
            return Step(message or _UNREADABLE, info={"gym": dict(record)})
        observation, reward, terminated, truncated, _ = self._env.step(action)
        record["return"] += float(reward)
        record["steps"] += 1
        record["terminated"], record["truncated"] = bool(terminated), bool(truncated)
        return Step(
            self.render(observation, self._env),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            info={"gym": dict(record)},
        )

    def close(self) -> None:
        """Close the environment, if the episode came to have one."""
        env = self.__dict__.pop("_env", None)
        if env is not None:
            env.close()

    def _make(self) -> gymnasium.Env[Any, Any]:
        """Make a new environment, in its ``ansi`` mode if it has one.

        Raises:
            ConfigError: If Gymnasium cannot make it; the message has its reason.
        """
        gym = load("gymnasium", "gym")
        if not isinstance(self.gymnasium_id, str):
            env = self.gymnasium_id()
            if isinstance(env, gym.Env):
                return env  # type: ignore[no-any-return]
            raise ConfigError(
                f"gym: the function returned {type(env).__name__}, not a gymnasium.Env"
            )
        try:
            spec = gym.spec(self.gymnasium_id)
            # Gymnasium's own check of every step is for authors of environments.
            args: dict[str, Any] = {"disable_env_checker": True}
            if "ansi" in _render_modes(spec):
                args["render_mode"] = "ansi"
            args |= self.args
            made: gymnasium.Env[Any, Any] = gym.make(spec, **args)
            return made
        except (gym.error.Error, ImportError, TypeError) as error:
            raise ConfigError(f"gym: cannot make {self.gymnasium_id!r}: {error}") from error


def _render_modes(spec: Any) -> Sequence[str]:
    from gymnasium.envs.registration import load_env_creator

    creator = spec.entry_point
    if isinstance(creator, str):
        creator = load_env_creator(creator)
    metadata = getattr(creator, "metadata", None)
    return metadata.get("render_modes") or () if isinstance(metadata, Mapping) else ()


def _name(env: gymnasium.Env[Any, Any]) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _record(trace: Trace) -> dict[str, Any]:
    """Return the episode's record; an empty one if a limit ended it before the first step."""
    return trace.info.get("gym", _NOTHING)  # type: ignore[no-any-return]


def _recorded(name: str) -> Callable[[Trace], float]:
    def metric(trace: Trace) -> float:
        return float(_record(trace)[name])

    return metric


def _returns(
    name: str, given: Sequence[float] | None, default: Returns | None, threshold: float | None
) -> Returns:
    if given is not None:
        if len(given) != 2:
            raise ConfigError(f"{name}: returns must be two numbers, got {given!r}")
        return float(given[0]), float(given[1])
    if default is not None:
        return default
    if threshold is not None and threshold > 0:
        return 0.0, float(threshold)
    raise ConfigError(
        f"{name}: it does not say which returns are good; give those that are worth 0 and 1, such "
        "as returns = [-200, -100]"
    )
