"""PettingZoo's environments of several agents: each is a role, and sees and acts in text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from vf.bridges.gym import games
from vf.bridges.gym.moves import Parse, check_space, default_parse
from vf.bridges.seeded_games import check_returns, game_seeds, share_of
from vf.environments.environment import Split
from vf.environments.generated import split_sizes
from vf.environments.multi_agent import MultiAgentEnvironment
from vf.environments.players import PlayedBy
from vf.environments.roles import Role, RoleStep, mean_role_reward
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError
from vf.runtime.extras import load
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace

Api: TypeAlias = Literal["auto", "aec", "parallel"]
# Returns the text of an agent's observation, given it, the environment and the agent's name.
RenderFor: TypeAlias = Callable[[Any, Any, str], str]

_UNREADABLE = "That is not one of the actions."
_NOT_NOW = "That action is not allowed now."


class PettingZooEnvironment(MultiAgentEnvironment):
    """Play one of PettingZoo's AEC or Parallel environments with discrete or text actions.

    Each agent is a role. In an AEC environment one acts at a time, in its order; in a Parallel one,
    all that are alive act at once. A reply that names no action, or one that the environment's
    ``action_mask`` forbids, is answered with the possible ones, and the agent is asked again. After
    ``retries`` such answers in a row it forfeits: the episode ends, and it earns 0.

    An agent's reward is its return ``R``, the sum of PettingZoo's rewards, as a share of the way
    from the return worth 0 to the one worth 1. It is given when the episode ends, so one that
    ``max_turns`` ends earns no reward::

        reward = min(1, max(0, (R - worst) / (best - worst)))

    ``Trace.info["pettingzoo"]`` holds ``returns`` and ``lost_turns`` by agent, ``steps``, and
    ``forfeited``, the agents that did.

    Args:
        pettingzoo_id: An id of PettingZoo's registry, such as ``"classic/tictactoe-v3"``; or a
            function that returns a new environment.
        args: Arguments of ``pettingzoo.make``.
        api: PettingZoo's API, of two. ``"auto"``: Parallel where the environment has it.
        render: Returns the text of an observation. By default a text as it is, the environment's
            ``ansi`` rendering, or the observation's numbers.
        parse: Returns the action that a reply asks for; see
            :class:`~vf.bridges.gym.from_gym.GymEnvironment`.
        actions: Names of a Discrete space's actions, in order.
        rules: The description of the game; placed at the start of each agent's conversation.
        returns: The returns worth 0 and 1: ``(worst, best)``.
        players: The player of each agent; by default the policy plays all.
        trained: The agents that are trained; by default all that the policy plays.
        retries: Further answers of an agent whose reply was no action.
        max_turns: Maximum steps of one episode; agents that act at once share one.
        num_train: Tasks in the train split; a task is a seed, as in Gymnasium.
        num_eval: Tasks in the eval split.
        seed: The seed of the tasks' seeds.

    Raises:
        ConfigError: If there is no such environment, its actions are continuous, an argument is out
            of range, or PettingZoo is not installed.
    """

    def __init__(
        self,
        pettingzoo_id: str | Callable[[], Any],
        args: Mapping[str, Any] | None = None,
        api: Api = "auto",
        render: RenderFor | None = None,
        parse: Parse | None = None,
        actions: Sequence[str] | None = None,
        rules: str | None = None,
        returns: Sequence[float] = (-1.0, 1.0),
        players: Mapping[str, PlayedBy | str] | None = None,
        trained: Sequence[str] | None = None,
        retries: int = 2,
        max_turns: int = 100,
        num_train: int = 2000,
        num_eval: int = 200,
        seed: int = 0,
    ) -> None:
        self.sizes = split_sizes("pettingzoo", num_train, num_eval)
        if api not in ("auto", "aec", "parallel"):
            raise ConfigError(f"pettingzoo: api = {api!r}: write 'auto', 'aec' or 'parallel'")
        if not isinstance(pettingzoo_id, str) and args:
            raise ConfigError("pettingzoo: args go with an id; a function makes what it wants")
        if retries < 0:
            raise ConfigError(f"pettingzoo: retries must be at least 0, got {retries}")
        self.pettingzoo_id, self.args, self.api = pettingzoo_id, dict(args or {}), api
        self.returns = check_returns("pettingzoo", returns)
        self.render, self.retries, self.seed = render or default_render, retries, seed
        self.players, self.trained, self.max_turns = dict(players or {}), trained, max_turns
        env = self._make()
        try:
            name = str(getattr(env, "metadata", {}).get("name", type(env.unwrapped).__name__))
            agents = list(getattr(env, "possible_agents", ()))
            if not agents:
                raise ConfigError(
                    f"pettingzoo: {name} has no possible_agents, so its roles are not known before "
                    "an episode; take an environment that lists them"
                )
            self.roles = {agent: Role(optional=True) for agent in agents}
            self._parsers: dict[str, tuple[Parse, str]] = {}
            for agent in agents:
                space = env.action_space(agent)
                check_space(f"pettingzoo: {name}", space)
                parser = default_parse(f"pettingzoo: {name}", space, actions)
                self._parsers[agent] = (parse, "") if parse is not None else parser
            self.about = rules or f"You play {name}."
        finally:
            env.close()
        self.rubric = Rubric(
            outcome=mean_role_reward, metrics={"lost_turns": _lost_turns, "steps": _steps}
        )

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield seeds; those of the train split are even, those of the eval split odd."""
        seeds = game_seeds("pettingzoo", self.seed, split, self.sizes[split])
        for index, number in enumerate(seeds):
            yield Task(f"{split}-{index}", self.about, info={"seed": number})

    def reset(self, task: Task) -> RoleStep:  # type: ignore[override]
        """Make the environment and reset it with the task's seed."""
        self._env = self._make()
        self._parallel = not hasattr(self._env, "agent_iter")
        self._met: set[str] = set()
        self._actions: dict[str, Any] = {}  # of a Parallel environment whose other agents must act
        self._missed = dict.fromkeys(self.roles, 0)  # in a row
        self._record: dict[str, Any] = {
            "returns": dict.fromkeys(self.roles, 0.0),
            "lost_turns": dict.fromkeys(self.roles, 0),
            "steps": 0,
            "forfeited": [],
        }
        seen = self._env.reset(seed=int(task.info["seed"]))
        self._seen, self._infos = seen if self._parallel else ({}, {})
        return self._ask()

    def step(self, replies: dict[str, Message]) -> RoleStep:  # type: ignore[override]
        """Carry out the replies' actions, and return the observations of those who act next."""
        again: dict[str, str] = {}
        for agent, reply in replies.items():
            try:
                self._actions[agent] = self._action(agent, reply.content)
                self._missed[agent] = 0
            except ValueError as error:
                again[agent] = str(error)
                self._missed[agent] += 1
                self._record["lost_turns"][agent] += 1
        late = [agent for agent in again if self._missed[agent] > self.retries]
        if late:
            self._record["forfeited"] = late
            return self._end()
        if again:
            return RoleStep(again, info=self._info())
        actions, self._actions = self._actions, {}
        if self._parallel:
            self._seen, rewards, ended, cut, self._infos = self._env.step(actions)
            over = not self._env.agents
            truncated = over and not any(ended.values()) and any(cut.values())
        else:
            [action] = actions.values()
            self._env.step(action)
            rewards = self._env.rewards
            truncated = any(self._env.truncations.values())
        self._record["steps"] += 1
        for agent, reward in rewards.items():
            self._record["returns"][agent] += float(reward)
        if not self._parallel:
            self._step_past_ended()
        return self._ask() if self._env.agents else self._end(truncated)

    def close(self) -> None:
        """Close the environment, if the episode came to have one."""
        env = self.__dict__.pop("_env", None)
        if env is not None:
            env.close()

    def _step_past_ended(self) -> None:
        """Step past the agents that have ended, as AEC requires: with None."""
        env = self._env
        while env.agents and (
            env.terminations[env.agent_selection] or env.truncations[env.agent_selection]
        ):
            env.step(None)

    def _ask(self) -> RoleStep:
        agents = self._env.agents if self._parallel else [self._env.agent_selection]
        return RoleStep({agent: self._shown(agent) for agent in agents}, info=self._info())

    def _end(self, truncated: bool = False) -> RoleStep:
        rewards = {
            agent: 0.0 if agent in self._record["forfeited"] else share_of(value, self.returns)
            for agent, value in self._record["returns"].items()
        }
        return RoleStep(
            rewards=rewards, terminated=not truncated, truncated=truncated, info=self._info()
        )

    def _info(self) -> dict[str, Any]:
        record = self._record
        copies = {name: dict(record[name]) for name in ("returns", "lost_turns")}
        return {"pettingzoo": {**record, **copies}}

    def _observed(self, agent: str) -> tuple[Any, Any]:
        """Return what an agent observes, and the mask of its actions if it has one."""
        seen = self._seen[agent] if self._parallel else self._env.observe(agent)
        infos = self._infos if self._parallel else self._env.infos
        mask = infos.get(agent, {}).get("action_mask")
        if isinstance(seen, Mapping) and "action_mask" in seen:
            return seen.get("observation"), seen["action_mask"]
        return seen, mask

    def _shown(self, agent: str) -> str:
        seen, mask = self._observed(agent)
        text = self.render(seen, self._env, agent)
        if mask is not None:
            text += f"\n{self._allowed(agent, mask)}"
        if agent not in self._met:
            self._met.add(agent)
            instruction = self._parsers[agent][1]
            text = f"{self.about} You are {agent}.\n{instruction}".rstrip() + f"\n\n{text}"
        return text

    def _allowed(self, agent: str, mask: Any) -> str:
        space, parse = self._env.action_space(agent), self._parsers[agent][0]
        start, names = int(getattr(space, "start", 0)), getattr(parse, "names", None)
        indices = [index for index, allowed in enumerate(mask) if allowed]
        options = [names[index] if names else str(start + index) for index in indices]
        return f"Allowed now: {', '.join(options)}."

    def _action(self, agent: str, reply: str) -> Any:
        """Return the action that a reply asks for.

        Raises:
            ValueError: If the reply has no action, or one that is not allowed; the text is what the
                agent sees.
        """
        try:
            action = self._parsers[agent][0](reply)
        except LookupError:
            raise ValueError(_UNREADABLE) from None
        except ValueError as error:
            raise ValueError(str(error) or _UNREADABLE) from None
        space = self._env.action_space(agent)
        if not space.contains(action):
            raise ValueError(_UNREADABLE)
        _, mask = self._observed(agent)
        if mask is not None and not mask[int(action) - int(getattr(space, "start", 0))]:
            raise ValueError(f"{_NOT_NOW} {self._allowed(agent, mask)}")
        return action

    def _make(self) -> Any:
        """Make a new environment.

        Raises:
            ConfigError: If PettingZoo cannot make it; the message has its reason.
        """
        zoo = load("pettingzoo", "pettingzoo")
        if not isinstance(self.pettingzoo_id, str):
            return self.pettingzoo_id()
        api = self.api
        if api == "auto":
            api = "parallel" if self.pettingzoo_id in zoo.parallel_registry else "aec"
        try:
            return zoo.make(api, self.pettingzoo_id, **self.args)
        except Exception as error:
            raise ConfigError(f"pettingzoo: cannot make {self.pettingzoo_id!r}: {error}") from error


def default_render(observation: Any, env: Any, agent: str) -> str:
    """Return the text as for a Gymnasium environment, the same for every agent."""
    return games.default_render(observation, env)


def _lost_turns(trace: Trace) -> float:
    return float(sum(trace.info.get("pettingzoo", {}).get("lost_turns", {}).values()))


def _steps(trace: Trace) -> float:
    return float(trace.info.get("pettingzoo", {}).get("steps", 0))
